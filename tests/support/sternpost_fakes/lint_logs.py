"""Logs for lint: small ones whose reuse can be told by hand, and what it takes to look through them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from sternpost_core.jsonspan import scan
from sternpost_gateway.lint.analysis import Options, analyse
from sternpost_gateway.lint.encoders import EstimateEncoder
from sternpost_gateway.lint.fixes import PolicyNames
from sternpost_gateway.lint.log import Log
from sternpost_gateway.lint.prompt import PlainPrompts
from sternpost_gateway.lint.report import Report
from sternpost_gateway.lint.request import LogFormat, LoggedRequest
from sternpost_gateway.lint.rows import read_row
from sternpost_gateway.lint.simulate import CacheShape

RULES: Final = "You are the harbour master. " * 20
"""560 characters of words that never change."""

CLOSING: Final = "Speak of nothing but the sea. " * 60
"""1,800 characters: 450 tokens by the estimate."""

SHAPE: Final = CacheShape(block_tokens=16, cache_tokens=65_536)


def message(role: str, content: Any) -> dict[str, Any]:
    """Return a message."""
    return {"role": role, "content": content}


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the body of a chat request."""
    return {"model": "m", "messages": list(messages), **more}


def chats(count: int, opening: Callable[[int], str], *closing: dict[str, Any], **more: Any) -> list[bytes]:
    """Return bodies whose system message depends on their number, and whose question is always another."""
    return [
        json.dumps(
            chat(message("system", opening(number)), message("user", f"question {number}"), *closing, **more)
        ).encode()
        for number in range(count)
    ]


def logged(body: bytes, number: int = 1, log_format: LogFormat = LogFormat.BODIES) -> LoggedRequest:
    """Return the request that a line holds."""
    return read_row(body, number, log_format)


def write_log(path: Path, lines: Sequence[bytes]) -> Path:
    """Write a log and return its path."""
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def report_of(
    path: Path, *, plain_engine: bool = False, show_text: bool = False, price: float | None = None
) -> Report:
    """Return what lint finds in a log, by the estimate."""
    options = Options(
        shape=SHAPE, names=PolicyNames(), plain_engine=plain_engine, show_text=show_text, price=price
    )
    with ExitStack() as stack:
        log = Log([str(path)], None, stack, io.BytesIO())
        return analyse(log, PlainPrompts(EstimateEncoder()), options, lambda name, read: None)


def body_of(request: LoggedRequest) -> Any:
    """Return a logged request's body, decoded."""
    return json.loads(scan(request.document.body).body)
