"""What is to be done about a CachePolicy: a pure function of object, pool, kill level and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sternpost_core.errors import Fault
from sternpost_core.kill import KillLevel
from sternpost_core.policy import Canonicalize, Layout, Policy, VolatileAction
from sternpost_core.policy_status import SegmentVersion, segment_versions
from sternpost_core.policy_write import to_mapping
from sternpost_operator.analysis import EVALUATE_SECONDS
from sternpost_operator.conditions import Condition, Kind, Truth, timestamp, write_conditions
from sternpost_operator.figures import Figures, figures_to_status
from sternpost_operator.plan import Event, EventType, Plan
from sternpost_operator.policy_status import (
    COMMAND_LENGTH_MAX,
    REASON_LENGTH_MAX,
    append_decisions,
    read_rollout,
    write_rollout,
)
from sternpost_operator.pool_render import digest
from sternpost_operator.resources import Object
from sternpost_operator.rollout import (
    WATCH_SECONDS,
    Action,
    Inputs,
    Order,
    Outcome,
    Phase,
    RolloutState,
    decide_rollout,
    order_of,
)
from sternpost_operator.segments import agree, write_segments
from sternpost_operator.status_size import fit

COMMAND_ANNOTATION: Final = "sternpost.dev/rollout"
"""What a person asks of a rollout: a word of `Order`; `promote:2` asks again for what `promote:1` has got."""

STEADY_SECONDS: Final = 300.0
"""Between two looks at a policy that nothing is expected of."""

STILL: Final = (Phase.OBSERVING, Phase.ABORTED, Phase.KILLED, Phase.WAITING)
"""Phases that no figures are needed in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObserved:
    """
    A CachePolicy as read, or its faults, with everything that bears on it.

    `pool` is the EnginePool as an object, None where there is none. `no_figures` says why there are none.
    `versions` are those of prefix and tail that gateways have seen.
    """

    policy: Policy | None
    faults: tuple[Fault, ...] = ()
    generation: int
    command: str = ""
    pool: Object | None = None
    kill_level: KillLevel = KillLevel.NONE
    figures: Figures | None = None
    no_figures: str = ""
    versions: tuple[SegmentVersion, ...] = ()


def decide_policy(observed: PolicyObserved, status: Mapping[str, Any], now: float) -> Plan:
    """Return what is to be done about a policy."""
    if observed.policy is None:
        return _refuse(observed, status, now)
    outcome = decide_rollout(read_rollout(status), _inputs(observed, observed.policy, now))
    conditions = _conditions(observed, outcome)
    written = {
        "observedGeneration": observed.generation,
        **_rollout_status(observed, outcome, status),
        "epoch": _epoch(observed, status),
        "conditions": write_conditions(conditions, status, observed.generation, now),
        "decisions": append_decisions(status.get("decisions"), outcome.decisions),
        **_analysis_status(observed, outcome, status, now),
        **_segments(observed, status),
    }
    return Plan(
        status=fit(written, "decisions"),
        events=(*_command_events(observed, status), *_decision_events(outcome), *_news(conditions, status)),
        again_seconds=EVALUATE_SECONDS if wants_figures(outcome.state, now) else STEADY_SECONDS,
    )


def wants_figures(state: RolloutState, now: float) -> bool:
    """Tell whether figures could change anything about a rollout."""
    is_over = state.complete_since is not None and now - state.complete_since > WATCH_SECONDS
    return state.phase not in STILL and not is_over


def behaviour_digest(policy: Policy) -> str:
    """Return the digest of what a policy does to prompts and KV; a new one is a new rollout."""
    spec = to_mapping(policy)["spec"]
    return digest([spec["prompt"], spec.get("suffixCache"), spec["tenancy"]])


def command_mark(command: str) -> str:
    """Return what a status can hold of an order: all of it, or its beginning and the digest of it all."""
    if len(command) <= COMMAND_LENGTH_MAX:
        return command
    # A beginning alone would never equal the whole, and the order would be obeyed at each look.
    end = f"#{digest(command)}"
    return command[: COMMAND_LENGTH_MAX - len(end)] + end


def is_active(policy: Policy) -> bool:
    """Tell whether a policy does anything but observe."""
    prompt = policy.prompt
    moves = any(rule.action is not VolatileAction.REPORT for rule in prompt.volatile)
    rewrites = prompt.layout is not Layout.PRESERVE or prompt.canonicalize is Canonicalize.PIN or moves
    return rewrites or policy.suffix_cache is not None


def _inputs(observed: PolicyObserved, policy: Policy, now: float) -> Inputs:
    return Inputs(
        now=now,
        digest=behaviour_digest(policy),
        rollout=policy.rollout,
        is_active=is_active(policy),
        reads=policy.suffix_cache is not None,
        is_ready=_ready_engines(observed.pool) > 0,
        kill_level=observed.kill_level,
        command=command_mark(observed.command),
        figures=observed.figures,
    )


def _refuse(observed: PolicyObserved, status: Mapping[str, Any], now: float) -> Plan:
    """Say what is wrong; where the rollout stood, it stands, as gateways keep the last good policy, too."""
    reason = "Conflict" if observed.faults[0].path.startswith("spec.match.priority") else "Invalid"
    message = "; ".join(str(fault) for fault in observed.faults)
    standing = "the last version that was accepted stays in effect, if there was one"
    conditions = [
        Condition(Kind.ACCEPTED, Truth.FALSE, reason, message),
        Condition(Kind.READY, Truth.FALSE, reason, standing),
        Condition(Kind.PROGRESSING, Truth.FALSE, reason),
        Condition(Kind.DEGRADED, Truth.TRUE, reason),
    ]
    written = {
        "phase": Phase.REJECTED.value,
        **status,
        "observedGeneration": observed.generation,
        "conditions": write_conditions(conditions, status, observed.generation, now),
    }
    return Plan(
        status=fit(written, "decisions"), events=_news(conditions, status), again_seconds=STEADY_SECONDS
    )


def _conditions(observed: PolicyObserved, outcome: Outcome) -> list[Condition]:
    state = outcome.state
    is_moving = state.phase in (Phase.PROGRESSING, Phase.HOLDING)
    reason = outcome.reason
    if state.phase is Phase.HOLDING and observed.no_figures:
        reason = f"{reason}: {observed.no_figures}"
    progressing = Truth.TRUE if is_moving else Truth.FALSE
    return [
        Condition(Kind.ACCEPTED, Truth.TRUE, "Valid"),
        _ready(observed, state),
        Condition(Kind.PROGRESSING, progressing, state.phase.value, reason if is_moving else ""),
        _degraded(observed, state, reason),
    ]


def _ready(observed: PolicyObserved, state: RolloutState) -> Condition:
    assert observed.policy is not None, "only an accepted policy can be ready"
    if observed.pool is None:
        message = f"there is no EnginePool {observed.policy.pool} in this namespace"
        return Condition(Kind.READY, Truth.FALSE, "PoolNotFound", message)
    if _ready_engines(observed.pool) == 0:
        message = f"no engine of {observed.policy.pool} is ready"
        return Condition(Kind.READY, Truth.FALSE, "PoolNotReady", message)
    if state.phase is Phase.KILLED:
        message = f"the kill level is {observed.kill_level}"
        return Condition(Kind.READY, Truth.FALSE, "Killed", message)
    if state.phase is Phase.ABORTED:
        return Condition(Kind.READY, Truth.FALSE, "Aborted", "the rollout was stopped; see status.decisions")
    return Condition(Kind.READY, Truth.TRUE, state.phase.value)


def _degraded(observed: PolicyObserved, state: RolloutState, reason: str) -> Condition:
    if state.phase is Phase.ABORTED:
        return Condition(Kind.DEGRADED, Truth.TRUE, "Aborted", reason)
    if state.phase is Phase.HOLDING and observed.figures is None:
        # To wait for more requests is as expected; not to see any figures is not.
        return Condition(Kind.DEGRADED, Truth.TRUE, "NoFigures", reason)
    return Condition(Kind.DEGRADED, Truth.FALSE, "AsExpected")


def _rollout_status(observed: PolicyObserved, outcome: Outcome, status: Mapping[str, Any]) -> dict[str, Any]:
    written = write_rollout(outcome.state)
    memory = {
        "killed": observed.kill_level >= KillLevel.NEW_EPOCH,
        "poolEpoch": _pool_epoch(observed, status),
    }
    return {**written, "rollout": {**written["rollout"], **memory}}


def _epoch(observed: PolicyObserved, status: Mapping[str, Any]) -> int:
    """
    Return the policy's epoch, which gateways put into every key.

    It is one more whenever the kill level rises to where the keys must change, or the pool's models have.
    """
    memory = status.get("rollout", {})
    is_killed = observed.kill_level >= KillLevel.NEW_EPOCH and memory.get("killed") is not True
    is_other_model = _pool_epoch(observed, status) > memory.get("poolEpoch", _pool_epoch(observed, status))
    return int(status.get("epoch", 0)) + int(is_killed) + int(is_other_model)


def _pool_epoch(observed: PolicyObserved, status: Mapping[str, Any]) -> int:
    """Return the pool's epoch, as it was last seen where there is no pool now."""
    known = int(status.get("rollout", {}).get("poolEpoch", 0))
    epoch = observed.pool.get("status", {}).get("epoch", 0) if observed.pool else 0
    return max(known, int(epoch))


def _analysis_status(
    observed: PolicyObserved, outcome: Outcome, status: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """Return the verdict; it is written anew only when it changes or figures come, not for a later time."""
    before = status.get("lastAnalysis")
    if outcome.state.phase in STILL and outcome.state.phase is not Phase.ABORTED:
        return {"lastAnalysis": before} if before else {}
    verdict = _verdict(outcome)
    reason = (outcome.reason or "no rule is broken")[:REASON_LENGTH_MAX]
    if observed.figures is None and before and (before["verdict"], before.get("reason")) == (verdict, reason):
        return {"lastAnalysis": before}
    figures = figures_to_status(observed.figures) if observed.figures else []
    written = {"at": timestamp(now), "verdict": verdict, "reason": reason}
    return {"lastAnalysis": {**written, **({"figures": figures} if figures else {})}}


def _segments(observed: PolicyObserved, status: Mapping[str, Any]) -> dict[str, Any]:
    agreed = agree(segment_versions({"status": status}), observed.versions)
    return {"segments": write_segments(agreed)} if agreed else {}


def _verdict(outcome: Outcome) -> str:
    return {Phase.HOLDING: "Hold", Phase.ABORTED: "Abort"}.get(outcome.state.phase, "Pass")


def _ready_engines(pool: Object | None) -> int:
    return int(pool.get("status", {}).get("readyReplicas", 0)) if pool else 0


def _command_events(observed: PolicyObserved, status: Mapping[str, Any]) -> tuple[Event, ...]:
    command = command_mark(observed.command)
    is_new = command and command != status.get("rollout", {}).get("command", "")
    if not is_new or order_of(observed.command) is not None:
        return ()
    allowed = ", ".join(order.value for order in Order)
    message = f"{COMMAND_ANNOTATION}: {observed.command[:64]!r} is not allowed; allowed: {allowed}"
    return (Event(EventType.WARNING, "UnknownOrder", message),)


def _decision_events(outcome: Outcome) -> tuple[Event, ...]:
    warned = (Action.ABORT, Action.KILL)
    return tuple(
        Event(
            EventType.WARNING if decision.action in warned else EventType.NORMAL,
            decision.action.value,
            f"{decision.reason}; {decision.weight}% of sessions",
        )
        for decision in outcome.decisions
    )


def _news(conditions: Sequence[Condition], status: Mapping[str, Any]) -> tuple[Event, ...]:
    """Tell about a policy that is refused, or whose pool is not there; decisions tell the rest."""
    before = {one["type"]: one["reason"] for one in status.get("conditions", [])}
    told = {Kind.ACCEPTED: ("Invalid", "Conflict"), Kind.READY: ("PoolNotFound", "PoolNotReady")}
    return tuple(
        Event(EventType.WARNING, one.reason, one.message)
        for one in conditions
        if one.reason in told.get(one.kind, ()) and before.get(one.kind.value) != one.reason
    )
