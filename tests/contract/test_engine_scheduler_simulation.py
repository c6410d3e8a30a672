"""
vLLM's own scheduler under random load: every token's context is followed, slot by slot.

What is checked in each step: nothing is computed on KV that is not there, of another tenant, or approximate
where the request may not read that; and a row that rides along is never sampled. What is checked of each
answer: its tokens, and that the report's count is what the worker computed.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sternpost_core.hint import Reason
from sternpost_engine.index import State
from sternpost_fakes.real_scheduler import STEP_TOKENS
from sternpost_fakes.scheduler_simulation import MIDDLES, simulate

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("depth", [1, 2], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(6))
def test_every_token_is_computed_on_what_it_may_read(
    tmp_path: Path, seed: int, depth: int, policy: str
) -> None:
    """Whatever is preempted, aborted, evicted or fails; and nothing is left when all requests have ended."""
    simulation = simulate(tmp_path, seed, depth, policy)
    scheduler, side = simulation.scheduler, simulation.side

    assert [] == scheduler.running
    assert 0.0 == scheduler.kv_cache_manager.usage
    assert {State.LIVE} >= {record.state for record in side.planner.index.records()}
    assert 0 == sum(record.references for record in side.planner.index.records())
    assert len(simulation.asked) == sum(side.planner.requests.values())
    assert 0 == side.hashes.held


def test_simulation_meets_every_turn_of_a_read(tmp_path: Path) -> None:
    """A simulation in which nothing happens would prove nothing."""
    met: Counter[str] = Counter()
    for seed in range(6):
        met.update(simulate(tmp_path, seed, depth=1).met)

    expected = {
        *(reason.value for reason in (Reason.HIT, Reason.BUILT, Reason.NOT_BUILT, Reason.OFF)),
        *(reason.value for reason in (Reason.BUILDING, Reason.COPY_FAILED, Reason.PREFIX_COVERS)),
        "preemptions",
        "failed copies",
        "covered",
        "reads apart",
        "splices of long middles",
    }
    assert set() == expected - {name for name, times in met.items() if times}
    assert STEP_TOKENS < max(MIDDLES)
