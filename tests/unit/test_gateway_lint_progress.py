"""The bar that shows how far a log has been read."""

from __future__ import annotations

import io

from sternpost_gateway.lint.progress import progress_bar


class Terminal(io.StringIO):
    """What is written to somebody who is watching."""

    def isatty(self) -> bool:
        """Say that there is somebody."""
        return True


def test_a_terminal_shows_each_pass() -> None:
    """By its name."""
    output = Terminal()
    with progress_bar(100, output) as advance:
        advance("looking", 50)
        advance("looking", 50)
        advance("simulating", 10)

    assert "looking" in output.getvalue()
    assert "simulating" in output.getvalue()


def test_nothing_is_shown_elsewhere() -> None:
    """A build's log is no place for bars."""
    output = io.StringIO()
    with progress_bar(100, output) as advance:
        advance("looking", 50)

    assert "" == output.getvalue()
