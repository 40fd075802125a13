from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
import typer
from rich.console import Console

from grn import __version__
from grn.cli import main as cli
from grn.cli.console import print_table
from grn.cli.exit_codes import REFUSALS, exit_code_of, exit_with
from grn.config.files import dump_config, load_config
from grn.errors import ConfigError, DataError, Interrupted

ROOT = Path(__file__).parents[1]


def grn(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "grn", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def raising(error: BaseException):
    def command():
        raise error

    return command


def test_help_lists_the_commands():
    done = grn("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("train", "predict", "export", "evaluate", "compare"))


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


def test_all_commands_together_have_at_most_seventy_parameters_and_name_what_stands_everywhere():
    found = {name: sum(not each.hidden for each in command.params) for name, command in commands()}
    assert sum(found.values()) <= 70, found
    assert all("--quiet" in command.epilog and "--debug" in command.epilog for _, command in commands())


@pytest.mark.parametrize(
    ("command", "field", "shown"),
    [
        ("train x.h5ad", "data.label_key", "--label"),
        ("train x.h5ad", "data.regulators", "--regulators"),
        ("train x.h5ad", "data.path", "DATA"),
        ("train x.h5ad", "data.counts", None),
        ("init x.h5ad", "data.orientation", "--orientation"),
        ("data get x", "file", "--file"),
    ],
)
def test_a_field_is_called_by_the_option_that_sets_it(command, field, shown):
    assert cli.option_of(command.split())(field) == shown


def test_no_arguments_print_the_help():
    assert grn().stdout == grn("--help").stdout


def test_version():
    assert grn("--version").stdout.strip() == __version__


def test_the_process_ends_with_the_commands_exit_code(tmp_path):
    done = grn("train", "--config", "nothing.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: There is no configuration 'nothing.yaml'")
    assert "Traceback" not in done.stderr


def test_train_py_hands_its_arguments_to_grn_train(tmp_path):
    command = [sys.executable, str(ROOT / "train.py"), "--config", "nothing.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "There is no configuration 'nothing.yaml'" in done.stderr


def test_a_fault_of_grn_is_one_sentence_and_exit_code_1(capsys):
    assert exit_code_of(raising(KeyError("cells"))) == 1
    printed = capsys.readouterr().err
    assert "this is a fault of grn: KeyError: 'cells'" in printed
    assert "Traceback" not in printed


def test_debug_prints_the_traceback(capsys):
    assert exit_code_of(raising(ConfigError("no such field.")), debug=True) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("number", sorted(REFUSALS))
def test_what_the_system_refuses_comes_with_what_to_do(number, capsys):
    assert exit_code_of(raising(OSError(number, os.strerror(number)))) == 2
    assert re.fullmatch(r"error: the disk, or what the output is sent to: .+; .+\.\n", capsys.readouterr().err)


def test_an_error_is_one_printable_line_whatever_it_quotes(capsys):
    """A file's name may hold a line feed, colours of a terminal or bytes that are no text; a value may be endless."""
    assert exit_code_of(raising(DataError("a\nb\x1b[31m\udcff \u00fc.h5ad does not exist; give a file."))) == 2
    assert capsys.readouterr().err == "error: a\\nb\\x1b[31m\\udcff \u00fc.h5ad does not exist; give a file.\n"
    assert exit_code_of(raising(DataError(f"{'9' * 5000} is too large; give less."))) == 2
    printed = capsys.readouterr().err
    assert len(printed) < 1600 and printed.startswith("error: 999") and printed.endswith("9 is too large; give less.\n")


def test_each_mistake_of_a_configuration_is_a_line(capsys):
    assert cli.main(["train", "x.h5ad", "--set", "trainer.max_steps=many", "--set", "trainer.seed=-1"]) == 2
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["error", "error"]


def test_a_program_without_standard_output_ends_well(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        exit_with(0)
    assert ended.value.code == 0


@pytest.mark.parametrize("arguments", [["simulated:"], ["simulated:", "--config", "tiny.yaml"], ["tiny.yaml"]])
def test_cells_alone_are_trained_on_with_the_defaults_or_a_configuration(arguments, make_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(dump_config(make_config()))
    from grn.training import run as training

    seen = {}
    monkeypatch.setattr(training, "train", lambda config, *_, **options: seen.update(options, config=config))
    assert cli.main(["train", *arguments]) == 0
    expected = make_config() if "tiny.yaml" in arguments else load_config("own_data.yaml", ["data.path=simulated:"])
    assert seen["config"] == expected
    assert seen["name"] == ("tiny" if "tiny.yaml" in arguments else "simulated")


def test_memory_that_runs_out_names_what_to_lower(capsys):
    assert exit_code_of(raising(MemoryError("Unable to allocate 9 TiB"))) == 2
    on_a_cpu = (
        "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 B"
    )
    assert exit_code_of(raising(RuntimeError(on_a_cpu))) == 2
    assert "lower trainer.batch_size" in capsys.readouterr().err


def test_brackets_in_a_message_are_not_markup(capsys):
    exit_code_of(raising(ConfigError("[red]genes[/red] is no list.")))
    assert capsys.readouterr().err == "error: [red]genes[/red] is no list.\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (typer.Abort(), 130),
        (Interrupted(signal.SIGINT, "saved"), 130),
        (Interrupted(signal.SIGTERM, "saved"), 143),
        (Interrupted(signal.SIGUSR1, "saved"), 143),
        (Interrupted(signal.SIGHUP, "saved"), 143),
    ],
)
def test_exit_codes_of_interruptions(error, code, capsys):
    assert exit_code_of(raising(error)) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_outside_training_ends_with_143(number, capsys):
    before = signal.getsignal(number)
    assert exit_code_of(lambda: os.kill(os.getpid(), number)) == 143
    assert capsys.readouterr().err == f"error: stopped by {number.name}.\n"
    assert signal.getsignal(number) == before


def test_a_signal_that_is_ignored_stays_so(monkeypatch):
    """As SIGHUP under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert exit_code_of(lambda: os.kill(os.getpid(), signal.SIGHUP)) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_inside_a_command_ends_with_130(monkeypatch, capsys):
    monkeypatch.setattr("grn.config.files.change_config", raising_any(KeyboardInterrupt()))
    assert cli.main(["train", "--config", "simulated.yaml"]) == 130
    assert capsys.readouterr().err.strip() == "error: interrupted."


def raising_any(error: BaseException):
    def function(*arguments, **options):
        raise error

    return function


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
    code = "from grn.cli.console import console; to = console(); to.print('one'); to.print('two'); open('done', 'w')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "done").exists()
