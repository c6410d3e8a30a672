"""Engines that serve different models behind one gateway: each request goes where its model is."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import RunningGateway, running_gateway
from sternpost_gateway.model_name import HEAD_BYTES_MAX, model_in, model_of_path

JSON = b"application/json"
FORM = b"multipart/form-data; boundary=b"


def part(name: str, value: str, more: str = "") -> str:
    """Return a part of a form."""
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n'


FILE = part("file", "model", '; filename="a.wav"\r\nContent-Type: audio/wav')


@pytest.mark.parametrize(
    ("kind", "head", "expected"),
    [
        pytest.param(JSON, '{"model":"m","input":"x"}', "m", id="first"),
        pytest.param(JSON, '{"input":["a",{"model":"no"}], "model" : "m"}', "m", id="behind-others"),
        pytest.param(JSON, '{"model":"m","input":"xxx', "m", id="cut-behind"),
        pytest.param(JSON, '{"input":"model","x":"model":', None, id="only-as-text"),
        pytest.param(JSON, '{"input":"long and cut', None, id="cut-before"),
        pytest.param(JSON, '{"a":"\\\\\\"model\\":","model":"m"}', "m", id="escapes"),
        pytest.param(JSON, '{"model":7}', None, id="no-text"),
        pytest.param(JSON, '[{"model":"m"}]', None, id="list"),
        pytest.param(JSON, "", None, id="empty"),
        pytest.param(FORM, part("model", "m") + FILE, "m", id="form"),
        pytest.param(FORM, FILE + part("model", "m"), "m", id="form-behind-a-file"),
        pytest.param(FORM, FILE, None, id="form-without"),
        pytest.param(b"text/plain", "model=m", None, id="another-form"),
    ],
)
def test_model_is_found_in_the_first_bytes(kind: bytes, head: str, expected: str | None) -> None:
    """At the top level of an object, or in its part of a form, and nowhere else."""
    assert expected == model_in(kind, head.encode())


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        pytest.param(JSON, '{"input":"' + 'say \\"a\\" ' * HEAD_BYTES_MAX, id="quotes"),
        pytest.param(JSON, '{"input":"' + "\\\\" * HEAD_BYTES_MAX, id="backslashes"),
        pytest.param(JSON, "{" * HEAD_BYTES_MAX, id="braces"),
        pytest.param(FORM, "content-disposition:" * HEAD_BYTES_MAX, id="one-line"),
        pytest.param(FORM, 'content-disposition: a; name="model"\r\n' * HEAD_BYTES_MAX, id="lines"),
    ],
)
def test_whatever_comes_is_looked_through_once(kind: bytes, head: str) -> None:
    """Everybody else waits meanwhile: a text full of quotes, cut in its midst, took minutes."""
    began = time.process_time()

    assert None is model_in(kind, head.encode()[:HEAD_BYTES_MAX])
    assert time.process_time() - began < 0.5


@given(
    before=st.dictionaries(st.text().filter(lambda name: name != "model"), st.text() | st.lists(st.text())),
    model=st.text(st.characters(blacklist_characters='"\\\n', min_codepoint=32, codec="ascii"), min_size=1),
    cut=st.integers(0, 20),
)
def test_model_is_found_behind_anything(before: dict[str, Any], model: str, cut: int) -> None:
    """Whatever stands in front, and wherever the rest is cut off."""
    body = json.dumps({**before, "model": model, "input": "x" * 20}).encode()

    assert model == model_in(JSON, body[: len(body) - cut])


@given(junk=st.binary(max_size=200))
def test_nonsense_names_no_model_and_harms_nothing(junk: bytes) -> None:
    """Whatever comes, the engine is the one to refuse it."""
    assert model_in(JSON, junk) is None or b"model" in junk
    assert model_in(FORM, junk) is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/v1/models/org%2Fm", "org/m"), ("/v1/models/m", "m"), ("/v1/models", None), ("/v1/files/m", None)],
)
def test_model_is_found_in_a_path(path: str, expected: str | None) -> None:
    """What is asked about one model goes to who serves it."""
    assert expected == model_of_path(path)


@asynccontextmanager
async def two_pools(tmp_path: Path) -> AsyncIterator[tuple[RunningGateway, FakeEngine, FakeEngine]]:
    """Run a gateway in front of an engine that chats and one that embeds."""
    async with AsyncExitStack() as stack:
        chats = await stack.enter_async_context(running_engine(FakeEngine(models=("chat", "adapter"))))
        embeds = await stack.enter_async_context(running_engine(FakeEngine(models=("embed",))))
        gateway = await stack.enter_async_context(running_gateway(tmp_path, [chats.url, embeds.url]))
        async with asyncio.timeout(5):
            while len((await gateway.client.get("/v1/models")).json().get("data", ())) < 3:
                await asyncio.sleep(0.02)
        yield gateway, chats, embeds


async def test_models_of_all_engines_are_one_list(tmp_path: Path) -> None:
    """As OpenAI's client reads it; an engine that fails takes only its own models with it."""
    async with two_pools(tmp_path) as (gateway, _, embeds):
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
            listed = [model.id async for model in client.models.list()]
        await embeds.server.stop()
        left = (await gateway.client.get("/v1/models")).json()
        await embeds.server.start()

    assert {"adapter", "chat", "embed"} == set(listed)
    assert ["chat", "adapter"] == [model["id"] for model in left["data"]]


UPLOADS = [
    pytest.param("/v1/embeddings", {"json": {"model": "embed", "input": "x" * 200_000}}, id="json"),
    pytest.param("/v1/rerank", {"json": {"query": "q", "documents": ["d"], "model": "embed"}}, id="behind"),
    pytest.param(
        "/v1/audio/transcriptions",
        {"data": {"model": "embed"}, "files": {"file": ("a.wav", b"\r\n" * 100_000)}},
        id="form",
    ),
]


@pytest.mark.parametrize(("path", "content"), UPLOADS)
async def test_unread_bodies_go_where_their_model_is(
    tmp_path: Path, path: str, content: dict[str, Any]
) -> None:
    """Every time, although their bodies are streamed, and with the bytes that were sent."""
    async with two_pools(tmp_path) as (gateway, chats, embeds):
        request = gateway.client.build_request("POST", path, **content)
        body = request.read()
        for _ in range(6):
            answer = await gateway.client.post(path, content=body, headers=request.headers)
            assert 200 == answer.status_code

    assert (6, []) == (len(embeds.posts(path)), chats.posts(path))
    assert {body} == {seen.body for seen in embeds.posts(path)}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/embeddings", {"model": "unknown", "input": "x"}, id="unread"),
        pytest.param("/v1/chat/completions", {"model": "unknown", "messages": []}, id="read"),
    ],
)
async def test_model_that_nobody_serves_is_not_found(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    """In OpenAI's shape, and without asking an engine that could not know."""
    async with two_pools(tmp_path) as (gateway, chats, embeds):
        answer = await gateway.client.post(path, json=body)

    assert (404, "model_not_found", "model") == (
        answer.status_code,
        answer.json()["error"]["code"],
        answer.json()["error"]["param"],
    )
    assert [] == chats.posts(path) + embeds.posts(path)


async def test_body_without_a_model_within_the_bound_goes_to_anybody(tmp_path: Path) -> None:
    """No more than the bound is looked at, and the request is served all the same."""
    body = json.dumps({"input": "x" * 2 * HEAD_BYTES_MAX, "model": "embed"}).encode()
    async with two_pools(tmp_path) as (gateway, chats, embeds):
        answer = await gateway.client.post("/v1/embeddings", content=body)
        seen = chats.posts("/v1/embeddings") + embeds.posts("/v1/embeddings")

    assert 200 == answer.status_code and [body] == [one.body for one in seen]


async def test_engines_that_serve_the_same_speak_for_themselves(tmp_path: Path) -> None:
    """Their list of models is theirs, and so is what they say about a model that they do not know."""
    engine = FakeEngine(models=("chat",))
    async with running_engine(engine), running_gateway(tmp_path, [engine.url]) as gateway:
        listed = await gateway.client.get("/v1/models")
        await gateway.client.post("/v1/embeddings", json={"model": "unknown"})

    assert [{"id": "chat", "object": "model", "owned_by": "batch-1"}] == listed.json()["data"]
    assert 1 == len(engine.posts("/v1/embeddings"))
