"""Whatever clients send is sent on as it is meant, or refused; nothing else ever happens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
from hypothesis import assume, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from sternpost_core.errors import BodyError
from sternpost_core.jsonspan import scan
from sternpost_core.policy import Policy
from sternpost_core.policy_match import PolicySet
from sternpost_core.tool_form import read_tool
from sternpost_fakes.fuzzing import (
    ANY_BYTES,
    CORPUS,
    FIELDS,
    MESSAGES,
    PATHS,
    SCALARS,
    SCHEMAS,
    TOOL_LISTS,
    WRITERS,
    Thinking,
    fuzz,
    fuzzed,
    spelled,
    tool_of,
)
from sternpost_fakes.gateway_parts import FakeUpstream, make_parts
from sternpost_fakes.gateway_scene import Scene, policy
from sternpost_gateway.canonicalize import RESERVED_FIELDS
from sternpost_gateway.pipeline import Pipeline
from sternpost_gateway.tool_pins import ToolPins

RULES = [
    {"name": "clock", "detect": "Timestamp", "action": "Relocate"},
    {"name": "date", "detect": "Date", "action": "Relocate"},
    {"name": "billing", "detect": "BillingHeader", "action": "Strip"},
    {"name": "ticket", "pattern": "^Ticket: [A-Z]+-[0-9]+$", "action": "Relocate"},
]
OWNED = {*RESERVED_FIELDS, "messages", "input", "prompt", "instructions", "tools"}

Writer = Callable[[Any], bytes]


def rewriting(source: str = "LastSystemMessage", layout: str = "FixedTail", *, rules: bool = True) -> Policy:
    """Return a policy that rewrites whatever it may, for every request."""
    prompt = {
        "canonicalize": "Pin",
        "layout": layout,
        "tail": {"source": source},
        "volatile": RULES if rules else [],
    }
    return policy(match={}, prompt=prompt)


POLICIES = st.builds(
    rewriting,
    st.sampled_from(["LastSystemMessage", "Marker", "Learned"]),
    st.sampled_from(["Preserve", "FixedTail", "TailFirst"]),
)


def test_any_bytes_pass_as_they_are_or_are_refused() -> None:
    """Without a policy the engine gets the very bytes, unless a reserved field has to go."""

    @fuzzed
    @given(ANY_BYTES, st.sampled_from(PATHS))
    def check(body: bytes, path: str) -> None:
        try:
            sent = Thinking().through(body, path)
        except BodyError:
            return
        fields = spelled(body)
        if RESERVED_FIELDS & fields.keys():
            fields = {name: value for name, value in fields.items() if name not in RESERVED_FIELDS}
            assert list(fields.items()) == list(spelled(sent).items())
        else:
            assert body == sent

    fuzz(check)


def test_any_bytes_survive_every_rewrite() -> None:
    """Under any policy a body is refused or sent on as a body, and what is not the gateway's stays."""

    @fuzzed
    @given(st.lists(ANY_BYTES, min_size=1, max_size=3), st.sampled_from(PATHS), POLICIES)
    def check(bodies: list[bytes], path: str, chosen: Policy) -> None:
        thinking = Thinking((chosen,))
        for body in bodies:
            try:
                sent = thinking.through(body, path)
            except BodyError:
                continue
            assert scan(sent).body == sent
            before, after = spelled(body), spelled(sent)
            kept = [(name, value) for name, value in before.items() if name not in OWNED]
            assert kept == [(name, value) for name, value in after.items() if name not in OWNED]

    fuzz(check)


def test_no_body_is_a_server_error() -> None:
    """Through the whole application the answer is the engine's, or a 400 that names the fault."""

    async def post(body: bytes, path: str, chosen: Policy) -> tuple[httpx.Response, float | None]:
        registry = CollectorRegistry()
        parts = replace(make_parts(FakeUpstream(), registry), policies=lambda: PolicySet((chosen,)))
        transport = httpx.ASGITransport(Pipeline(parts))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            answer = await client.post(path, content=body)
        await parts.builder.close()
        await parts.prompts.close()
        return answer, registry.get_sample_value("sternpost_gateway_fallthroughs_total")

    @fuzzed
    @given(ANY_BYTES, st.sampled_from(PATHS), POLICIES)
    def check(body: bytes, path: str, chosen: Policy) -> None:
        answer, fallthroughs = asyncio.run(post(body, path, chosen))
        assert answer.status_code in (200, 400)
        assert 0 == fallthroughs
        if answer.status_code == 400:
            assert "invalid_json" == answer.json()["error"]["code"]

    fuzz(check)


def intended(body: dict[str, Any], layout: str) -> dict[str, Any]:
    """Return what the engine is meant to get of a chat without tools, but for the salt."""
    messages = list(body["messages"])
    fixed = [message["role"] in ("system", "developer") for message in messages]
    opening = fixed.index(False) if False in fixed else len(fixed)
    later = [index for index in range(opening + 1, len(messages)) if fixed[index]]
    if later and layout != "Preserve":
        place = opening if layout == "TailFirst" else len(messages) - 1
        messages.insert(place, messages.pop(later[-1]))
    return {name: messages if name == "messages" else value for name, value in body.items()}


def test_edited_chat_has_the_intended_value() -> None:
    """Moving a tail is moving one element; every other value, its spelling and its order stay."""

    @fuzzed
    @given(MESSAGES, FIELDS, st.sampled_from(["Preserve", "FixedTail", "TailFirst"]), WRITERS)
    def check(messages: list[Any], fields: dict[str, Any], layout: str, write: Writer) -> None:
        # Lines that were moved before are put in no prefix, which this plain model does not know.
        assume("<system-context>" not in json.dumps(messages))
        body = {"model": "qwen", **fields, "messages": messages}
        raw = write(body)
        sent = spelled(Thinking((rewriting(layout=layout, rules=False),)).through(raw))
        added = {name: sent.pop(name) for name in ("cache_salt", "kv_transfer_params") if name in sent}

        assert list(intended(spelled(raw), layout).items()) == list(sent.items())
        assert added.get("cache_salt", "sternpost-").startswith("sternpost-")

    fuzz(check)


def test_canonical_form_is_its_own() -> None:
    """Canonicalizing what is canonical changes no byte, with whatever template and in whatever writing."""

    @fuzzed
    @given(MESSAGES, TOOL_LISTS, WRITERS, st.booleans())
    def check(messages: list[Any], tools: list[Any], write: Writer, later: bool) -> None:
        raw = write({"model": "qwen", "messages": messages, "tools": tools})
        pins = ToolPins()
        scene = Scene(body={}, raw=raw, policy=rewriting(), takes_later_system=later)
        once = scene.canonicalize(pins).document
        assert once is not None
        twice = replace(scene, raw=once.body).canonicalize(pins).document

        assert twice is not None and once.body == twice.body

    fuzz(check)


def shuffled(value: Any, data: st.DataObject, name: str = "") -> Any:
    """Return a schema in another order, wherever its order means nothing."""
    if isinstance(value, list):
        return (
            data.draw(st.permutations(value))
            if name == "required"
            else [shuffled(one, data) if name == "anyOf" else one for one in value]
        )
    if not isinstance(value, dict) or name in ("default", "enum", "x-note"):
        return value
    order = list(value) if name == "properties" else data.draw(st.permutations(list(value)))
    is_map = name in ("properties", "$defs")
    return {key: shuffled(value[key], data, "" if is_map else key) for key in order}


def test_equivalent_tools_are_one_and_others_are_not() -> None:
    """A shuffled schema is the same tool; one value, one member or the arguments' order make another."""

    @fuzzed
    @given(SCHEMAS, SCALARS, st.data(), WRITERS)
    def check(schema: dict[str, Any], value: Any, data: st.DataObject, write: Writer) -> None:
        key = key_of(tool_of("a", schema), write)
        assert key == key_of(tool_of("a", shuffled(schema, data)), write)
        assert key != key_of(tool_of("b", schema), write)
        assert key != key_of(tool_of("a", {**schema, "x-other": value}), write)
        properties = schema.get("properties")
        if isinstance(properties, dict) and len(properties) > 1:
            turned = dict(reversed(properties.items()))
            assert key != key_of(tool_of("a", {**schema, "properties": turned}), write)

    fuzz(check)


def key_of(tool: dict[str, Any], write: Writer) -> str:
    """Return the key of a tool, however it is written."""
    found = read_tool(write(tool))
    assert found is not None
    return found.key


def test_corpus_holds_every_case() -> None:
    """What is damaged is what was seen in the field."""
    assert len(CORPUS) > 20 and any(b"tool_calls" in body for body in CORPUS)
