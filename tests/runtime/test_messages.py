"""Lines of text: while long work goes on, and where a program's logging gets them."""

import logging
import time

import pytest

from grn.runtime.messages import LOGGER, patient, show


@pytest.mark.parametrize(("every", "some"), [(0.02, True), (60.0, False)])
def test_long_work_says_that_it_goes_on(every, some):
    lines = []
    with patient(lines.append, "Counting", every):
        time.sleep(0.2)
    said = len(lines)
    assert (said > 1) == some and all(line.startswith("Counting, for 0 s") for line in lines)
    time.sleep(0.05)
    assert len(lines) == said, "nothing is said after its end"


@pytest.fixture
def kept(monkeypatch) -> list[tuple[str, str]]:
    """What a program gets that hears the logger of grn."""
    lines: list[tuple[str, str]] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append((record.levelname, record.getMessage()))
    monkeypatch.setattr(LOGGER, "handlers", [handler])
    monkeypatch.setattr(LOGGER, "propagate", False)
    yield lines
    LOGGER.setLevel(logging.NOTSET)


def test_lines_are_printed_where_no_logging_is_set_up(kept, monkeypatch, capsys):
    show("two")  # the level is that of the root, WARNING
    monkeypatch.setattr(LOGGER, "handlers", [])
    show("100 % of it")
    assert capsys.readouterr().out == "two\n100 % of it\n" and not kept


def test_a_program_that_sets_up_logging_gets_them_there_alone(kept, capsys):
    LOGGER.setLevel(logging.INFO)
    show("100 % of it")
    LOGGER.setLevel(logging.WARNING)
    show("not wanted")
    assert kept == [("INFO", "100 % of it")] and capsys.readouterr().out == ""
