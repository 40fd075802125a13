from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import warnings
from io import StringIO
from pathlib import Path

import pytest
import typer
from rich.console import Console

from grn import __version__
from grn.cli import main as cli
from grn.cli.console import print_table
from grn.cli.exit_codes import REFUSALS, exit_code_of, exit_with
from grn.cli.main import use_sound_environment
from grn.config.files import dump_config, load_config
from grn.errors import ConfigError, DataError, Interrupted, UserError, reworded

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


def test_no_arguments_print_the_help():
    assert grn().stdout == grn("--help").stdout


def test_version():
    assert grn("--version").stdout.strip() == __version__


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--config", "pbm.yaml"], "did you mean pbmc.yaml?"),
        (["train", "--config", "simulated.yaml", "--set", "trainer.max_epoch=1"], "did you mean trainer.max_epochs?"),
        (
            ["train"],
            "--resume RUN to continue an interrupted run; see grn train --help.",
        ),
        (["train", "--cofnig", "pbmc.yaml"], "see grn train --help."),
        (["trian"], "no such command 'trian'"),
        (["export", "run", "--output", "x", "--top-k", "0"], "--top-k"),
        (["evaluate", "edges.csv"], "see grn evaluate --help."),
        (["evaluate", "edges.csv", "truth.csv"], "edges.csv does not exist"),
    ],
)
def test_a_users_mistake_is_one_line_on_stderr_and_exit_code_2(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and sentence in printed.err
    assert len(printed.err.splitlines()) == 1


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


def test_a_full_or_forbidden_disk_is_a_user_error(capsys):
    assert exit_code_of(raising(PermissionError(13, "Permission denied", "/mnt/results"))) == 2
    printed = capsys.readouterr().err
    assert printed == "error: /mnt/results: permission denied; change its permissions, or choose another path.\n"


@pytest.mark.parametrize("number", [errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG])
def test_an_impossible_file_name_is_a_user_error(number, capsys):
    assert exit_code_of(raising(OSError(number, os.strerror(number), "results/x"))) == 2
    assert capsys.readouterr().err.startswith(f"error: results/x: {os.strerror(number).lower()}; ")


def test_a_folder_in_the_place_of_a_file_is_to_be_moved_out_of_the_way(capsys):
    assert exit_code_of(raising(IsADirectoryError(errno.EISDIR, "Is a directory", "run/metrics.csv"))) == 2
    assert capsys.readouterr().err == (
        "error: run/metrics.csv: is a directory; rename or remove it, or give another path.\n"
    )


@pytest.mark.parametrize("number", sorted(REFUSALS))
def test_what_the_system_refuses_comes_with_what_to_do(number, capsys):
    assert exit_code_of(raising(OSError(number, os.strerror(number)))) == 2
    assert re.fullmatch(r"error: the disk, or what the output is sent to: .+; .+\.\n", capsys.readouterr().err)


def test_an_error_is_one_printable_line_whatever_it_quotes(capsys):
    """A file's name may hold a line feed, colours of a terminal or bytes that are no text; a value may be endless."""
    assert exit_code_of(raising(DataError("a\nb\x1b[31m\udcff \u00fc.h5ad does not exist; give a file."))) == 2
    assert capsys.readouterr().err == "error: a\\nb\\x1b[31m\\xff \u00fc.h5ad does not exist; give a file.\n"
    assert exit_code_of(raising(DataError(f"{'9' * 5000} is too large; give less."))) == 2
    printed = capsys.readouterr().err
    assert len(printed) < 1600 and printed.startswith("error: 999") and printed.endswith("9 is too large; give less.\n")


def test_each_mistake_of_a_configuration_is_a_line(capsys):
    assert cli.main(["train", "x.h5ad", "--set", "trainer.max_steps=many", "--set", "trainer.seed=-1"]) == 2
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["error", "error"]


def test_the_environment_is_made_sound():
    """With COLUMNS=0 rich prints nothing; a drawing library that is told a wrong backend does not import."""
    environment = {"COLUMNS": "0", "LINES": "many", "TERMINAL_WIDTH": "-3", "MPLBACKEND": "nonsense", "HOME": "/root"}
    use_sound_environment(environment)
    assert environment == {"MPLBACKEND": "agg", "HOME": "/root"}
    environment = {"COLUMNS": "120"}
    use_sound_environment(environment)
    assert environment["COLUMNS"] == "120"


def test_a_removed_working_folder_is_said_at_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    try:
        assert cli.main(["train", "cells.h5ad"]) == 2
    finally:
        os.chdir(tmp_path)
    assert "does not exist any more; go to another one (cd)" in capsys.readouterr().err


def test_a_program_without_standard_output_ends_well(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        exit_with(0)
    assert ended.value.code == 0


@pytest.mark.parametrize(
    ("command", "output"),
    [(["evaluate", "edges.csv", "truth.csv"], "x"), (["predict", "run", "cells.h5ad"], "x.h5ad")],
)
@pytest.mark.parametrize("between", [(), ("deep", "deeper")])
def test_an_output_below_a_file_is_refused_before_anything_is_read(
    command, output, between, tmp_path, monkeypatch, capsys
):
    """Neither the network nor the cells exist, so nothing tried to read them."""
    monkeypatch.chdir(tmp_path)
    Path("FILE").touch()
    path = Path("FILE", *between, output)
    assert cli.main([*command, "--output", str(path)]) == 2
    sentence = f"error: {path} cannot be made, because {tmp_path / 'FILE'} is a file; choose another output.\n"
    assert capsys.readouterr().err == sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "mine.yaml", "--config", "pbmc.yaml"], "mine.yaml and --config pbmc.yaml; leave one of them out."),
        (
            ["train", "cells.h5ad", "more.h5ad"],
            "takes (more.h5ad); put a text with spaces in quotes, and see grn train --help.",
        ),
        (["train", "cells.h5ad", "--resume", "run"], "leave out everything else."),
        (["train", "--confg", "pbmc.yaml"], "no such option: --confg, did you mean --config; see grn train --help."),
        (
            ["export", "run", "cells"],
            "there are more arguments than the command takes (cells); put a text with spaces in quotes, and see grn "
            "export --help.",
        ),
    ],
)
def test_wrong_arguments_are_one_sentence_that_says_what_to_write(arguments, sentence, capsys):
    assert cli.main([*arguments, "--output", "OUT"]) == 2
    printed = capsys.readouterr().err
    assert printed.endswith(f"{sentence}\n") and len(printed.splitlines()) == 1


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
    ],
)
def test_exit_codes_of_interruptions(error, code, capsys):
    assert exit_code_of(raising(error)) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_outside_training_ends_with_143(number, capsys):
    before = signal.getsignal(number)
    assert exit_code_of(lambda: os.kill(os.getpid(), number)) == 143
    assert capsys.readouterr().err == f"error: stopped by {number.name}.\n"
    assert signal.getsignal(number) == before


def test_ctrl_c_inside_a_command_ends_with_130(monkeypatch, capsys):
    monkeypatch.setattr("grn.config.files.load_config", raising_any(KeyboardInterrupt()))
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


@pytest.mark.parametrize(
    ("message", "shown"),
    [("set data.counts: recover", "give --counts recover"), ("nothing of that kind", "nothing of that kind")],
)
def test_commands_name_their_options_and_not_the_fields_of_a_configuration(message, shown):
    with pytest.raises(DataError) as caught, reworded({"set data.counts: ": "give --counts "}):
        raise DataError(message)
    assert str(caught.value) == shown


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


def test_warnings_of_libraries_come_after_the_work_and_never_before_a_sentence(capsys):
    def working():
        warnings.warn("a library mutters", UserWarning, stacklevel=1)

    def refused():
        working()
        raise UserError("What is wrong; do this.")

    with warnings.catch_warnings(action="always"):
        assert exit_code_of(refused) == 2
        assert capsys.readouterr().err == "error: What is wrong; do this.\n"
        shown = []
        warnings.showwarning = lambda message, *_: shown.append(str(message))
        assert exit_code_of(working) == 0
    assert shown == ["a library mutters"]


def test_python_without_docstrings_is_refused(tmp_path):
    """Libraries edit docstrings while they are imported: the sentence stood in place of a fault of ours."""
    command = [sys.executable, "-OO", "-m", "grn", "train", "cells.h5ad"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "Python runs without docstrings" in done.stderr


def test_a_rank_that_is_no_number_is_refused_before_lightning_reads_it(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "x")
    assert cli.main(["train", "simulated:"]) == 2
    assert "The environment variable LOCAL_RANK is 'x', and launchers such as" in capsys.readouterr().err
