"""What the engines of a pool say about the reuse of tails: `GET /sternpost/v1/info` on each pod."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

import httpx

from sternpost_core.hint import HINT_VERSION
from sternpost_core.text import shorten

INFO_PATH: Final = "/sternpost/v1/info"
REASON_LENGTH_MAX: Final = 128


class Reuse(StrEnum):
    """What an engine says about the reuse of tails."""

    READY = "Ready"
    UNSUPPORTED = "Unsupported"
    ABSENT = "Absent"
    OFF = "Off"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Said:
    """An engine's answer, and why it reuses nothing where it does not."""

    reuse: Reuse
    reason: str = ""


class EngineProbe(Protocol):
    """Asks engines; a question that fails is an answer, too."""

    async def ask(self, addresses: Mapping[str, str]) -> dict[str, Said]:
        """Return what each engine says, by the names of `addresses`, whose values are base URLs."""


class HttpProbe:
    """Asks over HTTP, several engines at once; `client` decides about the network."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ask(self, addresses: Mapping[str, str]) -> dict[str, Said]:
        """Return what each engine says."""
        said = await asyncio.gather(*(self._ask_one(url) for url in addresses.values()))
        return dict(zip(addresses, said, strict=True))

    async def _ask_one(self, url: str) -> Said:
        try:
            response = await self._client.get(url + INFO_PATH)
        except httpx.HTTPError as error:
            return Said(Reuse.UNKNOWN, f"no answer: {type(error).__name__}")
        if response.status_code == httpx.codes.NOT_FOUND:
            return Said(Reuse.ABSENT, "vLLM without the plugin")
        return read_info(response.status_code, _json(response))


def read_info(status: int, answer: object) -> Said:
    """Return what an answer means; one that is not understood means that nothing is known."""
    if not isinstance(answer, Mapping) or status != httpx.codes.OK or answer.get("v") != HINT_VERSION:
        return Said(Reuse.UNKNOWN, f"an answer that cannot be understood, with status {status}")
    if answer.get("supported") is True:
        return Said(Reuse.READY)
    return Said(Reuse.UNSUPPORTED, shorten(str(answer.get("reason") or ""), REASON_LENGTH_MAX))


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None
