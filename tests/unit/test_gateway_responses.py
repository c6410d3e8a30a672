"""Responses and completions are rewritten as chats are, under the same rules about what must not change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sternpost_fakes.cases import CASES, MOVE_CLOCK, STRIP_BILLING, Request, case, case_policy, run
from sternpost_fakes.engine import running_engine
from sternpost_fakes.gateway import SUPPORT_POLICY, RunningGateway, eventually, running_gateway
from sternpost_fakes.gateway_scene import Scene, body_of, policy
from sternpost_gateway.bypass import Bypass
from sternpost_gateway.canonicalize import Finding
from sternpost_gateway.marker import MARKER
from sternpost_gateway.receive import COMPLETIONS_PATH, RESPONSES_PATH
from sternpost_gateway.tool_pins import ToolPins, ToolsOutcome

CLOCK = "Now: 2026-11-29 09:00:01"
MOVED = f"<system-context>\n{CLOCK}\n</system-context>\n\n"
RULES = {"role": "developer", "content": " ".join(f"rule{number}" for number in range(300))}
USER = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"b": 1, "a":2}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "  row 17\n"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}

REWRITES = {
    "canonicalize": "Pin",
    "volatile": [MOVE_CLOCK, STRIP_BILLING],
    "layout": "FixedTail",
    "tail": {"source": "LastSystemMessage"},
}


def response(**fields: Any) -> Scene:
    """Return a request for a response, under a policy that rewrites whatever it may."""
    return Scene(body={"model": "qwen", **fields}, path=RESPONSES_PATH, policy=policy(prompt=REWRITES))


def sent(scene: Scene) -> dict[str, Any]:
    """Return the body that the engine gets, without the salt."""
    body: dict[str, Any] = body_of(scene.compose())
    return {key: value for key, value in body.items() if key not in ("cache_salt", "kv_transfer_params")}


def flat(name: str, **fields: Any) -> dict[str, Any]:
    """Return a tool as a response has it."""
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    return {"type": "function", "name": name, "parameters": schema, **fields}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            {"instructions": f"{CLOCK}\nBe kind.", "input": "hi"},
            {"instructions": "Be kind.", "input": MOVED + "hi"},
            id="instructions-to-a-string",
        ),
        pytest.param(
            {"instructions": f"{CLOCK}\nBe kind.", "input": [USER]},
            {
                "instructions": "Be kind.",
                "input": [{"role": "user", "content": [{"type": "input_text", "text": MOVED + "hi"}]}],
            },
            id="instructions-to-a-part",
        ),
        pytest.param(
            {"input": [{"role": "developer", "content": f"Be kind.\n{CLOCK}"}, USER | {"content": "hi"}]},
            {"input": [{"role": "developer", "content": "Be kind."}, USER | {"content": MOVED + "hi"}]},
            id="item-to-item",
        ),
        pytest.param(
            {"instructions": "x-acme-billing-header: h=0a1b2;\nBe kind.", "input": "hi"},
            {"instructions": "Be kind.", "input": "hi"},
            id="billing-header",
        ),
        pytest.param(
            {"instructions": "Be kind.", "input": [USER, RULES, CALL, RESULT]},
            {"instructions": "Be kind.", "input": [USER, CALL, RESULT, RULES]},
            id="tail-to-the-end",
        ),
    ],
)
def test_responses_are_rewritten(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Lines leave the instructions and the leading items, and the tail goes behind the last item."""
    assert {"model": "qwen", **after} == sent(response(**before))


def test_tail_first_puts_the_tail_in_front() -> None:
    """Behind the leading items, which the instructions stand in front of anyhow."""
    first = policy(prompt={**REWRITES, "layout": "TailFirst"})
    scene = replace(response(instructions="Be kind.", input=[USER, RULES, USER]), policy=first)

    assert [RULES, USER, USER] == sent(scene)["input"]


def test_findings_name_the_instructions() -> None:
    """What is reported has the place in the client's own words."""
    rules = policy(prompt={"canonicalize": "Report"}, suffixCache=None)
    scene = replace(response(instructions=f"Be kind.\n{CLOCK}", input="hi"), policy=rules)
    items = replace(scene, body={"model": "qwen", "input": [{"role": "system", "content": CLOCK}]})

    found = [(finding.path, finding.offset) for one in (scene, items) for finding in _findings(one)]
    assert [("instructions", 9), ("input[0]", 0)] == found


def _findings(scene: Scene) -> tuple[Finding, ...]:
    return scene.canonicalize().findings


UNTOUCHED = [
    pytest.param({"input": "17:12:40 and x-acme-billing-header: h=0a1b2;"}, id="string"),
    pytest.param({"input": [USER, THOUGHT, CALL, RESULT]}, id="calls-and-reasoning"),
    pytest.param({"input": [{"role": "user", "content": CLOCK}]}, id="user"),
    pytest.param({"input": [CALL, RESULT], "instructions": CLOCK}, id="no-user-message"),
    pytest.param(
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}], "instructions": CLOCK}, id="image"
    ),
    pytest.param(
        {"input": "x", "text": {"format": {"type": "json_schema", "schema": {"z": 1, "a": 2}}}}, id="schema"
    ),
    pytest.param({"input": "x", "tools": [flat("b", strict=True), flat("a")]}, id="strict"),
    pytest.param({"input": "x", "tools": [flat("b"), flat("a")], "tool_choice": "required"}, id="required"),
    pytest.param(
        {
            "input": "x",
            "tools": [flat("b"), flat("a")],
            "tool_choice": {"type": "allowed_tools", "mode": "required"},
        },
        id="required-of-some",
    ),
    pytest.param({"input": "x", "tools": [flat("a"), flat("a")]}, id="one-name"),
    pytest.param({"input": None, "instructions": CLOCK}, id="no-input"),
    pytest.param({"input": {"role": "user"}, "instructions": [CLOCK]}, id="wrong-types"),
    pytest.param({"input": [3, None, "x", {"role": 1}], "instructions": None}, id="no-items"),
    pytest.param({}, id="nothing"),
]


@pytest.mark.parametrize("body", UNTOUCHED)
def test_what_must_not_change_does_not(body: dict[str, Any]) -> None:
    """Calls, reasoning, users' words, forms, schemas and guided tools go out as they came."""
    scene = response(**body)
    canonicalized = scene.canonicalize()

    assert canonicalized.document is not None
    assert json.dumps(scene.body).encode() == canonicalized.document.body


def test_tools_of_responses_are_pinned() -> None:
    """Another order and another spelling of a schema take the first form; another schema does not."""
    one, two = flat("b"), flat("a")
    respelled = {"parameters": dict(reversed(one["parameters"].items())), "name": "b", "type": "function"}
    pins = ToolPins()
    outcomes = [
        (result.tools, json.loads(result.document.body)["tools"])
        for tools in ([two, one], [one, two], [respelled, two], [flat("b", description="x"), two])
        if (result := response(input="x", tools=tools).canonicalize(pins)).document is not None
    ]

    assert [ToolsOutcome.SAME, *[ToolsOutcome.PINNED] * 3] == [outcome for outcome, _ in outcomes]
    assert [[two, one]] * 3 + [[two, flat("b", description="x")]] == [tools for _, tools in outcomes]


def as_response(request: Request) -> Request:
    """Return a chat of a case as the response that asks for the same."""
    return Request(request.body.replace(b'"messages":', b'"input":', 1), request.headers)


CHATS = sorted(path.stem for path in CASES.glob("*.json") if path.stem not in {"026", "030", "034"})


@pytest.mark.parametrize("name", CHATS)
async def test_default_policy_changes_no_byte_of_a_response(tmp_path: Path, name: str) -> None:
    """Every case, asked as a response, goes on as it came under a policy that only reports."""
    outcome = await run(
        tmp_path, [as_response(request) for request in case(name)], case_policy(), path=RESPONSES_PATH
    )

    assert [request.body for request in outcome.sent] == outcome.seen


async def built(gateway: RunningGateway) -> None:
    """Wait until a tail is built."""
    name = "sternpost_gateway_builds_total"
    await eventually(lambda: gateway.metric(name, policy="agents/support", outcome="built") > 0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_tail_of_a_response_is_reused(tmp_path: Path, stream: bool) -> None:
    """It is rendered as a chat, built once, and read whatever stands in front of it."""

    def body(question: str) -> dict[str, Any]:
        return {
            "model": "qwen",
            "instructions": "You help sailors .",
            "tools": [flat("chart")],
            "input": [{"role": "user", "content": question}, RULES, {"role": "user", "content": "Now ?"}],
            "stream": stream,
        }

    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await gateway.client.post(RESPONSES_PATH, json=body("Warm ?"))
        await built(gateway)
        answer = await gateway.client.post(RESPONSES_PATH, json=body("Where is north ?"))
        text = answer.text.partition("data: ")[2] if stream else answer.text
        whole = json.loads(text)
        usage = (whole["response"] if stream else whole)["usage"]

        assert int(answer.headers["x-sternpost-reuse"]) > 250
        assert int(answer.headers["x-sternpost-reuse"]) == usage["input_tokens_details"]["cached_tokens"]
        assert "prefix=v1,tail=v1" == answer.headers["x-sternpost-version"]
        assert b"stream_options" not in engine.posts(RESPONSES_PATH)[-1].body


MARKED_POLICY = SUPPORT_POLICY.replace("LastSystemMessage", "Marker")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        pytest.param(COMPLETIONS_PATH, "prompt", id="completion"),
        pytest.param(RESPONSES_PATH, "input", id="response"),
    ],
)
async def test_marked_text_is_reused(tmp_path: Path, path: str, field: str) -> None:
    """A prompt that is one string has its tail where the marker says, and keeps its bytes."""
    rules = f"{MARKER}\n{RULES['content']}"
    asked = [f"Warm ?\n{rules}", f"Where is north ?\n{rules}"]
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], policy=MARKED_POLICY) as gateway,
    ):
        await gateway.client.post(path, json={"model": "qwen", field: asked[0]})
        await built(gateway)
        answer = await gateway.client.post(path, json={"model": "qwen", field: asked[1]})
        seen = [json.loads(one.body) for one in engine.posts(path) if b'"build"' not in one.body]

        assert int(answer.headers["x-sternpost-reuse"]) > 250
        assert asked == [body[field] for body in seen]
        assert not any(b"Warm" in one.body for one in engine.builds)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param({"prompt": "no marker"}, Bypass.NO_TAIL, id="no-marker"),
        pytest.param({"prompt": f"x\n{MARKER} y", "suffix": "z"}, Bypass.TEMPLATE_OPTIONS, id="infill"),
        pytest.param({"prompt": [1, 2, 3]}, Bypass.NOT_CHAT, id="tokens"),
        pytest.param({"prompt": [f"x\n{MARKER} y"]}, Bypass.NOT_CHAT, id="several"),
    ],
)
def test_completions_without_a_tail_say_why(body: dict[str, Any], expected: Bypass) -> None:
    """Only a prompt of one string with a marker has a tail, and never one that the engine takes apart."""
    marked = policy(prompt={"layout": "FixedTail", "tail": {"source": "Marker"}})
    scene = Scene(body={"model": "qwen", **body}, path=COMPLETIONS_PATH, policy=marked)

    assert expected is scene.plan().bypass
    assert "" == scene.plan().versions or expected is Bypass.TEMPLATE_OPTIONS


@pytest.mark.parametrize("path", [RESPONSES_PATH, COMPLETIONS_PATH])
async def test_reserved_fields_never_pass(tmp_path: Path, path: str) -> None:
    """The salt is the gateway's own, whichever way the client asks."""
    body = {
        "model": "qwen",
        "input": "a",
        "prompt": "a",
        "cache_salt": "mine",
        "kv_transfer_params": {"a": 1},
    }
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await gateway.client.post(path, json=body)
        (seen,) = (json.loads(one.body) for one in engine.posts(path))

        assert seen["cache_salt"].startswith("sternpost-") and "kv_transfer_params" not in seen
