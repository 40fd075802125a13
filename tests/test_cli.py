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
from grn import __version__
from grn.cli import main as cli
from grn.cli.console import print_table
from grn.cli.exit_codes import exit_code_of
from grn.config.files import dump_config, load_config
from grn.runtime.errors import DataError, Interrupted

ROOT = Path(__file__).parents[1]


def raising(error: BaseException):
    def command():
        raise error

    return command


@pytest.mark.parametrize("place", [0, 1, 2])
def test_debug_and_quiet_may_stand_anywhere(place, capsys):
    arguments = ["data", "list"]
    assert cli.main([*arguments[:place], "--quiet", "--debug", *arguments[place:]]) == 0
    assert capsys.readouterr().out == ""
    assert cli.main(arguments) == 0
    assert "human_tfs" in capsys.readouterr().out


def commands(program=None, name: str = "grn"):
    """Each command's name and typer's object of it."""
    program = program or typer.main.get_command(cli.app)
    for part, command in getattr(program, "commands", {}).items():
        yield from commands(command, f"{name} {part}")
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
    ("verb", "command"), [(name[4:], each) for name, each in commands() if hasattr(grn, name[4:])]
)
def test_the_command_line_has_pythons_names_in_pythons_order(verb, command):
    options = [each for each in command.params if each.opts[0] not in {"--help", *NOT_IN_PYTHON}]
    words = [
        each.opts[0] if each.param_type_name == "option" else each.metavar or each.name
        for each in options
    ]
    names = [word.strip("-").replace("-", "_").lower() for word in words]
    assert names == [
        name for name in inspect.signature(getattr(grn, verb)).parameters if name in names
    ]


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


def test_no_arguments_print_the_help_which_lists_the_commands(capsys):
    assert cli.main([]) == 0
    printed = capsys.readouterr().out
    assert all(
        command in printed for command in ("train", "predict", "export", "evaluate", "compare")
    )
    assert cli.main(["--version"]) == 0 and capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize("program", [["-m", "grn", "train"], [str(ROOT / "train.py")]])
def test_the_process_ends_with_the_commands_exit_code(program, tmp_path):
    command = [sys.executable, *program, "--config", "nothing.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert (
        done.stderr.startswith("error: ")
        and "nothing.yaml" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_a_fault_of_grn_is_one_sentence_and_exit_code_1(capsys):
    assert exit_code_of(raising(KeyError("cells"))) == 1
    printed = capsys.readouterr().err
    assert "KeyError: 'cells'" in printed and "Traceback" not in printed
    assert exit_code_of(raising(KeyError("cells")), debug=True) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_error_is_one_printable_line_whatever_it_quotes(capsys):
    """A file's name may hold a line feed, colours of a terminal or bytes that are no text; a value
    may be endless.
    """
    assert exit_code_of(raising(DataError("[red]a\nb\x1b[31m\udcff \u00fc.h5ad"))) == 2
    assert capsys.readouterr().err == "error: [red]a\\nb\\x1b[31m\\udcff \u00fc.h5ad\n"
    assert exit_code_of(raising(DataError("9" * 5000))) == 2
    assert len(capsys.readouterr().err) < 1600


@pytest.mark.parametrize(
    "arguments", [["simulated:"], ["simulated:", "--config", "tiny.yaml"], ["tiny.yaml"]]
)
def test_cells_alone_are_trained_on_with_the_defaults_or_a_configuration(
    arguments, make_config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(dump_config(make_config()))
    from grn.training import run as training

    seen = {}
    monkeypatch.setattr(
        training, "train", lambda config, *_, **options: seen.update(options, config=config)
    )
    assert cli.main(["train", *arguments]) == 0
    expected = (
        make_config()
        if "tiny.yaml" in arguments
        else load_config("own_data.yaml", ["data.path=simulated:"])
    )
    assert seen["config"] == expected
    assert seen["name"] == ("tiny" if "tiny.yaml" in arguments else "simulated")


def test_memory_that_runs_out_names_what_to_lower(capsys):
    for error in (
        MemoryError("9 TiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ):
        assert exit_code_of(raising(error)) == 2
        assert "trainer.batch_size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (typer.Abort(), 130),
        (Interrupted(signal.SIGINT, "saved"), 130),
        (Interrupted(signal.SIGTERM, "saved"), 143),
        (OSError(28, "No space left on device"), 2),
        (PermissionError(13, "Permission denied", "x"), 2),
    ],
)
def test_exit_codes_of_interruptions_and_of_what_the_system_refuses(error, code, capsys):
    assert exit_code_of(raising(error)) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_outside_training_ends_with_143(number, capsys):
    before = signal.signal(number, signal.SIG_DFL)  # the tests themselves may run under nohup
    try:
        assert exit_code_of(lambda: os.kill(os.getpid(), number)) == 143
        assert number.name in capsys.readouterr().err
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_stays_so(monkeypatch):
    """As SIGHUP under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert exit_code_of(lambda: os.kill(os.getpid(), signal.SIGHUP)) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("terminal", [False, True])
def test_brackets_in_a_table_are_not_markup(terminal):
    written = StringIO()
    print_table(
        "Cells [of type]",
        ["metric [x]", "[bold]"],
        [("T cell [naive]", 1), ("odd [/x]", "[red]")],
        Console(file=written, force_terminal=terminal, width=80, highlight=False, soft_wrap=True),
    )
    for text in ("Cells [of type]", "metric [x]", "[bold]", "T cell [naive]", "odd [/x]", "[red]"):
        assert text in written.getvalue()


def test_a_table_off_a_terminal_is_never_cut(capsys):
    print_table("Test cells", ["metric", "value"], [("accuracy", 0.83612), ("x" * 200, 1)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Test cells"
    assert lines[2].split() == ["accuracy", "0.8361"]
    assert lines[3].split() == ["x" * 200, "1"]


@pytest.mark.skipif(os.name == "nt", reason="pipes end otherwise there")
def test_work_continues_when_its_output_is_closed(tmp_path):
    """As behind `| head`: rich's own console would end the process."""
    read, write = os.pipe()
    os.close(read)
    code = (
        "from grn.cli.console import console; to = console(); to.print('one'); to.print('two'); "
        "open('done', 'w')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, timeout=60
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "done").exists()
