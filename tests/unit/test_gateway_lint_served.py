"""The proposed policy in a whole gateway: engines get the very bodies that lint has tried."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import RunningGateway, running_gateway
from sternpost_fakes.lint_logs import logged, report_of, write_log
from sternpost_gateway.bench.agents import agent_bodies
from sternpost_gateway.lint.command import write_policy
from sternpost_gateway.lint.rewrite import Rewriter, Rewritten

REQUESTS = 200
"""Enough for a template to be judged by."""

TRIES_MAX = 50
"""Of the first request, until the gateway knows the engine's template."""

ADDED = ("cache_salt", "kv_transfer_params", "stream_options")
"""What the gateway sets for the engine, beside the prompt."""


@pytest.mark.parametrize("plain_engine", [True, False], ids=["in-front", "by-the-suffix-store"])
async def test_engines_get_what_was_tried(tmp_path: Path, plain_engine: bool) -> None:
    """Tools pinned, lines moved, rules in their place: in every byte of every request, in the log's order."""
    bodies = list(agent_bodies(REQUESTS, 9, model="qwen"))
    report = report_of(write_log(tmp_path / "log", bodies), plain_engine=plain_engine)
    assert report.policy is not None
    write_policy(report.policy, tmp_path / "policy.yaml")
    rewriter = Rewriter(report.policy, takes_later_system=True)
    tried = [rewriter.rewrite(logged(body, number + 1)) for number, body in enumerate(bodies)]
    policy = (tmp_path / "policy.yaml").read_text()
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url], policy=policy) as gateway:
        await _until_template_is_known(gateway, engine, bodies[0], tried[0])
        for body in bodies:
            answer = await gateway.client.post("/v1/chat/completions", content=body)
            assert 200 == answer.status_code, answer.text
        sent = [_prompt(chat.body) for chat in engine.chats[-REQUESTS:]]

    assert [_prompt(one.document.body) for one in tried] == sent
    assert {"Pin", "RequestId", "Tail", "Timestamp"} == {fix.name for fix in report.fixes}


async def _until_template_is_known(
    gateway: RunningGateway, engine: FakeEngine, body: bytes, tried: Rewritten
) -> None:
    """Send the first request until the gateway has asked the engine about its chat template."""
    for _ in range(TRIES_MAX):
        await gateway.client.post("/v1/chat/completions", content=body)
        if _prompt(engine.chats[-1].body) == _prompt(tried.document.body):
            return
        await asyncio.sleep(0.02)


def _prompt(body: bytes) -> list[tuple[str, Any]]:
    """Return a body's members in their order, without what the gateway adds for the engine."""
    pairs: list[tuple[str, Any]] = json.loads(body, object_pairs_hook=list)
    return [pair for pair in pairs if pair[0] not in ADDED]
