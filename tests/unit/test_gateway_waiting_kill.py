"""A kill level that comes while a request waits counts for that request, too."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from sternpost_core.hint import Operation
from sternpost_core.kill import KillLevel
from sternpost_fakes.sim_client import Ask
from sternpost_fakes.sim_faults import Fault, FaultKind
from sternpost_fakes.sim_run import Plan, simulate, words
from sternpost_gateway.metrics import Metrics


def test_request_that_waits_obeys_a_kill() -> None:
    """A long prompt is at the gate when reads are switched off: its engine leaves the store alone."""

    def ask(number: int, at: float) -> Ask:
        return Ask(
            number=number,
            at=at,
            tenant="acme",
            session=f"s{number}",
            system=words("s", 20),
            user=words(f"u{number}", 2500),
            tail=words("t", 40),
        )

    kill = Fault(FaultKind.KILL_HTTP, 10.2, 50.0, 0, KillLevel.NO_SUFFIX_READS)
    plan = Plan(seed=1, asks=[ask(0, 1.0), ask(1, 10.0), ask(2, 10.05)], faults=[kill], engines=1)
    run = simulate(plan, Metrics(CollectorRegistry()))
    last = run.engines[0].seen[-1]

    assert ["whole"] * 3 == [told.outcome for told in run.told]
    assert last.at > 10.3 and last.hint is not None
    assert Operation.OFF is last.hint.op
