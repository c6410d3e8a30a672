"""LiteLLM and LangChain, as clients, see nothing of the gateway; a real engine is for the e2e tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sternpost_fakes.engine import FakeEngine, chunk_of, running_engine
from sternpost_fakes.fake_http import Reply
from sternpost_fakes.gateway import running_gateway
from sternpost_running.other_clients import use_client

pytestmark = pytest.mark.timeout(600)


FINISH = {"index": 0, "delta": {}, "finish_reason": "stop"}


class Finishing(FakeEngine):
    """An engine whose streams say why they end, which LiteLLM waits for."""

    def _stream(self, body: Mapping[str, Any], kind: str, usage: Mapping[str, Any]) -> Reply:
        reply = super()._stream(body, kind, usage)
        chunk = chunk_of(kind, body.get("model"), [FINISH])
        words, rest = reply.pieces[: len(self.words)], reply.pieces[len(self.words) :]
        return replace(reply, pieces=(*words, b"data: " + json.dumps(chunk).encode() + b"\n\n", *rest))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["use_litellm.py", "use_langchain.py"])
async def test_other_clients_get_the_same_as_from_the_engine(tmp_path: Path, script: str) -> None:
    """Whole, streamed with usage, at once, with a tail and by a schema."""
    words = ('{"colour":', '"red"}')
    async with (
        running_engine(Finishing(words=words)) as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
    ):
        direct = await asyncio.to_thread(use_client, script, f"{engine.url}/v1", "qwen")
        through = await asyncio.to_thread(use_client, script, f"{gateway.url}/v1", "qwen")

    assert direct == through
    assert '{"colour": "red"}' == through["whole"] == through["async"]
    assert [through["prompt_tokens"]] == through["stream_usage"]
