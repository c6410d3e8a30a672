"""Tail reuse from end to end: learned, built once, read after any middle, and never across tenants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sternpost_fakes.engine import running_engine
from sternpost_fakes.gateway import RunningGateway, eventually, running_gateway

TAIL = " ".join(f"rule{number}" for number in range(300))


def chat(question: str, **fields: Any) -> dict[str, Any]:
    """Return a chat whose tail stands in the middle."""
    messages = [
        {"role": "system", "content": "You help sailors ."},
        {"role": "system", "content": TAIL},
        {"role": "user", "content": question},
    ]
    return {"model": "qwen", "messages": [messages[0], messages[2], messages[1]], **fields}


async def ask(gateway: RunningGateway, question: str, tenant: str = "acme", **fields: Any) -> Any:
    """Ask and return the response."""
    headers = {"x-tenant-id": tenant}
    response = await gateway.client.post(
        "/v1/chat/completions", json=chat(question, **fields), headers=headers
    )
    assert 200 == response.status_code, response.text
    return response


async def test_tail_is_built_once_and_read_afterwards(tmp_path: Path) -> None:
    """The first request finds nothing, a build follows, and the next request is predicted and reported a hit."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        first = await ask(gateway, "Where is north ?")
        await eventually(
            lambda: (
                gateway.metric("sternpost_gateway_builds_total", policy="agents/support", outcome="built")
                == 1
            )
        )
        second = await ask(gateway, "And where is south then ?")

        assert "tail_unknown" == first.headers["x-sternpost-bypass"]
        assert "x-sternpost-bypass" not in second.headers
        assert 1 == len(engine.builds)
        reported = second.json()["usage"]["prompt_tokens_details"]["sternpost"]
        assert "hit" == reported["reason"]
        assert str(reported["suffix_tokens"]) == second.headers["x-sternpost-reuse"]
