"""
Fuzzing: properties tried for as long as there is time, and the inputs that they are tried on.

`STERNPOST_FUZZ_SECONDS` is the time for all properties together; without it each is tried on one round.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from sternpost_core.jsonspan import scan
from sternpost_core.policy import Policy
from sternpost_core.policy_match import PolicySet
from sternpost_fakes.cases import CASES, case
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway_scene import ENGINE, READY, SECRET
from sternpost_gateway.compose import compose
from sternpost_gateway.engine_api import EngineApi
from sternpost_gateway.findings import Findings
from sternpost_gateway.identify import identify
from sternpost_gateway.kills import KillTable
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.observe import Observer
from sternpost_gateway.pipeline import decide
from sternpost_gateway.prompt_blocks import blocks_of
from sternpost_gateway.prompts import Prompts, make_prompts
from sternpost_gateway.receive import CHAT_PATH, COMPLETIONS_PATH, RESPONSES_PATH, Received
from sternpost_gateway.settings import Settings
from sternpost_gateway.tails import Tails
from sternpost_gateway.versions import Versions

PATHS: Final = (CHAT_PATH, RESPONSES_PATH, COMPLETIONS_PATH)

PROPERTIES: Final = 6
"""The properties that share the time."""

ROUND: Final = 100
"""Inputs of one round; each round begins from another seed."""

fuzzed = settings(
    max_examples=ROUND,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
"""How a property is tried in one round."""


def fuzz(check: Callable[[], object]) -> None:
    """Try a property, round after round, for its share of the time; once at least."""
    seconds = float(os.environ.get("STERNPOST_FUZZ_SECONDS", "0")) / PROPERTIES
    deadline = time.monotonic() + seconds
    check()
    while time.monotonic() < deadline:
        check()


def _prompts() -> Prompts:
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(500)))
    timeouts = Settings(policies=Path("policies"), engines=(ENGINE.url,)).timeouts
    return make_prompts(EngineApi(client, timeouts), FakeClock(), Versions(None), lambda size: size / 4)


@dataclass(slots=True)
class Thinking:
    """All stages of a gateway but the network; nothing that goes wrong in them is caught."""

    policies: tuple[Policy, ...] = ()
    prompts: Prompts = field(default_factory=_prompts)
    metrics: Metrics = field(default_factory=lambda: Metrics(CollectorRegistry()))
    tails: Tails = field(default_factory=lambda: Tails(FakeClock()))

    def through(self, body: bytes, path: str = CHAT_PATH) -> bytes:
        """
        Return what the engine gets.

        Raises:
            BodyError: the body is refused.
        """
        received = Received(
            method="POST",
            path=path,
            target=path,
            headers=((b"x-session-id", b"s"), (b"x-tenant-id", b"acme")),
            request_id="id-1",
            arrived=0.0,
            has_body=False,
            document=scan(body),
        )
        identified = identify(received, PolicySet(self.policies), KillTable())
        findings = Findings(self.metrics, self.prompts.tokens)
        planned = decide(identified, self.prompts, findings, SECRET)
        blocks_of(planned)
        composed = compose(planned, ENGINE, READY, self.tails)
        Observer(self.prompts, self.metrics).observe(planned)
        assert composed.body is not None, "a body that was read is composed"
        return composed.body


CORPUS: Final = tuple(request.body for path in sorted(CASES.glob("*.json")) for request in case(path.stem))
"""The bodies of all cases."""

WRITTEN: Final = (
    rb'{|}|[|]|,|:|"|\|\u|\ud83d|\u0000|null|true|1e999|-0|NaN|"role"|"system"|"content"|"messages"|"input"|'
    rb'"prompt"|"tools"|"instructions"|"cache_salt":"x",|"prefix_cache":false,|<!-- sternpost:tail -->|'
    rb"\n<!-- sternpost:tail -->|<system-context>\n|Now: 2026-01-01 00:00:00\n"
)
TOKENS: Final = (*WRITTEN.split(b"|"), b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf")
"""What damages JSON, and what the gateway looks for in it."""


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a body of the corpus with some bytes cut, doubled, swapped or put in."""
    body = draw(st.sampled_from(CORPUS)) or b"{}"
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(body)))
        end = draw(st.integers(start, min(len(body), start + 40)))
        piece = draw(st.sampled_from([b"", body[start:end] * 2, *TOKENS]))
        body = body[:start] + piece + body[end:]
    return body


ANY_BYTES: Final = damaged() | st.binary(max_size=64)

LINES: Final = st.sampled_from(
    [
        "",
        "Be brief.",
        "Now: 2026-11-29 09:00:01",
        "on 2026-11-30",
        "x-acme-billing-header: v=1; h=0a1b2;",
        "Ticket: AB-12",
        "<system-context>",
        "</system-context>",
        "<!-- sternpost:tail -->",
        'é"\\\t\u2028',
        "😀",
    ]
)
WORDS: Final = st.lists(LINES, max_size=4).map("\n".join) | st.text(max_size=8)
PARTS: Final = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, WORDS)
    | st.builds(lambda text: {"type": "input_text", "text": text}, WORDS)
    | st.just({"type": "image_url", "image_url": {"url": "data:,"}}),
    max_size=3,
)
ROLES: Final = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
MESSAGES: Final = st.lists(
    st.builds(lambda role, content: {"role": role, "content": content}, ROLES, WORDS | PARTS | st.none())
    | st.builds(lambda role, content: {"content": content, "x_note": 7, "role": role}, ROLES, WORDS),
    max_size=6,
)
SCALARS: Final = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS
)
VALUES: Final = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
FIELDS: Final = st.dictionaries(
    st.sampled_from(["temperature", "seed", "x_new", "metadata", "stop", "response_format", "é"]),
    VALUES,
    max_size=4,
)

SCHEMA_KEYS: Final = ("type", "title", "description", "default", "enum", "x-note")
SCHEMAS: Final = st.recursive(
    st.dictionaries(st.sampled_from(SCHEMA_KEYS), SCALARS, max_size=3),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("object"),
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "required": st.lists(st.sampled_from("abc"), unique=True),
            "items": inner,
            "anyOf": st.lists(inner, max_size=2),
            "$defs": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            "additionalProperties": inner | st.booleans(),
        },
    ),
    max_leaves=6,
)


def tool_of(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool."""
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}


TOOL_LISTS: Final = st.dictionaries(st.sampled_from("abcd"), SCHEMAS, max_size=3).map(
    lambda found: [tool_of(name, schema) for name, schema in found.items()]
)

WRITERS: Final = st.sampled_from(
    [
        lambda body: json.dumps(body).encode(),
        lambda body: json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
        lambda body: json.dumps(body, indent=1).encode(),
    ]
)
"""Ways in which clients write a body."""


def spelled(raw: bytes) -> Any:
    """Return a body decoded, each number as it is spelled."""
    return json.loads(raw, parse_int=str, parse_float=str)
