"""The kill switch while clients keep asking: when the last request read the suffix store, and its price."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import httpx

from bench.demo.client import Asker, Target
from bench.demo.rows import Phase, Row
from bench.demo.workload import numbered
from sternpost_core.errors import OperatingError
from sternpost_core.kill import KillLevel

CLIENTS: Final = 4
LOAD_SECONDS: Final = 20.0
"""How long the clients ask; the kill switch is engaged in the middle."""

LOAD_ANSWER_TOKENS: Final = 4
"""Short answers make requests begin often, so that the moment of the last read is known closely."""

RETURN_SECONDS_MAX: Final = 30.0
"""The time for reuse to return once the kill level is taken back."""

FAILED_PAUSE_SECONDS: Final = 0.5
"""A client whose request failed waits so long: what fails at once would fail thousands of times."""

KILL_PATH: Final = "/sternpost/v1/kill"
REASON: Final = "make demo"


@dataclass(frozen=True, slots=True)
class KillSwitch:
    """The gateway's admin path; `token` is its bearer token."""

    http: httpx.AsyncClient
    origin: str
    token: str

    async def engage(self, level: KillLevel) -> None:
        """
        Set the level for every policy.

        Raises:
            OperatingError: the gateway did not take it.
        """
        headers = {"Authorization": f"Bearer {self.token}"}
        body = {"level": level.value, "policy": None, "reason": REASON}
        try:
            response = await self.http.post(f"{self.origin}{KILL_PATH}", json=body, headers=headers)
            response.raise_for_status()
        except httpx.HTTPError as error:
            raise OperatingError(f"kill level {level}: the gateway did not take it: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRun:
    """
    What happened, in seconds since the demonstration's start.

    `engaged` is when the switch was asked for, `answered` when the API had answered, `cleared` when it had
    answered to the level's being taken back.
    """

    rows: tuple[Row, ...]
    engaged: float
    answered: float
    cleared: float


async def kill_under_load(
    asker: Asker,
    gateway: Target,
    switch: KillSwitch,
    tickets: Iterator[int],
    load_seconds: float = LOAD_SECONDS,
) -> KillRun:
    """Load the gateway, engage the switch in the middle, take it back at the end, and see reuse return."""
    progress = asker.progress
    began = progress.elapsed()
    progress.tell(f"load: {CLIENTS} clients for {load_seconds:.0f} s")
    clients = [
        asyncio.create_task(_keep_asking(asker, gateway, tickets, began + load_seconds))
        for _ in range(CLIENTS)
    ]
    try:
        await asyncio.sleep(load_seconds / 2)
        engaged = progress.elapsed()
        await switch.engage(KillLevel.NO_SUFFIX_READS)
        answered = progress.elapsed()
        progress.tell(f"kill switch engaged: answered in {(answered - engaged) * 1000:.0f} ms")
        loaded = [row for rows in await asyncio.gather(*clients) for row in rows]
    finally:
        for client in clients:
            client.cancel()
    await switch.engage(KillLevel.NONE)
    cleared = progress.elapsed()
    progress.tell("kill switch taken back")
    returning = await _ask_until_reuse(asker, gateway, tickets)
    rows = (*sorted(loaded, key=lambda row: row.started_seconds), *returning)
    return KillRun(rows=rows, engaged=engaged, answered=answered, cleared=cleared)


async def _keep_asking(asker: Asker, target: Target, tickets: Iterator[int], ends: float) -> list[Row]:
    rows: list[Row] = []
    while asker.progress.elapsed() < ends:
        question = numbered(asker.workload.questions, next(tickets))
        rows.append(await asker.ask(target, Phase.LOAD, question, LOAD_ANSWER_TOKENS))
        if rows[-1].error:
            await asyncio.sleep(FAILED_PAUSE_SECONDS)
    return rows


async def _ask_until_reuse(asker: Asker, target: Target, tickets: Iterator[int]) -> Sequence[Row]:
    rows: list[Row] = []
    ends = asker.progress.elapsed() + RETURN_SECONDS_MAX
    while asker.progress.elapsed() < ends:
        question = numbered(asker.workload.questions, next(tickets))
        rows.append(await asker.ask(target, Phase.RETURN, question, LOAD_ANSWER_TOKENS))
        if rows[-1].suffix_tokens:
            break
    return rows
