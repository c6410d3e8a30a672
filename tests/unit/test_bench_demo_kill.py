"""The kill switch under load, as the demonstration engages it."""

import asyncio
import io
import itertools
import json
from typing import Any

import httpx
import httpx2
import pytest

from bench.demo.client import Asker
from bench.demo.kill import CLIENTS, KillSwitch, kill_under_load
from bench.demo.progress import Progress
from bench.demo.rows import Arm, Phase, Row
from bench.demo.summary import kill_figures
from bench.demo.workload import Question, Turn, Workload
from sternpost_core.clock import Clock, SystemClock
from sternpost_core.errors import OperatingError
from sternpost_core.kill import KillLevel
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.demo_api import answered, make_target

WORKLOAD = Workload("Be brief.", (Question("q", (Turn("user", "Where is it?"),)),))


class Gateway:
    """Reads the suffix store unless killed; `returns` says whether it does again afterwards."""

    def __init__(self, *, returns: bool = True, clock: FakeClock | None = None) -> None:
        self.levels: list[str] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._returns = returns
        self._clock = clock

    async def chat(self, request: httpx2.Request) -> httpx2.Response:
        """Answer a question; clients whose answers took no time at all would leave none to the switch."""
        await asyncio.sleep(0.02)
        if self._clock:
            self._clock.advance(1.0)
        reads = not self.levels or (self.levels[-1] == "None" and self._returns)
        return answered(suffix=900 if reads else 0)

    def admin(self, request: httpx.Request) -> httpx.Response:
        """Take a kill level."""
        self.calls.append((request.headers["authorization"], json.loads(request.content)))
        self.levels.append(self.calls[-1][1]["level"])
        return httpx.Response(200, json={})


def make_asker(clock: Clock) -> Asker:
    """Return an asker of one question."""
    rows: list[Row] = []
    return Asker(WORKLOAD, Progress(clock, clock.monotonic(), io.StringIO()), rows.append)


def make_switch(handler: Any) -> KillSwitch:
    """Return a switch whose calls `handler` answers."""
    http = httpx.AsyncClient(transport=httpx.MockTransport(handler))
    return KillSwitch(http, "http://gateway.test", "secret")


async def test_reads_stop_with_the_switch_and_return_after_it() -> None:
    """Clients ask throughout; no read begins after the answer, and reads return once it is taken back."""
    gateway = Gateway()
    target = make_target(Arm.STERNPOST, gateway.chat)
    asker = make_asker(SystemClock())
    # The client's first request loads modules, and would take up the time of the load.
    await asker.ask(target, Phase.WARM_UP, WORKLOAD.questions[0])

    run = await kill_under_load(
        asker, target, make_switch(gateway.admin), itertools.count(1), load_seconds=1.0
    )

    figures = kill_figures(run)
    assert ["NoSuffixReads", "None"] == gateway.levels
    assert figures.requests >= 2 * CLIENTS
    assert figures.last_read is not None
    assert (True, 0, 0) == (figures.last_read < 0, figures.reads_after, figures.failed)
    assert figures.returned is not None


async def test_reads_that_do_not_return_are_waited_for_no_longer_than_the_limit() -> None:
    """The last wait is bounded, and its end without a read is no error but a finding."""
    clock = FakeClock()
    gateway = Gateway(returns=False, clock=clock)
    target = make_target(Arm.STERNPOST, gateway.chat)

    run = await kill_under_load(
        make_asker(clock), target, make_switch(gateway.admin), itertools.count(1), load_seconds=0.01
    )

    returning = [row for row in run.rows if row.phase is Phase.RETURN]
    assert 30 == len(returning)
    assert 0 == sum(row.suffix_tokens for row in returning)


async def test_switch_names_level_reason_and_bearer() -> None:
    """The level is for all policies, says who asks, and carries the token."""
    gateway = Gateway()

    await make_switch(gateway.admin).engage(KillLevel.NO_SUFFIX_READS)

    expected = ("Bearer secret", {"level": "NoSuffixReads", "policy": None, "reason": "make demo"})
    assert [expected] == gateway.calls


async def test_refused_switch_ends_the_demonstration() -> None:
    """A kill switch that is not taken is an error, and the clients stop asking."""
    gateway = Gateway()
    switch = make_switch(lambda request: httpx.Response(403))

    with pytest.raises(OperatingError, match="kill level NoSuffixReads: the gateway did not take it"):
        await kill_under_load(
            make_asker(SystemClock()),
            make_target(Arm.STERNPOST, gateway.chat),
            switch,
            itertools.count(1),
            load_seconds=0.1,
        )
