"""Log lines as JSON: one object a line, whatever is logged, with what is known of the work behind it."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timedelta
from typing import Any

import pytest

from sternpost_core.logs import LINE_LENGTH_MAX, JsonFormatter


def line_of(message: str, *, context: dict[str, str] | None = None, error: Exception | None = None) -> Any:
    """Return a warning's line, read again; it must be one line."""
    found = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord("part.module", logging.WARNING, "", 1, message, ("b",), found)
    line = JsonFormatter(lambda: context or {}).format(record)
    assert "\n" not in line
    return json.loads(line)


def test_a_line_says_when_where_and_what() -> None:
    """By the names that collectors know, in UTC."""
    line = line_of("a %s")

    assert ("WARNING", "part.module", "a b") == (line["level"], line["logger"], line["message"])
    assert timedelta() == datetime.fromisoformat(line["time"]).utcoffset()


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        pytest.param({"request_id": "r-1", "trace_id": "0af7"}, ("r-1", "0af7"), id="with a trace"),
        pytest.param({"request_id": "r-1", "trace_id": ""}, ("r-1", None), id="without one"),
        pytest.param({}, (None, None), id="outside of requests"),
    ],
)
def test_a_line_names_its_request(context: dict[str, str], expected: tuple[str | None, ...]) -> None:
    """What is not known is left out."""
    line = line_of("a %s", context=context)

    assert expected == (line.get("request_id"), line.get("trace_id"))


@pytest.mark.parametrize("text", ["two\nlines %s", 'a "quote" %s', "half a pair \ud800 %s", "\x00 %s"])
def test_any_text_is_one_line(text: str) -> None:
    """And is read as what it was."""
    assert text % "b" == line_of(text)["message"]


def test_a_traceback_is_a_member_of_its_line() -> None:
    """Not a second line, which collectors would take for another entry."""
    try:
        raise ValueError("bad")
    except ValueError as error:
        line = line_of("a %s", error=error)

    assert "ValueError: bad" in line["exception"]


def test_a_line_is_bounded() -> None:
    """A longer one would be cut by who collects it, and be no JSON then."""
    assert LINE_LENGTH_MAX == len(line_of("%s" + "x" * 100_000)["message"])
