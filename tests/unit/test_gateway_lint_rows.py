"""The request in each row of a log, byte for byte where the log has kept it so."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_gateway.lint.request import BadLine, LogFormat, LoggedRequest, SkippedLine
from sternpost_gateway.lint.rows import detect_format, read_row

BODY = '{"model": "m",  "messages": [{"role":"user", "content": "a\\u00e9 1.0"}], "n": 1e0}'
"""A body that no JSON writer would write like this."""

MESSAGES = '[{"content": "b",  "role": "user"}]'
TOOLS = '[{"type": "function",  "function": {"name": "t"}}]'

WITH_TOOLS = f'{{"tools": {TOOLS}}}'
CHAT = "/v1/chat/completions"


def row(**members: Any) -> bytes:
    """Return a row; a text that begins like JSON stands in it as it is."""
    fields = (f"{json.dumps(name)}: {_raw(found)}" for name, found in members.items())
    return ("{" + ", ".join(fields) + "}").encode()


def _raw(found: Any) -> str:
    return found if isinstance(found, str) and found.startswith(("{", "[")) else json.dumps(found)


def quoted(text: str) -> str:
    """Return a text as the JSON string that logs keep bodies as."""
    return json.dumps(text)


@pytest.mark.parametrize(
    ("line", "log_format", "path", "body"),
    [
        pytest.param(BODY.encode(), LogFormat.BODIES, CHAT, BODY, id="chat"),
        pytest.param(
            b'{"prompt": "a"}', LogFormat.BODIES, "/v1/completions", '{"prompt": "a"}', id="completions"
        ),
        pytest.param(b'{"input": "a"}', LogFormat.BODIES, "/v1/responses", '{"input": "a"}', id="responses"),
        pytest.param(
            row(custom_id="1", method="POST", url=CHAT, body=BODY),
            LogFormat.BATCH,
            CHAT,
            BODY,
            id="batch",
        ),
        pytest.param(
            row(proxy_server_request=f'{{"url": "u", "body": {BODY}}}', call_type="acompletion"),
            LogFormat.LITELLM,
            CHAT,
            BODY,
            id="litellm-callback",
        ),
        pytest.param(
            f'{{"call_type": "acompletion", "proxy_server_request": {quoted(BODY)}}}'.encode(),
            LogFormat.LITELLM,
            CHAT,
            BODY,
            id="litellm-spend-log-as-text",
        ),
        pytest.param(
            row(call_type="acompletion", model="m", messages=MESSAGES, model_parameters=WITH_TOOLS),
            LogFormat.LITELLM,
            CHAT,
            f'{{"model":"m","messages":{MESSAGES},"tools":{TOOLS}}}',
            id="litellm-payload",
        ),
        pytest.param(
            row(traceId="t", type="GENERATION", model="m", input=MESSAGES),
            LogFormat.LANGFUSE,
            CHAT,
            f'{{"model":"m","messages":{MESSAGES}}}',
            id="langfuse-messages",
        ),
        pytest.param(
            row(traceId="t", type="GENERATION", input=BODY),
            LogFormat.LANGFUSE,
            CHAT,
            BODY,
            id="langfuse-body",
        ),
        pytest.param(
            row(traceId="t", type="GENERATION", input="just words"),
            LogFormat.LANGFUSE,
            "/v1/completions",
            '{"prompt":"just words"}',
            id="langfuse-prompt",
        ),
    ],
)
def test_the_body_is_what_the_row_holds(line: bytes, log_format: LogFormat, path: str, body: str) -> None:
    """The format is recognised, and spacing, spelling and order survive."""
    request = read_row(line, 7, log_format)

    assert log_format is detect_format(line)
    assert (7, path, body.encode()) == (request.number, request.path, request.document.body)


@pytest.mark.parametrize(
    ("line", "log_format", "reason"),
    [
        pytest.param(b"{", LogFormat.BODIES, "byte", id="cut"),
        pytest.param(b"[1]", LogFormat.BODIES, "a JSON object", id="a-list"),
        pytest.param(b'{"a": 1}', LogFormat.BODIES, "allowed: messages, ", id="no-prompt"),
        pytest.param(b'{"custom_id": "1"}', LogFormat.BATCH, "body: nothing", id="batch-without-body"),
        pytest.param(
            b'{"custom_id": "1", "body": 3}', LogFormat.BATCH, "a JSON object", id="batch-of-a-number"
        ),
        pytest.param(b'{"call_type": "a"}', LogFormat.LITELLM, "messages:", id="litellm-without-messages"),
        pytest.param(
            b'{"call_type": "a", "messages": 3}', LogFormat.LITELLM, "messages:", id="litellm-of-a-number"
        ),
        pytest.param(b'{"traceId": "t"}', LogFormat.LANGFUSE, "input: nothing", id="langfuse-without-input"),
    ],
)
def test_a_bad_line_is_refused_with_its_reason(line: bytes, log_format: LogFormat, reason: str) -> None:
    """The reason names the key and what is allowed."""
    with pytest.raises(BadLine, match=reason):
        read_row(line, 1, log_format)


@pytest.mark.parametrize(
    ("line", "log_format"),
    [
        pytest.param(row(traceId="t", type="SPAN", input=BODY), LogFormat.LANGFUSE, id="langfuse-span"),
        pytest.param(
            row(custom_id="1", url="/v1/embeddings", body='{"input": "a"}'),
            LogFormat.BATCH,
            id="batch-of-embeddings",
        ),
        pytest.param(row(call_type="aembedding", messages="a"), LogFormat.LITELLM, id="litellm-embedding"),
        pytest.param(row(call_type="rerank", messages="a"), LogFormat.LITELLM, id="litellm-rerank"),
    ],
)
def test_what_is_for_no_prompt_is_skipped(line: bytes, log_format: LogFormat) -> None:
    """Logs keep much beside the requests for prompts, and none of that is bad."""
    with pytest.raises(SkippedLine):
        read_row(line, 1, log_format)


@pytest.mark.parametrize(
    ("members", "session", "tenant"),
    [
        pytest.param({"session_id": "s", "api_key": "k"}, "s", "k", id="both"),
        pytest.param({"trace_id": "t", "team_id": ""}, "t", None, id="an-empty-one-is-none"),
        pytest.param({"session_id": 7}, None, None, id="a-number-is-none"),
    ],
)
def test_rows_name_session_and_tenant(
    members: dict[str, Any], session: str | None, tenant: str | None
) -> None:
    """What is not there stays open."""
    request = read_row(row(call_type="a", messages=MESSAGES, **members), 1, LogFormat.LITELLM)

    assert (session, tenant) == (request.session, request.tenant)


@pytest.mark.parametrize("line", [b"", b"{", b"7", b'{"a": 1}', b'"text"', b"\xff"])
def test_an_unknown_row_has_no_format(line: bytes) -> None:
    """Nothing is guessed of what is no row."""
    assert detect_format(line) is None


@given(st.binary(max_size=200), st.sampled_from(list(LogFormat)))
def test_no_line_ends_in_anything_but_a_request_or_a_reason(line: bytes, log_format: LogFormat) -> None:
    """Whatever a log holds, reading it goes on."""
    with suppress(BadLine, SkippedLine):
        assert isinstance(read_row(line, 1, log_format), LoggedRequest)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["body", "messages", "prompt", "input", "proxy_server_request", "tools", "type", "model"]
)


@given(st.dictionaries(KEYS, JSON, max_size=6), st.sampled_from(list(LogFormat)))
def test_no_row_ends_in_anything_but_a_request_or_a_reason(
    members: dict[str, Any], log_format: LogFormat
) -> None:
    """The same with the keys that are looked for, and anything behind them."""
    with suppress(BadLine, SkippedLine):
        assert isinstance(read_row(json.dumps(members).encode(), 1, log_format), LoggedRequest)
