"""What must hold in every simulated run, whatever goes wrong; each check returns what does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from sternpost_core.hint import Operation
from sternpost_core.kill import KillLevel
from sternpost_fakes.sim_faults import FaultKind
from sternpost_gateway.cold_limiter import ColdLimits
from sternpost_gateway.pipeline import Parts

if TYPE_CHECKING:
    from sternpost_fakes.sim_run import Run

OUTCOMES = frozenset({"whole", "cut", "left", "429", "500", "502", "503", "504"})
"""How a request may end: "hung" is none of them."""

OBEYED_SECONDS = 0.01
"""Within which a level that came over HTTP or by a watch must be obeyed."""

POLLED_SECONDS = 7.0
"""Within which a level must be obeyed whose watch is silent."""

TOKENS_NONE = 1e-6
"""Sums of floating point numbers that ought to be zero may be this large."""


def violations(run: Run) -> list[str]:
    """Return everything that does not hold."""
    return [
        *ends(run),
        *attempts(run),
        *left_behind(run),
        *run.overfull[:3],
        *read_after_kill(run),
        *epochs_going_back(run),
        *shared_salts(run),
        *double_builds(run),
        *demoted_for_nothing(run),
    ]


def ends(run: Run) -> Iterator[str]:
    """Each request ends once, in one of the ways that a request may end in."""
    for told in run.told:
        if told.outcome not in OUTCOMES:
            yield f"request {told.ask.number} ended as {told.outcome}"
    if len(run.told) != len(run.plan.asks):
        yield f"{len(run.plan.asks) - len(run.told)} requests never began"


def attempts(run: Run) -> Iterator[str]:
    """No request reaches engines more than twice, or again after the first byte of an answer."""
    arrivals = Counter(seen.request_id for engine in run.engines for seen in engine.seen)
    began = Counter(seen.request_id for engine in run.engines for seen in engine.seen if seen.began)
    for request_id, count in arrivals.items():
        if count > 2 or began[request_id] > 1:
            yield f"request {request_id} arrived {count} times and was answered {began[request_id]} times"


def left_behind(run: Run) -> Iterator[str]:
    """Every count returns to zero."""
    parts = run.parts
    assert parts is not None, "the run has begun"
    admission = parts.admission
    counts: dict[str, float] = {
        "requests": admission.in_flight,
        "body bytes": admission.body_bytes,
        "retries": admission.retries,
    }
    for view in parts.fleet.views():
        counts[f"{view.engine.url} requests"] = view.in_flight
        counts[f"{view.engine.url} tokens"] = view.uncached_tokens
    for engine, limiter in parts.gate.limiters().items():
        counts[f"{engine.url} gate"] = len(limiter.active) + len(limiter.waiting)
    counts["leaders"] = parts.gate.leaders
    for name, count in counts.items():
        if abs(count) > TOKENS_NONE:
            yield f"{name} left behind: {count}"


def overfull(parts: Parts, cold: ColdLimits) -> Iterator[str]:
    """An engine's room holds what is cold, or one request alone."""
    for engine, limiter in parts.gate.limiters().items():
        tokens = [ticket.tokens for ticket in limiter.active if ticket.is_cold]
        if len(tokens) > 1 and sum(tokens) > cold.room_tokens:
            yield f"{engine.url} computes {sum(tokens):.0f} cold tokens at once"


def read_after_kill(run: Run) -> Iterator[str]:
    """Once a level counts that stops suffix reads, no engine is asked for one."""
    for number, level in enumerate(run.levels):
        if level.level is KillLevel.NONE:
            continue
        grace = OBEYED_SECONDS if level.by_http else POLLED_SECONDS
        lifted = (other.at for other in run.levels[number + 1 :] if other.by_http is level.by_http)
        until = next(lifted, float("inf"))
        for engine in run.engines:
            for seen in (*engine.seen, *engine.replays):
                reads = seen.hint is not None and seen.hint.op is Operation.READ
                if reads and level.at + grace < seen.at < until:
                    yield f"request {seen.request_id} reads {seen.at - level.at:.3f} s after {level.level}"


def epochs_going_back(run: Run) -> Iterator[str]:
    """An epoch that was seen is never followed by an earlier one, but for what was on its way."""
    seen = sorted(
        (seen.at, seen.hint.epoch) for engine in run.engines for seen in engine.seen if seen.hint is not None
    )
    for (_, earlier), (at, later) in pairwise(seen):
        if later < earlier:
            yield f"epoch {later} follows {earlier} at {at:.3f} s"


def shared_salts(run: Run) -> Iterator[str]:
    """No two tenants' requests have the same salt."""
    tenants: dict[str, set[str]] = {}
    for engine in run.engines:
        for seen in engine.seen:
            if seen.salt:
                tenants.setdefault(seen.salt, set()).add(seen.first_word)
    for names in tenants.values():
        if len(names) > 1:
            yield f"tenants share a salt: {sorted(names)}"


def demoted_for_nothing(run: Run) -> Iterator[str]:
    """No tail is demoted unless an engine's stored KV was spoilt."""
    parts = run.parts
    assert parts is not None, "the run has begun"
    demoted = parts.verdicts.demoted(run.plan.policy.full_name)
    if demoted and all(fault.kind is not FaultKind.SPOILS for fault in run.plan.faults):
        yield f"{demoted} tails are demoted, and nothing is wrong with them"


def double_builds(run: Run) -> Iterator[str]:
    """A tail is built on an engine once in ten seconds at most, unless the engine has started anew."""
    for engine in run.engines:
        last: dict[str, float] = {}
        for at, key in engine.builds:
            if at - last.get(key, float("-inf")) < 9.99:
                yield f"{engine.url} builds one tail twice within {at - last[key]:.1f} s"
            last[key] = at
