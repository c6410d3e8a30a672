"""
Reading the rows of logs: the body of the request in each, byte for byte where the log has kept it so.

A cache sees bytes, so a body that a log holds as JSON is cut out of its row and never written anew. Where a
log holds the messages only, the body is put together from those bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from sternpost_core.errors import BodyError
from sternpost_core.jsonspan import Document, Member, Span, scan, value
from sternpost_core.text import one_of
from sternpost_gateway.lint.request import (
    PATHS,
    BadLine,
    LogFormat,
    LoggedRequest,
    SkippedLine,
    fault_of,
)
from sternpost_gateway.receive import INSPECTED_PATHS

Row = Mapping[str, Member]

GENERATION: Final = b'"GENERATION"'
"""The type of the observations that are requests to a model."""

OTHER_CALLS: Final = (
    "embedding",
    "image",
    "moderation",
    "rerank",
    "speech",
    "transcription",
)
"""How LiteLLM's types of calls begin that are for no prompt; an `a` in front stands for asynchronous."""

SESSION_KEYS: Final = ("session_id", "sessionId", "trace_id", "traceId")
TENANT_KEYS: Final = ("api_key", "team_id", "userId", "user_id")
"""Where rows name session and tenant; the first that is there counts."""

TOOL_PLACES: Final = ("model_parameters", "modelParameters", "optional_params", "metadata")
"""Where rows keep the tools, if not beside the messages."""


def detect_format(line: bytes) -> LogFormat | None:
    """Return what a line is a row of, None if it is no row that is known."""
    try:
        row = scan(line).members
    except BodyError:
        return None
    signs = (
        (LogFormat.BATCH, "custom_id" in row and "body" in row),
        (
            LogFormat.LITELLM,
            bool(row.keys() & {"proxy_server_request", "call_type", "litellm_call_id", "litellm_params"}),
        ),
        (LogFormat.LANGFUSE, bool(row.keys() & {"traceId", "trace_id"}) and "input" in row),
        (LogFormat.BODIES, bool(row.keys() & PATHS.keys())),
    )
    return next((found for found, holds in signs if holds), None)


def read_row(line: bytes, number: int, log_format: LogFormat) -> LoggedRequest:
    """
    Return the request that a line holds.

    Raises:
        BadLine: the line is no row of this format, or holds no prompt.
        SkippedLine: the row is about something else.
    """
    try:
        return _READERS[log_format](scan(line), number)
    except BodyError as error:
        raise BadLine(fault_of(error)) from None


def _read_body(row: Document, number: int) -> LoggedRequest:
    return _logged(row, number, None, None)


def _read_batch(row: Document, number: int) -> LoggedRequest:
    member = row.members.get("body")
    if member is None:
        raise BadLine("body: nothing is not allowed; allowed: the body of a request")
    path = _text(row, ("url",))
    if path is not None and path not in INSPECTED_PATHS:
        raise SkippedLine
    return _logged(scan(_raw(row, member.value_span)), number, path, row)


def _read_litellm(row: Document, number: int) -> LoggedRequest:
    if (_text(row, ("call_type",)) or "").removeprefix("a").startswith(OTHER_CALLS):
        raise SkippedLine
    request = row.members.get("proxy_server_request")
    sent = _object(row, request.value_span) if request else None
    if sent is not None and "body" in sent.members:
        sent = _object(sent, sent.members["body"].value_span)
    if sent is not None and sent.members.keys() & PATHS.keys():
        return _logged(sent, number, None, row)
    return _logged(_put_together(row, "messages"), number, None, row)


def _read_langfuse(row: Document, number: int) -> LoggedRequest:
    kind = row.members.get("type")
    if kind is not None and _raw(row, kind.value_span) != GENERATION:
        raise SkippedLine
    if "input" not in row.members:
        raise BadLine("input: nothing is not allowed; allowed: messages, or a body that has some")
    sent = _object(row, row.members["input"].value_span)
    if sent is not None and sent.members.keys() & PATHS.keys():
        return _logged(sent, number, None, row)
    return _logged(_put_together(row, "input"), number, None, row)


_READERS: Final[Mapping[LogFormat, Callable[[Document, int], LoggedRequest]]] = {
    LogFormat.BODIES: _read_body,
    LogFormat.BATCH: _read_batch,
    LogFormat.LITELLM: _read_litellm,
    LogFormat.LANGFUSE: _read_langfuse,
}


def _logged(body: Document, number: int, path: str | None, row: Document | None) -> LoggedRequest:
    named = next((PATHS[name] for name in PATHS if name in body.members), None)
    if named is None:
        raise BadLine(f"body: a request without a prompt is not allowed; allowed: {one_of(PATHS)}")
    return LoggedRequest(
        number=number,
        path=path or named,
        document=body,
        session=_text(row, SESSION_KEYS),
        tenant=_text(row, TENANT_KEYS),
    )


def _put_together(row: Document, name: str) -> Document:
    """Return a body of the row's messages and tools, of the bytes that they have there."""
    member = row.members.get(name)
    raw = None if member is None else _json(row, member.value_span)
    if raw is None or raw[:1] not in (b"[", b'"'):
        raise BadLine(f"{name}: something else is not allowed; allowed: a list of messages, or a prompt")
    fields = [b'"messages":' + raw if raw.startswith(b"[") else b'"prompt":' + raw]
    model = row.members.get("model")
    if model is not None:
        fields.insert(0, b'"model":' + _raw(row, model.value_span))
    if (tools := next(_tools(row), None)) is not None:
        fields.append(b'"tools":' + tools)
    return scan(b"{" + b",".join(fields) + b"}")


def _tools(row: Document) -> Iterator[bytes]:
    if (beside := row.members.get("tools")) is not None:
        yield from _list(row, beside.value_span)
    for place in TOOL_PLACES:
        member = row.members.get(place)
        held = _object(row, member.value_span) if member else None
        if held is not None and "tools" in held.members:
            yield from _list(held, held.members["tools"].value_span)


def _list(document: Document, span: Span) -> Iterator[bytes]:
    raw = _json(document, span)
    if raw is not None and raw.startswith(b"["):
        yield raw


def _object(document: Document, span: Span) -> Document | None:
    """Return an object within a row, whether it is there as such or as text; None if it is something else."""
    raw = _json(document, span)
    if raw is None or not raw.startswith(b"{"):
        return None
    return scan(raw)


def _json(document: Document, span: Span) -> bytes | None:
    """Return JSON within a row: its bytes, or those of the text that it is kept as."""
    raw = _raw(document, span)
    if not raw.startswith(b'"'):
        return raw
    text = value(document, span)
    inner = text.strip().encode(errors="surrogatepass")
    return inner if inner[:1] in (b"{", b"[") else raw


def _text(row: Document | None, keys: tuple[str, ...]) -> str | None:
    """Return the first of a row's members that is a text."""
    if row is None:
        return None
    held = [row.members[key].value_span for key in keys if key in row.members]
    texts = (value(row, span) for span in held)
    return next((text for text in texts if isinstance(text, str) and text), None)


def _raw(document: Document, span: Span) -> bytes:
    return document.body[span.start : span.end]
