"""What a bench shows while it runs."""

import io

import pytest

from sternpost_gateway.bench.progress import unit_progress


class Terminal(io.StringIO):
    """Text that takes itself for a terminal's."""

    def isatty(self) -> bool:
        """Tell that it is one."""
        return True


def test_a_terminal_shows_a_bar_that_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    """With how many of how many units are done, above it a line for each."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    output = Terminal()

    with unit_progress(2, output) as advance:
        advance("first unit")
        advance("second unit")

    shown = output.getvalue()
    assert "0/2" in shown or "1/2" in shown
    assert "2/2" in shown and "━" in shown
    assert shown.index("first unit") < shown.index("second unit")


def test_without_a_terminal_there_are_lines_alone() -> None:
    """As a log wants them."""
    output = io.StringIO()

    with unit_progress(2, output) as advance:
        advance("first unit [a/b]")

    assert "first unit [a/b]\n" == output.getvalue()
