"""Runs in virtual time, each drawn from a seed: whatever goes wrong, what must hold does hold."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from sternpost_core.policy import Isolation
from sternpost_core.policy_match import PolicySet
from sternpost_fakes.sim_checks import violations
from sternpost_fakes.sim_run import POLICY, drawn_plan, simulate
from sternpost_gateway.cold_gate import ColdGate, Entry, Pass
from sternpost_gateway.cold_limiter import ColdLimits
from sternpost_gateway.kills import KillTable
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.pipeline import Parts
from sternpost_gateway.router import Routed

SEEDS = int(os.environ.get("STERNPOST_SIM_SEEDS", "1000"))
"""Runs of all blocks together; a night has time for more."""

BLOCKS = 20
"""Tests that the runs are spread over."""

PLANTED_SEEDS = 60
"""Runs within which each planted fault must be found."""

DIGEST_COMMAND = """
import logging
from prometheus_client import CollectorRegistry
from sternpost_fakes.sim_run import drawn_plan, simulate
from sternpost_gateway.metrics import Metrics
logging.disable(logging.CRITICAL)
print(simulate(drawn_plan(7), Metrics(CollectorRegistry())).digest())
"""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Faults are what these tests are about: nobody needs to read of each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    """Return metrics for all runs: making them takes as long as a run."""
    return Metrics(CollectorRegistry())


@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_must_hold_does_hold(block: int, metrics: Metrics) -> None:
    """Each run of the block ends with every request answered and every count at zero."""
    seeds = range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS)
    found = {seed: violations(simulate(drawn_plan(seed), metrics)) for seed in seeds}

    assert {} == {seed: faults for seed, faults in found.items() if faults}


@pytest.mark.parametrize("seed", [3, 17])
def test_one_seed_is_one_run(seed: int, metrics: Metrics) -> None:
    """A seed that fails can be looked into: it does the same again."""
    plan = drawn_plan(seed)

    assert simulate(plan, metrics).digest() == simulate(plan, metrics).digest()


def test_one_seed_is_one_run_in_every_process() -> None:
    """Nothing depends on how Python's own hashes are seeded."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST_COMMAND],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert 1 == len(digests)


def share_salts(parts: Parts) -> Parts:
    """Plant: all tenants share their KV."""
    tenancy = replace(POLICY.tenancy, isolation=Isolation.SHARED)
    return replace(parts, policies=lambda: PolicySet((replace(POLICY, tenancy=tenancy),)))


def ignore_kills(parts: Parts) -> Parts:
    """Plant: kill levels are not looked at."""
    return replace(parts, kills=KillTable)


def open_gates(parts: Parts) -> Parts:
    """Plant: every prompt goes through at once."""
    wide = ColdLimits(cold_tokens=200, batched_tokens=10**6, sequences=10**6)
    return replace(parts, gate=ColdGate(wide, parts.clock, parts.gate.chance))


class LeakyGate(ColdGate):
    """Plant: what is let through is never let go again."""

    async def enter(self, routed: Routed, entry: Entry) -> Pass | None:
        """Let a request through, and forget that it leaves."""
        passed = await super().enter(routed, entry)
        return passed and replace(passed, _leave=lambda: None, _computed=lambda: None)


def leak(parts: Parts) -> Parts:
    """Plant: room is never given back."""
    return replace(parts, gate=LeakyGate(parts.settings.cold, parts.clock, parts.gate.chance))


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        pytest.param(share_salts, "share a salt", id="tenants-share"),
        pytest.param(ignore_kills, "reads", id="kills-are-ignored"),
        pytest.param(open_gates, "cold tokens at once", id="gates-are-open"),
        pytest.param(leak, "left behind", id="room-leaks"),
    ],
)
def test_planted_fault_is_found(plant: Callable[[Parts], Parts], says: str, metrics: Metrics) -> None:
    """A gateway with a fault of its own does not get through."""
    runs = (simulate(replace(drawn_plan(seed), change=plant), metrics) for seed in range(PLANTED_SEEDS))
    found = (fault for run in runs for fault in violations(run))

    assert any(says in fault for fault in found)
