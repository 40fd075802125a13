from grn.cli.main import run

run()
