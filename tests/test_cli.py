"""The program: its commands, exit codes, signals and printed tables."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
import typer
from rich.console import Console

import grn
from grn.cli import main as cli
from grn.cli.console import print_table
from grn.cli.exit_codes import exit_code_of
from grn.cli.train import loaded_config
from grn.config.files import dump_config, load_config
from grn.runtime.errors import DataError, Interrupted

ROOT = Path(__file__).parents[1]


def raising(error: BaseException):
    def command():
        raise error

    return command


@pytest.mark.parametrize("place", [0, 1, 2])
def test_debug_and_quiet_may_stand_anywhere(place, command):
    arguments = ["data", "list"]
    loud = [*arguments[:place], "--debug", *arguments[place:]]
    code, printed, _ = command(*loud)
    assert code == 0 and "human_tfs" in printed
    assert command(*loud, "--quiet") == (0, "", "")


def commands(program, name: str = ""):
    """Each command's name and typer's object of it."""
    for part, each in getattr(program, "commands", {}).items():
        yield from commands(each, f"{name} {part}".strip())
    if not hasattr(program, "commands"):
        yield name, program


NOT_IN_PYTHON = {
    "--all": "certain=False",
    "--output": "Python returns what the command writes",
    "--resume": "a run that Python started is continued on the command line",
    "--interventions": "grn.evaluate_interventions",
    "--leave-out": "of grn.evaluate_interventions",
    "--towards": "of grn.screen",
}


@pytest.mark.parametrize(
    ("verb", "program"),
    [each for each in commands(typer.main.get_command(cli.app)) if hasattr(grn, each[0])],
)
def test_the_command_line_has_pythons_names_in_pythons_order(verb, program):
    options = [each for each in program.params if each.opts[0] not in {"--help", *NOT_IN_PYTHON}]
    words = [
        each.opts[0] if each.param_type_name == "option" else each.metavar or each.name
        for each in options
    ]
    names = [word.strip("-").replace("-", "_").lower() for word in words]
    of_python = inspect.signature(getattr(grn, verb)).parameters
    assert names == [name for name in of_python if name in names]


@pytest.mark.parametrize(
    ("command", "field", "shown"),
    [
        ("train x.h5ad", "data.label_key", "--label"),
        ("train x.h5ad", "data.regulators", "--regulators"),
        ("train x.h5ad", "data.path", "DATA"),
        ("train x.h5ad", "data.counts", None),
        ("train x.csv", "data.orientation", "--orientation"),
        ("data get x", "file", "--file"),
    ],
)
def test_a_field_is_called_by_the_option_that_sets_it(command, field, shown):
    assert cli.option_of(command.split())(field) == shown


def test_no_arguments_print_the_help_which_lists_the_commands(command):
    code, printed, _ = command()
    assert code == 0 and all(verb in printed for verb in ("train", "predict", "evaluate"))
    assert command("--version") == (0, f"{grn.__version__}\n", "")


@pytest.mark.parametrize("program", [["-m", "grn", "train"], [str(ROOT / "train.py")]])
def test_the_process_ends_with_the_commands_exit_code(program, tmp_path):
    call = [sys.executable, *program, "--config", "nothing.yaml"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.startswith("error: ")
    assert "nothing.yaml" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("debug", [False, True])
def test_a_fault_of_grn_is_one_sentence_and_exit_code_1(debug, capsys):
    assert exit_code_of(raising(KeyError("cells")), debug=debug) == 1
    printed = capsys.readouterr().err
    assert "KeyError: 'cells'" in printed and ("Traceback" in printed) == debug


def test_an_error_is_one_printable_line_whatever_it_quotes(capsys):
    """A file's name may hold a line feed, colours of a terminal or bytes that are no text; a value
    may be endless.
    """
    assert exit_code_of(raising(DataError("[red]a\nb\x1b[31m\udcff \u00fc.h5ad"))) == 2
    assert capsys.readouterr().err == "error: [red]a\\nb\\x1b[31m\\udcff \u00fc.h5ad\n"
    assert exit_code_of(raising(DataError("9" * 5000))) == 2
    assert len(capsys.readouterr().err) < 1600


def test_cells_alone_are_trained_on_with_the_defaults_or_a_configuration(
    make_config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    tiny = make_config()
    Path("tiny.yaml").write_text(dump_config(tiny))
    assert loaded_config("tiny.yaml") == loaded_config("simulated:", "tiny.yaml") == tiny
    defaults = load_config("own_data.yaml", ["data.path=simulated:"])
    assert loaded_config("simulated:") == defaults


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        (typer.Abort(), 130, ""),
        (Interrupted(signal.SIGINT, "saved"), 130, "saved"),
        (Interrupted(signal.SIGTERM, "saved"), 143, "saved"),
        (OSError(28, "No space left on device"), 2, "no space left"),
        (PermissionError(13, "Permission denied", "x"), 2, "x: permission denied"),
        (MemoryError("9 TiB"), 2, "trainer.batch_size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "trainer.batch_size"),
    ],
)
def test_exit_codes_of_interruptions_and_of_what_the_system_refuses(error, code, said, capsys):
    assert exit_code_of(raising(error)) == code
    printed = capsys.readouterr().err
    assert said in printed and len(printed.splitlines()) == 1


@pytest.mark.parametrize(
    ("number", "handler", "code"),
    [
        (signal.SIGTERM, signal.SIG_DFL, 143),
        (signal.SIGHUP, signal.SIG_DFL, 143),
        (signal.SIGHUP, signal.SIG_IGN, 0),  # under nohup
    ],
)
def test_a_signal_outside_training_ends_with_143_unless_it_is_ignored(number, handler, code):
    before = signal.signal(number, handler)
    try:
        assert exit_code_of(lambda: os.kill(os.getpid(), number)) == code
        assert signal.getsignal(number) == handler
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("terminal", [False, True])
def test_brackets_in_a_table_are_not_markup(terminal):
    written = StringIO()
    to = Console(file=written, force_terminal=terminal, width=80, highlight=False, soft_wrap=True)
    texts = "Cells [of type]", "[bold]", "T cell [naive]", "odd [/x]"
    print_table(texts[0], ["x", texts[1]], [(texts[2], 1), (texts[3], 2)], to)
    assert all(text in written.getvalue() for text in texts)


def test_a_table_off_a_terminal_is_never_cut(capsys):
    print_table("Test cells", ["metric", "value"], [("accuracy", 0.83612), ("x" * 200, 1)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[2:] == [["accuracy", "0.8361"], ["x" * 200, "1"]]


@pytest.mark.skipif(os.name == "nt", reason="pipes end otherwise there")
def test_work_continues_when_its_output_is_closed():
    """As behind `| head`: rich's own console would end the process."""
    read, write = os.pipe()
    os.close(read)
    code = (
        "from grn.cli.console import console; to = console(); to.print('one'); to.print('two'); "
        "raise SystemExit(7)"
    )
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (7, b"")
