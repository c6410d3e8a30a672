"""Layout TailFirst through a whole gateway: the tail is moved to the front, and that is all."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import SUPPORT_POLICY, RunningGateway, running_gateway

POLICY = SUPPORT_POLICY.replace("FixedTail", "TailFirst")
SYSTEM = b'{"role":"system","content":"You help sailors ."}'
TAIL = b'{ "content" : "rules \\u00e9 \\/ %s", "role": "system", "x": 1.0 }' % (b"rule " * 300)


def question(text: str) -> bytes:
    """Return a user's message."""
    return json.dumps({"role": "user", "content": text}).encode()


def chat(*messages: bytes) -> bytes:
    """Return a chat of messages as they are sent."""
    return b'{"messages": [' + b",\n  ".join(messages) + b'], "model":"qwen", "seed": 9007199254740993}'


async def ask(gateway: RunningGateway, *messages: bytes) -> httpx.Response:
    """Ask and return the answer."""
    response = await gateway.client.post(
        "/v1/chat/completions", content=chat(*messages), headers={"x-tenant-id": "acme"}
    )
    assert 200 == response.status_code, response.text
    return response


async def test_tail_is_moved_verbatim_and_nothing_else_changes(tmp_path: Path) -> None:
    """Each message arrives byte for byte; only the tail's place is another, and the salt is there."""
    ahoy, north = question("Ahoy"), question("Where is north ?")
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url], policy=POLICY) as gateway:
        await ask(gateway, SYSTEM, ahoy, TAIL, north)
        sent = engine.chats[0].body
        salt = json.dumps(json.loads(sent)["cache_salt"]).encode()

    assert chat(SYSTEM, TAIL, ahoy, north)[:-1] + b',"cache_salt":' + salt + b"}" == sent


async def test_answer_says_what_was_done(tmp_path: Path) -> None:
    """Versions are told, no reuse of the suffix store is promised, and nothing is built."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url], policy=POLICY) as gateway:
        response = await ask(gateway, SYSTEM, question("Ahoy"), TAIL)
        headers = {
            name: response.headers[f"x-sternpost-{name}"] for name in ("version", "reuse", "bypass", "policy")
        }
        counted = gateway.metric(
            "sternpost_gateway_bypasses_total", policy="agents/support", reason="tail_first"
        )

    assert {
        "version": "prefix=v1,tail=v1",
        "reuse": "0",
        "bypass": "tail_first",
        "policy": "agents/support",
    } == headers
    assert (1, []) == (counted, engine.builds)


async def test_prompts_share_prefix_and_tail(tmp_path: Path) -> None:
    """What the engine's prefix cache can hold reaches to the tail's end, whatever the middle."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url], policy=POLICY) as gateway:
        await ask(gateway, SYSTEM, question("Where is north ?"), TAIL)
        await ask(gateway, SYSTEM, question("And south ?"), question("Please ?"), TAIL, question("Well ?"))
        prompts = [rendered(engine, seen.body) for seen in engine.chats]
        fixed = rendered(engine, chat(SYSTEM, TAIL), end=False)

    assert fixed == prompts[0][: len(fixed)] == prompts[1][: len(fixed)]


def rendered(engine: FakeEngine, body: bytes, *, end: bool = True) -> list[int]:
    """Return a chat's tokens, without the opening of the answer unless `end`."""
    return engine.render({**json.loads(body), "add_generation_prompt": end})
