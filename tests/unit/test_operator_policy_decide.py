"""A policy's status says whether it is accepted, where its rollout stands, and why."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.errors import Fault
from sternpost_core.kill import KillLevel
from sternpost_core.policy_parse import parse
from sternpost_fakes.crd_schema import CrdSchema
from sternpost_fakes.policies import FULL, MISSING, SMALLEST, changed
from sternpost_operator.analysis import Window
from sternpost_operator.figures import SAMPLE_NAMES, SHADOW_NAMES, Figures, Sample
from sternpost_operator.plan import Plan
from sternpost_operator.policy_decide import (
    PolicyObserved,
    behaviour_digest,
    decide_policy,
    is_active,
    wants_figures,
)
from sternpost_operator.policy_status import append_decisions, read_rollout, write_rollout
from sternpost_operator.rollout import Action, Decision, Order, Phase, RolloutState
from sternpost_operator.status_size import STATUS_BYTES_MAX, size_of

NOW = 1_800_000_000.0
WHOLE = changed(changed(FULL, "status", MISSING), "spec.killLevel", "None")
POLICY = parse(changed(WHOLE, "spec.rollout.paused", False))
POOL = {"metadata": {"name": "qwen", "namespace": "agents"}, "status": {"readyReplicas": 1}}
SAMPLE = Sample(requests=1000, sessions=100, error_share=0.0, ttft_p50=1.0, reused_share=0.5)
FIGURES = Figures(canary=SAMPLE, control=SAMPLE, step_canary=SAMPLE, step_control=SAMPLE, config_age=1)
ACCEPTED = PolicyObserved(policy=POLICY, generation=3, pool=POOL, figures=FIGURES)
SCHEMA = CrdSchema.of("CachePolicy")


def conditions(plan: Plan) -> dict[str, tuple[str, str]]:
    """Return status and reason by type."""
    return {one["type"]: (one["status"], one["reason"]) for one in plan.status["conditions"]}


def events(plan: Plan) -> list[str]:
    """Return the reasons of what is told."""
    return [event.reason for event in plan.events]


def in_schema(status: object) -> list[str]:
    """Return what of a status the schema would not keep."""
    return SCHEMA.faults({**SMALLEST, "status": status})


def test_accepted_policy_starts() -> None:
    """The first look accepts it, starts the canary, and tells."""
    plan = decide_policy(ACCEPTED, {}, NOW)

    assert ("Progressing", 2, 2, 3) == tuple(
        plan.status[key] for key in ("phase", "weight", "readWeight", "observedGeneration")
    )
    assert {"Accepted": ("True", "Valid"), "Ready": ("True", "Progressing")}.items() <= conditions(
        plan
    ).items()
    assert (["Start"], 15.0) == (events(plan), plan.again_seconds)
    assert [] == in_schema(plan.status)


def test_second_look_writes_nothing_without_news() -> None:
    """What is held for want of figures is held silently."""
    holding = replace(ACCEPTED, figures=None, no_figures="nobody answered")
    started = decide_policy(holding, {}, NOW)
    first = decide_policy(holding, started.status, NOW + 15)
    second = decide_policy(holding, first.status, NOW + 30)

    few = replace(ACCEPTED, figures=replace(FIGURES, step_canary=replace(SAMPLE, requests=1.0)))
    waiting = decide_policy(few, started.status, NOW + 100_000)

    assert (first.status, ()) == (second.status, second.events)
    assert ("True", "NoFigures") == conditions(first)["Degraded"]
    assert ("Holding", ("False", "AsExpected")) == (waiting.status["phase"], conditions(waiting)["Degraded"])
    assert "nobody answered" in first.status["conditions"][2]["message"]


def test_policy_that_only_observes_needs_no_rollout() -> None:
    """It is ready at once, and looked at rarely."""
    observed = replace(ACCEPTED, policy=parse(SMALLEST))
    plan = decide_policy(observed, {}, NOW)

    assert ("Observing", 100, 300.0) == (plan.status["phase"], plan.status["weight"], plan.again_seconds)
    assert ("True", "Observing") == conditions(plan)["Ready"]


UNREADY: dict[str, tuple[PolicyObserved, str]] = {
    "no-pool": (replace(ACCEPTED, pool=None), "PoolNotFound"),
    "no-engine": (replace(ACCEPTED, pool={**POOL, "status": {}}), "PoolNotReady"),
    "killed": (replace(ACCEPTED, kill_level=KillLevel.NO_REWRITE), "Killed"),
    "aborted": (replace(ACCEPTED, command="abort"), "Aborted"),
}


@pytest.mark.parametrize(("observed", "reason"), UNREADY.values(), ids=UNREADY.keys())
def test_policy_says_why_it_is_not_ready(observed: PolicyObserved, reason: str) -> None:
    """Each reason is one word for programs."""
    started = decide_policy(replace(ACCEPTED), {}, NOW)
    plan = decide_policy(observed, started.status, NOW + 1)

    assert ("False", reason) == conditions(plan)["Ready"]
    assert [] == in_schema(plan.status)


@pytest.mark.parametrize("word", ["restart", "faster"])
def test_long_order_counts_once(word: str) -> None:
    """What a status cannot hold of it does not make it new at each look; other words behind it do."""
    long = f"{word}:{'because the figures of the whole week are good, ' * 4}"
    started = decide_policy(ACCEPTED, {}, NOW)
    first = decide_policy(replace(ACCEPTED, command=long), started.status, NOW + 15)
    second = decide_policy(replace(ACCEPTED, command=long), first.status, NOW + 30)
    third = decide_policy(replace(ACCEPTED, command=long + "2"), second.status, NOW + 45)

    assert [1, 0, 1] == [len(plan.events) for plan in (first, second, third)]
    assert first.status["weight"] == second.status["weight"]
    assert [] == in_schema(first.status)


def test_refused_policy_keeps_where_it_stood() -> None:
    """Gateways keep the last good policy, so the weights stay; the fault is told once."""
    started = decide_policy(ACCEPTED, {}, NOW)
    wrong = PolicyObserved(policy=None, faults=(Fault("spec.warm", "'x'", "true, false"),), generation=4)
    plan = decide_policy(wrong, started.status, NOW)
    again = decide_policy(wrong, plan.status, NOW + 300)

    assert (started.status["weight"], "Progressing") == (plan.status["weight"], plan.status["phase"])
    assert ("False", "Invalid") == conditions(plan)["Accepted"]
    assert "spec.warm: 'x' is not allowed; allowed: true, false" == plan.status["conditions"][0]["message"]
    assert (["Invalid"], []) == (events(plan), events(again))


def test_policy_that_was_never_accepted_is_rejected() -> None:
    """Two policies of one priority are a conflict."""
    wrong = PolicyObserved(
        policy=None, faults=(Fault("spec.match.priority", "0, as in a/b,", "others"),), generation=1
    )
    plan = decide_policy(wrong, {}, NOW)

    assert ("Rejected", ("False", "Conflict")) == (plan.status["phase"], conditions(plan)["Accepted"])
    assert [] == in_schema(plan.status)


def test_epoch_grows_once_for_each_kill_that_needs_it() -> None:
    """K1 leaves the keys alone; K2 changes them when it begins, and not again while it lasts."""
    levels = [
        KillLevel.NONE,
        KillLevel.NO_SUFFIX_READS,
        KillLevel.NEW_EPOCH,
        KillLevel.PLAIN_PROXY,
        KillLevel.NONE,
        KillLevel.NEW_EPOCH,
    ]
    status: Any = {}
    epochs = []
    for level in levels:
        status = decide_policy(replace(ACCEPTED, kill_level=level), status, NOW).status
        epochs.append(status["epoch"])

    assert [0, 0, 1, 1, 1, 2] == epochs


def test_epoch_grows_with_the_pools() -> None:
    """Another model in the pool makes older KV wrong for every policy that it serves."""
    first = decide_policy(
        replace(ACCEPTED, pool={**POOL, "status": {"readyReplicas": 1, "epoch": 4}}), {}, NOW
    )
    newer = replace(ACCEPTED, pool={**POOL, "status": {"readyReplicas": 1, "epoch": 5}})
    second = decide_policy(newer, first.status, NOW)
    gone = decide_policy(replace(ACCEPTED, pool=None), second.status, NOW)
    back = decide_policy(newer, gone.status, NOW)

    assert [0, 1, 1, 1] == [plan.status["epoch"] for plan in (first, second, gone, back)]


def test_unknown_order_is_told() -> None:
    """A typo gets an answer that names what is allowed, once."""
    started = decide_policy(ACCEPTED, {}, NOW)
    plan = decide_policy(replace(ACCEPTED, command="promot"), started.status, NOW)
    again = decide_policy(replace(ACCEPTED, command="promot"), plan.status, NOW)

    (event,) = plan.events
    assert ("UnknownOrder", ()) == (event.reason, again.events)
    assert "sternpost.dev/rollout: 'promot' is not allowed; allowed: promote, abort" in event.message


BEHAVIOUR = {
    "layout": ("spec.prompt.layout", "TailFirst", True),
    "recompute": ("spec.suffixCache.recompute.last", 64, True),
    "isolation": ("spec.tenancy.isolation", "Session", True),
    "prefix-epoch": ("spec.tenancy.prefixEpoch", 4, True),
    "steps": ("spec.rollout.steps", [50, 100], False),
    "match": ("spec.match.priority", 7, False),
    "kill": ("spec.killLevel", "NoSuffixReads", False),
}


@pytest.mark.parametrize(("path", "new", "differs"), BEHAVIOUR.values(), ids=BEHAVIOUR.keys())
def test_rollout_begins_anew_when_behaviour_changes(path: str, new: object, differs: bool) -> None:
    """What is done to prompts and KV counts, not for whom or how fast."""
    assert differs == (behaviour_digest(parse(WHOLE)) != behaviour_digest(parse(changed(WHOLE, path, new))))


def test_policy_is_active_where_it_does_anything() -> None:
    """Reports alone are none of a user's business."""
    reports = changed(SMALLEST, "spec.prompt", {"canonicalize": "Report"})
    pins = changed(SMALLEST, "spec.prompt", {"canonicalize": "Pin"})

    assert (False, True, True) == tuple(is_active(parse(value)) for value in (reports, pins, WHOLE))


def test_figures_are_wanted_while_they_matter() -> None:
    """Not for what stands still, and not for ever after the end."""
    complete = RolloutState(phase=Phase.COMPLETE, complete_since=NOW)

    assert wants_figures(complete, NOW + 3600) and not wants_figures(complete, NOW + 3601)
    assert not wants_figures(RolloutState(phase=Phase.ABORTED), NOW)


times = st.integers(1, 2**31).map(float)
states = st.builds(
    RolloutState,
    digest=st.text("0123456789abcdef", max_size=16),
    phase=st.sampled_from(Phase),
    step=st.integers(0, 20),
    weight=st.integers(0, 100),
    read_weight=st.integers(0, 100),
    step_since=times,
    hold_since=st.none() | times,
    complete_since=st.none() | times,
    paused=st.booleans(),
    is_ramp=st.booleans(),
    command=st.text("abc:", max_size=64),
    windows=st.lists(
        st.builds(Window, times, st.lists(st.sampled_from(["errors", "ttft"]), max_size=2).map(tuple)),
        max_size=5,
    ).map(tuple),
)


@given(states)
def test_written_rollout_reads_the_same(state: RolloutState) -> None:
    """A restarted operator goes on where the last one was, and the schema keeps all of it."""
    written = write_rollout(state)

    assert state == read_rollout(written)
    assert [] == in_schema(written)


numbers = st.none() | st.floats()
samples = st.builds(Sample, **dict.fromkeys(SAMPLE_NAMES, numbers))
figures = st.builds(
    Figures, canary=samples, control=samples, **dict.fromkeys((*SHADOW_NAMES, "config_age"), numbers)
)
observations = st.builds(
    replace,
    st.just(ACCEPTED),
    figures=st.none() | figures,
    no_figures=st.text(max_size=2048),
    kill_level=st.sampled_from(KillLevel),
    command=st.sampled_from([*(order.value for order in Order), "faster", ""]) | st.text(max_size=300),
    pool=st.none() | st.just(ACCEPTED.pool),
)


@given(states, st.lists(observations, min_size=1, max_size=12))
def test_whatever_is_observed_the_status_is_in_the_schema(
    state: RolloutState, observed: list[PolicyObserved]
) -> None:
    """And within its size: a field that the server drops would be written again and again."""
    status: Mapping[str, Any] = write_rollout(state)
    for number, one in enumerate(observed):
        status = decide_policy(one, status, NOW + 60 * number).status

    assert [] == in_schema(status)
    assert size_of(status) <= STATUS_BYTES_MAX


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["phase", "step", "weight", "rollout", "readWeight"]), JSON))
def test_any_status_can_be_read(status: dict[str, Any]) -> None:
    """Whoever edits a status by hand does not stop the operator."""
    assert isinstance(read_rollout(status), RolloutState)


def test_only_the_last_decisions_are_kept() -> None:
    """The status stays within its bound, whatever has happened."""
    full = Figures(canary=SAMPLE, control=SAMPLE, step_canary=SAMPLE, step_control=SAMPLE)
    decisions = [Decision(NOW, Action.PROMOTE, 5, "x" * 500, full) for _ in range(30)]
    kept = append_decisions([], decisions)

    assert (10, 256) == (len(kept), len(kept[0]["reason"]))
    assert [] == in_schema({"decisions": kept})
    plan = decide_policy(ACCEPTED, {"decisions": kept}, NOW)
    assert size_of(plan.status) <= STATUS_BYTES_MAX
