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


def test_an_error_of_the_work_is_its_own():
    with pytest.raises(ZeroDivisionError), patient(print, "Dividing"):
        raise ZeroDivisionError


@pytest.fixture
def logger():
    """The logger of grn as a program without logging has it, whatever pytest has set up."""
    before = LOGGER.level, LOGGER.propagate
    LOGGER.propagate = False
    yield LOGGER
    LOGGER.level, LOGGER.propagate = before
    LOGGER.handlers.clear()


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelname, record.getMessage()))


def test_lines_are_printed_where_no_logging_is_set_up(logger, capsys):
    show("100 % of it")
    logger.addHandler(kept := Kept())
    show("two")  # the level is that of the root, WARNING
    assert capsys.readouterr().out == "100 % of it\ntwo\n" and not kept.lines


def test_a_program_that_sets_up_logging_gets_them_there_alone(logger, capsys):
    logger.addHandler(kept := Kept())
    logger.setLevel(logging.INFO)
    show("100 % of it")
    logger.setLevel(logging.WARNING)
    show("not wanted")
    assert kept.lines == [("INFO", "100 % of it")] and capsys.readouterr().out == ""
