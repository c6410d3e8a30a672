"""
Setting and reading the kill levels of gateways from outside, straight at each of them.

What a gateway answers is read with suspicion: it may be of another release, or no gateway at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx

from sternpost_core.clock import Clock
from sternpost_core.kill import KillLevel
from sternpost_core.text import shorten
from sternpost_gateway.admin import KILL_PATH

DETAIL_LENGTH_MAX: Final = 200
"""How much of a gateway's own words is shown."""

ARRIVAL_PERIOD_SECONDS: Final = 0.1
"""Between two questions whether a level has arrived."""

LEVEL_NAMES: Final = frozenset(level.value for level in KillLevel)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A level to set, for a policy or for all; what is `forced` counts for every session at once."""

    level: KillLevel
    policy: str | None
    reason: str
    forced: bool = False

    def to_mapping(self) -> dict[str, Any]:
        """Return the body that asks a gateway for it."""
        body = {"level": self.level.value, "policy": self.policy, "reason": self.reason}
        # A gateway of a release that knows no force is asked for it by nobody who does not need it.
        return {**body, "force": True} if self.forced else body


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What came of asking one gateway; `at` is in Unix seconds, `seconds` is how long it took.

    `level` is what counts there now, None if the gateway did not say. `complete` says whether all is as it
    was asked for, also after a restart.
    """

    gateway: str
    at: float
    seconds: float
    level: str | None
    detail: str
    complete: bool


class KillClient:
    """Asks gateways, all at once; each has `answer_seconds` for its whole answer."""

    def __init__(self, client: httpx.AsyncClient, clock: Clock, answer_seconds: float) -> None:
        self._client = client
        self._clock = clock
        self._answer_seconds = answer_seconds

    async def ask(
        self, gateways: Sequence[str], wanted: Wanted | None, policy: str | None = None
    ) -> list[Outcome]:
        """
        Set a level at all gateways, or only ask what counts there if `wanted` is None.

        `policy` names the policy whose level is looked at, None stands for the level for all.
        """
        return list(await asyncio.gather(*(self._ask_one(gateway, wanted, policy) for gateway in gateways)))

    async def arrive(self, gateways: Sequence[str], wanted: Wanted, seconds_max: float) -> list[Outcome]:
        """
        Wait until a level that somebody else has set counts at each gateway, for `seconds_max` at most.

        An outcome is incomplete where it has not arrived.
        """
        return list(
            await asyncio.gather(*(self._arrive_at(gateway, wanted, seconds_max) for gateway in gateways))
        )

    async def _arrive_at(self, gateway: str, wanted: Wanted, seconds_max: float) -> Outcome:
        begun = self._clock.monotonic()
        while True:
            outcome = await self._ask_one(gateway, None, wanted.policy)
            waited = self._clock.monotonic() - begun
            arrived = outcome.complete and _counts(outcome.level, wanted.level)
            if arrived or waited >= seconds_max:
                return replace(outcome, seconds=waited, complete=arrived)
            await asyncio.sleep(ARRIVAL_PERIOD_SECONDS)

    async def _ask_one(self, gateway: str, wanted: Wanted | None, policy: str | None) -> Outcome:
        begun = self._clock.monotonic()
        level, detail, complete = None, "", False
        try:
            async with asyncio.timeout(self._answer_seconds):
                level, detail, complete = read_answer(await self._call(gateway, wanted), policy)
        except TimeoutError:
            detail = f"no answer within {self._answer_seconds:g} s"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            detail = f"no answer: {type(error).__name__} {error}".strip()
        return Outcome(
            gateway=gateway,
            at=self._clock.time(),
            seconds=self._clock.monotonic() - begun,
            level=level,
            detail=one_line(detail),
            complete=complete,
        )

    async def _call(self, gateway: str, wanted: Wanted | None) -> httpx.Response:
        url = gateway.rstrip("/") + KILL_PATH
        if wanted is None:
            return await self._client.get(url)
        return await self._client.post(url, json=wanted.to_mapping())


def _counts(found: str | None, wanted: KillLevel) -> bool:
    """Say whether a level counts where `found` does."""
    return found in LEVEL_NAMES and KillLevel(found) >= wanted


def one_line(text: str) -> str:
    """Return a gateway's words so that they cannot disturb the terminal."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return shorten(plain, DETAIL_LENGTH_MAX)


def read_answer(response: httpx.Response, policy: str | None) -> tuple[str | None, str, bool]:
    """Return the level that counts, what there is to say about it, and whether all is as asked for."""
    state = _object(response)
    level = state.get("level") if policy is None else _mapping(state.get("policies")).get(policy)
    if isinstance(level, str) and level in LEVEL_NAMES and response.status_code in (200, 500):
        persisted = state.get("persisted", True) is True
        note = "" if persisted else "would not survive a restart; "
        return level, note + _causes(state, policy), persisted and response.status_code == 200
    if response.status_code == 200:
        missing = f"it has no policy {policy}" if policy and "policies" in state else "no kill state"
        return None, f"answered, but {missing}", False
    message = _mapping(state.get("error")).get("message")
    return None, f"refused with {response.status_code}: {message or 'no reason given'}", False


def _causes(state: Mapping[str, Any], policy: str | None) -> str:
    """Return who says what: each source that switches something off, with the reason where one is known."""
    latches = _objects(state.get("latches"))
    sources = (item for item in _objects(state.get("sources")) if item.get("policy") == policy)
    causes = [_cause(item, latches) for item in sources if item.get("level") != KillLevel.NONE.value]
    causes += [f"{item.get('engine')} tripped: {item.get('reason')}" for item in _objects(state.get("trips"))]
    ways = (way for way in _objects(state.get("transitions")) if way.get("policy") == policy)
    causes += [f"{way.get('to')} has reached {way.get('share')}% of the sessions" for way in ways]
    fault = _mapping(_mapping(state.get("file")).get("fault"))
    causes += [f"kill file refused: {fault.get('value')}"] if fault else []
    return "; ".join(causes)


def _cause(item: Mapping[str, Any], latches: Sequence[Mapping[str, Any]]) -> str:
    """Return what a source says, with the latch that makes it say so."""
    said = f"{item.get('source')} {item.get('level')}"
    keys, policies = ("source", "level"), (item.get("policy"), None)
    made_by = [
        latch
        for latch in latches
        if all(latch.get(key) == item.get(key) for key in keys) and latch.get("policy") in policies
    ]
    return f"{said} by {made_by[0].get('by')}: {made_by[0].get('reason')}" if made_by else said


def _object(response: httpx.Response) -> Mapping[str, Any]:
    try:
        return _mapping(response.json())
    except ValueError:
        return {}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
