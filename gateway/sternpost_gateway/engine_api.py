"""
The control calls to an engine, all off the hot path: health, info, tokenize, build and replay.

This is the only module that knows their HTTP client; its exceptions are mapped here, once. Answers are
checked before they are believed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeGuard

import httpx

from sternpost_core.errors import OperatingError
from sternpost_core.hint import HINT_FIELD, HINT_VERSION, Hint, Operation, Report, parse_report
from sternpost_gateway.fleet import Engine, Health, Info, Plugin
from sternpost_gateway.settings import Timeouts
from sternpost_gateway.tails import TailKey
from sternpost_gateway.tls import Tls
from sternpost_gateway.tokens import TailFacts

INFO_PATH: Final = "/sternpost/v1/info"
CONNECTIONS_MAX: Final = 64
"""Control connections at once, over all engines."""

MODELS_MAX: Final = 4096
"""Models of one engine, adapters included."""

TOKENS_MAX: Final = 1_000_000
"""Tokens in one answer of /tokenize: more than any context window."""


ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one answer, as many as the most tokens take; what an engine sends beyond is not kept."""


class ControlFailed(OperatingError):
    """An engine did not answer a control call, or not in a way that can be understood."""


class ControlRefused(OperatingError):
    """An engine understood a control call and refused it."""


class EngineApi:
    """
    Asks engines. `client` decides about the network, so that tests can answer in its place.

    `key_of` returns what an engine asks for from the gateway itself, None if nothing.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        timeouts: Timeouts,
        key_of: Callable[[Engine], str | None] = lambda engine: None,
    ) -> None:
        self._client = client
        self._timeouts = timeouts
        self._key_of = key_of

    async def health(self, engine: Engine) -> Health:
        """Ask for the engine's health, for as long as one probe may take."""
        try:
            response = await self._ask("GET", engine.url + "/health", self._timeouts.probe_seconds)
        except httpx.ConnectError:
            return Health.DOWN
        except (httpx.HTTPError, TimeoutError, ControlFailed):
            return Health.SILENT
        return Health.UP if response.is_success else Health.DOWN

    async def info(self, engine: Engine) -> Info:
        """
        Ask an engine who it is.

        Raises:
            ControlFailed: no understandable answer. An engine without the plugin is an answer.
        """
        response = await self._call("GET", engine, INFO_PATH, None, self._timeouts.probe_seconds)
        if response.status_code == httpx.codes.NOT_FOUND:
            return Info(plugin=Plugin.ABSENT)
        answer = _object(response)
        if not response.is_success or answer.get("v") != HINT_VERSION:
            raise ControlFailed(f"{engine.url}{INFO_PATH} answered with status {response.status_code}")
        return _info(answer)

    async def models(self, engine: Engine) -> frozenset[str]:
        """
        Return the names of the models that an engine serves.

        Raises:
            ControlFailed: no understandable answer.
        """
        names = (item.get("id") for item in await self.model_objects(engine))
        return frozenset(name for name in names if isinstance(name, str))

    async def model_objects(self, engine: Engine) -> tuple[Mapping[str, Any], ...]:
        """
        Return what an engine says about each model that it serves.

        Raises:
            ControlFailed: no understandable answer.
        """
        response = await self._call("GET", engine, "/v1/models", None, self._timeouts.probe_seconds)
        data = _object(response).get("data")
        if not response.is_success or not isinstance(data, list):
            raise ControlFailed(f"{engine.url}/v1/models answered with status {response.status_code}")
        return tuple(item for item in data[:MODELS_MAX] if isinstance(item, Mapping))

    async def tokenize(self, engine: Engine, body: bytes) -> tuple[int, ...]:
        """
        Return the token ids of a conversation.

        Raises:
            ControlRefused: the template refuses the conversation.
            ControlFailed: no understandable answer.
        """
        response = await self._call("POST", engine, "/tokenize", body, self._timeouts.control_seconds)
        if response.is_client_error:
            raise ControlRefused(f"{engine.url}/tokenize answered with status {response.status_code}")
        tokens = _object(response).get("tokens")
        if not response.is_success or not _is_tokens(tokens):
            raise ControlFailed(f"{engine.url}/tokenize answered with status {response.status_code}")
        return tuple(tokens)

    async def build(self, engine: Engine, model: bytes, key: TailKey, facts: TailFacts, hint: Hint) -> Report:
        """
        Let an engine build a tail and return what it says about it.

        Raises:
            ControlRefused, ControlFailed: it did not.
        """
        body = build_body(model, key, facts, hint)
        response = await self._call("POST", engine, "/v1/completions", body, self._timeouts.control_seconds)
        if response.is_client_error:
            raise ControlRefused(f"{engine.url}/v1/completions answered with status {response.status_code}")
        report = report_of(_object(response).get("usage"))
        if report is None:
            raise ControlFailed(f"{engine.url}/v1/completions answered without a report")
        return report

    async def complete(self, engine: Engine, path: str, body: bytes) -> Mapping[str, Any]:
        """
        Let an engine complete a prompt, unstreamed, and return its answer.

        Raises:
            ControlRefused, ControlFailed: it did not.
        """
        response = await self._call("POST", engine, path, body, self._timeouts.control_seconds)
        if response.is_client_error:
            raise ControlRefused(f"{engine.url}{path} answered with status {response.status_code}")
        if not response.is_success:
            raise ControlFailed(f"{engine.url}{path} answered with status {response.status_code}")
        return _object(response)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _call(
        self, method: str, engine: Engine, path: str, body: bytes | None, timeout_seconds: float
    ) -> httpx.Response:
        headers = {"content-type": "application/json"} if body is not None else {}
        if (key := self._key_of(engine)) is not None:
            headers["authorization"] = f"Bearer {key}"
        try:
            return await self._ask(method, engine.url + path, timeout_seconds, body, headers)
        except (httpx.HTTPError, TimeoutError) as error:
            raise ControlFailed(f"{engine.url}{path} did not answer: {type(error).__name__}") from error

    async def _ask(
        self,
        method: str,
        url: str,
        timeout_seconds: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """
        Return a whole answer; raises what the client raises, and ControlFailed where there is too much of it.

        The client's own limit is for each step: an engine that dribbles would never be done.
        """
        asking = self._client.stream(method, url, content=body, headers=headers, timeout=timeout_seconds)
        async with asyncio.timeout(timeout_seconds), asking as response:
            content = bytearray()
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > ANSWER_BYTES_MAX:
                    raise ControlFailed(f"{url} answered with more than {ANSWER_BYTES_MAX} bytes")
        return httpx.Response(response.status_code, content=bytes(content))


def control_client(tls: Tls | None = None) -> httpx.AsyncClient:
    """Return the client for control calls; it believes no environment variable about proxies."""
    hooks = [] if tls is None or tls.server_name is None else [_named(tls.server_name)]
    limits = httpx.Limits(max_connections=CONNECTIONS_MAX)
    return httpx.AsyncClient(
        limits=limits,
        trust_env=False,
        verify=True if tls is None else tls.context,
        event_hooks={"request": hooks},
    )


def _named(server_name: str) -> Callable[[httpx.Request], Awaitable[None]]:
    """Return what makes each request ask for a certificate of this name."""

    async def name(request: httpx.Request) -> None:
        request.extensions["sni_hostname"] = server_name

    return name


def build_body(model: bytes, key: TailKey, facts: TailFacts, hint: Hint) -> bytes:
    """Return a build request: scaffold and tail and nothing else, one token to sample."""
    assert hint.op is Operation.BUILD, "a build request builds"
    fields = {
        "prompt": [*facts.scaffold, *facts.tail],
        "max_tokens": 1,
        "temperature": 0,
        "cache_salt": key.salt,
        "kv_transfer_params": {HINT_FIELD: hint.to_mapping()},
    }
    return b'{"model":' + model + b"," + json.dumps(fields).encode()[1:]


def report_of(usage: object) -> Report | None:
    """Return the engine's report from an answer's usage, if there is one."""
    details = usage.get("prompt_tokens_details") if isinstance(usage, Mapping) else None
    return parse_report(details.get(HINT_FIELD)) if isinstance(details, Mapping) else None


def _info(answer: Mapping[str, Any]) -> Info:
    supported = answer.get("supported") is True
    return Info(
        plugin=Plugin.READY if supported else Plugin.UNSUPPORTED,
        batch=str(answer.get("engine", "")),
        reason=str(answer.get("reason") or ""),
        version=str(answer.get("version", "")),
        epoch=_count(answer.get("epoch")),
        tail_tokens_min=_count(answer.get("tail_tokens_min")),
        tail_tokens_max=_count(answer.get("tail_tokens_max")),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _object(response: httpx.Response) -> Mapping[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, Mapping) else {}


def _is_tokens(tokens: object) -> TypeGuard[list[int]]:
    return (
        isinstance(tokens, list)
        and len(tokens) <= TOKENS_MAX
        and all(isinstance(token, int) and token >= 0 for token in tokens)
    )
