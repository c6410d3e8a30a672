"""Log lines on standard error: for people, or as JSON for what collects them."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"

LINE_LENGTH_MAX: Final = 16_384
"""Of a message or a traceback within a line: collectors cut longer lines, which is no JSON then."""


class LogFormat(StrEnum):
    """How log lines are written."""

    TEXT = "text"
    JSON = "json"


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """Declare the flag of every part that runs for long."""
    parser.add_argument(
        "--log-format",
        type=LogFormat,
        choices=list(LogFormat),
        default=LogFormat.TEXT,
        help="lines of the log for people, or one JSON object each (default: %(default)s)",
    )


Context = Callable[[], Mapping[str, str]]
"""Returns what is known about the work that a line is written for, by name; what is empty is left out."""


def no_context() -> Mapping[str, str]:
    """Return nothing: lines of a part that has no requests."""
    return {}


class JsonFormatter(logging.Formatter):
    """
    Writes one JSON object a line: `time` (RFC 3339, UTC), `level`, `logger`, `message`, and the context.

    A traceback is in `exception`.
    """

    def __init__(self, context: Context = no_context) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage()[:LINE_LENGTH_MAX],
            **{name: value for name, value in self._context().items() if value},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-LINE_LENGTH_MAX:]
        return json.dumps(line)


def configure_logs(
    log_format: LogFormat, level: int | str = logging.INFO, context: Context = no_context
) -> None:
    """Write this process's log to standard error; only a process as a whole does this, at its start."""
    handler = logging.StreamHandler()
    is_json = log_format is LogFormat.JSON
    handler.setFormatter(JsonFormatter(context) if is_json else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level, handlers=[handler])
