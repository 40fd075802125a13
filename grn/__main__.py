from grn.cli.main import run

if __name__ == "__main__":  # a rehearsal imports this module in its own process
    run()
