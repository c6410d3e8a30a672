"""A rollout moves on what its figures say, and on nothing else."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sternpost_core.kill import KillLevel
from sternpost_core.policy import Rollout
from sternpost_operator.analysis import EVALUATE_SECONDS, Window
from sternpost_operator.figures import Figures, Sample
from sternpost_operator.rollout import (
    HOLD_SECONDS_MAX,
    RAMP_SECONDS,
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

ROLLOUT = Rollout(steps=(1, 5, 25, 100), min_duration_seconds=600, min_requests=500, min_sessions=50)
CONTROL = Sample(
    requests=1000,
    sessions=100,
    error_share=0.001,
    shed_share=0.0,
    abort_share=0.0,
    length_share=0.1,
    ttft_p50=0.5,
    ttft_p95=1.0,
    inter_token_p95=0.05,
    reused_share=0.1,
)
CANARY = replace(CONTROL, ttft_p50=0.2, ttft_p95=0.5, reused_share=0.8)
GOOD = Figures(canary=CANARY, control=CONTROL, step_canary=CANARY, step_control=CONTROL, config_age=1.0)
BAD_CANARY = replace(CANARY, error_share=0.2)
BAD = replace(GOOD, canary=BAD_CANARY)

NEW = Inputs(now=1000.0, digest="a", rollout=ROLLOUT, is_active=True, reads=True, is_ready=True, figures=GOOD)
START = decide_rollout(RolloutState(), NEW).state


def after(state: RolloutState, seconds: float, **changes: object) -> Outcome:
    """Decide so many seconds after the step began."""
    return decide_rollout(state, replace(NEW, now=state.step_since + seconds, **changes))  # type: ignore[arg-type]


def walk(state: RolloutState, *figures: Figures | None, first: float = 60.0) -> Outcome:
    """Decide once a minute, with these figures."""
    outcome = Outcome(state)
    for number, one in enumerate(figures):
        now = state.step_since + first + 60.0 * number
        outcome = decide_rollout(outcome.state, replace(NEW, now=now, figures=one))
    return outcome


def test_new_policy_starts_at_the_first_step() -> None:
    """Both weights are the first step's, and the decision says so."""
    outcome = decide_rollout(RolloutState(), NEW)

    assert (Phase.PROGRESSING, 1, 1, 1) == (
        outcome.state.phase,
        outcome.state.step,
        outcome.state.weight,
        outcome.state.read_weight,
    )
    assert [Action.START] == [decision.action for decision in outcome.decisions]


def test_good_canary_reaches_everybody_step_by_step() -> None:
    """Each step is left after its time, and the last one ends the rollout."""
    state, weights = START, [START.weight]
    for _ in range(3):
        state = after(state, 601).state
        weights.append(state.weight)

    assert [1, 5, 25, 100] == weights
    assert (Phase.COMPLETE, 100) == (state.phase, state.read_weight)


def test_step_lasts_its_time() -> None:
    """A second too early nothing moves."""
    outcome = after(START, 599)

    assert (1, Phase.PROGRESSING, ()) == (outcome.state.weight, outcome.state.phase, outcome.decisions)


HOLDS: dict[str, Figures | None] = {
    "no-figures": None,
    "no-data": Figures(),
    "few-requests": replace(GOOD, step_canary=replace(CANARY, requests=499.0)),
    "few-sessions": replace(GOOD, step_canary=replace(CANARY, sessions=49.0)),
    "not-a-number": replace(GOOD, canary=replace(CANARY, error_share=math.nan)),
    "endless": replace(GOOD, control=replace(CONTROL, error_share=math.inf)),
    "stale-configuration": replace(GOOD, config_age=31.0),
    "configuration-of-unknown-age": replace(GOOD, config_age=None),
    "failing-control": replace(
        GOOD, control=replace(CONTROL, error_share=0.2), canary=replace(CANARY, error_share=0.2)
    ),
}


@pytest.mark.parametrize("figures", HOLDS.values(), ids=HOLDS.keys())
def test_without_a_verdict_it_holds(figures: Figures | None) -> None:
    """No data, too little of it or doubtful data moves nothing, and a reason is given."""
    outcome = after(START, 601, figures=figures)

    assert (1, Phase.HOLDING) == (outcome.state.weight, outcome.state.phase)
    assert outcome.reason


def test_a_day_without_a_verdict_takes_it_back() -> None:
    """A canary that nobody can judge does not stay for ever."""
    held = after(START, 601, figures=None).state
    outcome = after(held, 602 + HOLD_SECONDS_MAX, figures=None)

    assert (Phase.ABORTED, 0, 0) == (outcome.state.phase, outcome.state.weight, outcome.state.read_weight)


def test_two_bad_windows_in_a_row_stop_it() -> None:
    """One may be chance; the second stops suffix reads, and leaves the prompts as they are."""
    one = walk(START, GOOD, BAD)
    two = walk(START, GOOD, BAD, BAD)

    assert (Phase.PROGRESSING, Phase.ABORTED) == (one.state.phase, two.state.phase)
    assert (1, 0) == (two.state.weight, two.state.read_weight)
    assert "errors in 2 windows in a row" == two.reason


def test_three_slow_windows_of_five_stop_it() -> None:
    """Latency is noisy, so it takes three."""
    slow = replace(GOOD, canary=replace(CANARY, ttft_p95=1.3))

    assert Phase.PROGRESSING is walk(START, slow, GOOD, slow, GOOD).state.phase
    assert Phase.ABORTED is walk(START, slow, GOOD, slow, GOOD, slow).state.phase


@pytest.mark.parametrize(
    "figures",
    [
        pytest.param(replace(GOOD, shadow_samples=200, shadow_agreement=0.9), id="agreement"),
        pytest.param(replace(GOOD, shadow_samples=200, shadow_kl=0.2), id="divergence"),
        pytest.param(
            replace(GOOD, shadow_samples=7, shadow_agreement=0.5, shadow_demotions=1), id="demotion"
        ),
    ],
)
@pytest.mark.parametrize("at", [START, replace(START, weight=100, read_weight=100, complete_since=1000.0)])
def test_wrong_answers_stop_it_at_once(figures: Figures, at: RolloutState) -> None:
    """Replays that differ need no second window, and count after the last step, too."""
    assert Phase.ABORTED is after(at, 1, figures=figures).state.phase


def test_few_replays_say_nothing() -> None:
    """199 replays are not enough to stop a canary where no gateway has demoted a tail for them."""
    few = replace(GOOD, shadow_samples=199, shadow_agreement=0.0, shadow_demotions=0)

    assert Phase.PROGRESSING is after(START, 1, figures=few).state.phase


def test_breach_over_the_whole_step_stops_it() -> None:
    """What no single window had enough requests for shows over the step."""
    outcome = after(START, 601, figures=replace(GOOD, step_canary=BAD_CANARY))

    assert (Phase.ABORTED, "errors over the whole step") == (outcome.state.phase, outcome.reason)


def test_useless_canary_ends_at_a_tenth() -> None:
    """From 10% on it must have gained reuse or time."""
    useless = replace(GOOD, step_canary=CONTROL, canary=CONTROL)
    at_five = replace(START, step=2, weight=5, read_weight=5)
    at_quarter = replace(START, step=3, weight=25, read_weight=25)

    assert 25 == after(at_five, 601, figures=useless).state.weight
    assert Phase.ABORTED is after(at_quarter, 601, figures=useless).state.phase


def test_kill_stops_reads_and_comes_back_by_a_ramp() -> None:
    """The prompts stay; reads begin again with the first step and go on every two minutes."""
    running = replace(START, step=3, weight=25, read_weight=25)
    killed = after(running, 10, kill_level=KillLevel.NO_SUFFIX_READS).state
    back = decide_rollout(killed, replace(NEW, now=5000.0)).state
    more = after(back, RAMP_SECONDS).state
    all_back = after(more, RAMP_SECONDS).state

    assert (Phase.KILLED, 25, 0) == (killed.phase, killed.weight, killed.read_weight)
    assert [(25, 1), (25, 5), (25, 25)] == [
        (state.weight, state.read_weight) for state in (back, more, all_back)
    ]
    assert [True, True, False] == [state.is_ramp for state in (back, more, all_back)]


@pytest.mark.parametrize(
    ("step", "weight", "expected"),
    [pytest.param(1, 1, False, id="first-step"), pytest.param(2, 5, True, id="later-step")],
)
def test_way_back_ends_where_the_kill_came(step: int, weight: int, expected: bool) -> None:
    """A weight that was never earned is earned as usual: two minutes without figures are not enough."""
    running = replace(START, step=step, weight=weight, read_weight=weight)
    killed = after(running, 10, kill_level=KillLevel.NO_SUFFIX_READS).state
    back = decide_rollout(killed, replace(NEW, now=5000.0)).state
    few = replace(GOOD, step_canary=Sample(), step_control=Sample())
    soon = after(back, RAMP_SECONDS, figures=few).state

    assert expected is back.is_ramp
    assert weight == soon.weight


def test_ramp_stops_by_itself() -> None:
    """A fault on the way back stops reads again."""
    back = replace(START, step=3, weight=25, read_weight=1, is_ramp=True)

    assert (Phase.ABORTED, 0) == (
        walk(back, BAD, BAD, first=1.0).state.phase,
        walk(back, BAD, BAD, first=1.0).state.read_weight,
    )


def test_aborted_stays_until_asked() -> None:
    """Neither time nor good figures bring it back; the order restart or another behaviour does."""
    aborted = replace(START, phase=Phase.ABORTED, read_weight=0)

    assert Phase.ABORTED is after(aborted, 100_000).state.phase
    assert Phase.PROGRESSING is after(aborted, 1, command="restart").state.phase
    assert Phase.PROGRESSING is after(aborted, 1, digest="b").state.phase


ORDERS = {
    "promote": (START, "promote", 5, Phase.PROGRESSING),
    "abort": (START, "abort", 1, Phase.ABORTED),
    "pause": (START, "pause", 1, Phase.PAUSED),
    "resume": (replace(START, paused=True, phase=Phase.PAUSED), "resume", 1, Phase.PROGRESSING),
    "unknown": (START, "faster", 1, Phase.PROGRESSING),
    "old": (replace(START, command="promote"), "promote", 1, Phase.PROGRESSING),
    "again": (replace(START, command="promote"), "promote:2", 5, Phase.PROGRESSING),
}


@pytest.mark.parametrize(("state", "command", "weight", "phase"), ORDERS.values(), ids=ORDERS.keys())
def test_orders_are_obeyed_once(state: RolloutState, command: str, weight: int, phase: Phase) -> None:
    """An annotation counts when it is new."""
    outcome = after(state, 10, command=command)

    assert (weight, phase, command) == (outcome.state.weight, outcome.state.phase, outcome.state.command)


KILLED = replace(START, step=3, weight=25, read_weight=0, phase=Phase.KILLED)
LATER: dict[str, tuple[RolloutState, dict[str, object], str, Phase, bool]] = {
    "abort-with-the-kill": (START, {"kill_level": KillLevel.NEW_EPOCH}, "abort", Phase.ABORTED, False),
    "abort-under-a-kill": (KILLED, {"kill_level": KillLevel.NEW_EPOCH}, "abort", Phase.ABORTED, False),
    "abort-before-engines": (RolloutState(), {"is_ready": False}, "abort", Phase.ABORTED, False),
    "pause-with-the-kill": (START, {"kill_level": KillLevel.NEW_EPOCH}, "pause", Phase.PAUSED, True),
    "pause-under-a-kill": (KILLED, {"kill_level": KillLevel.NEW_EPOCH}, "pause", Phase.PAUSED, True),
    "pause-before-engines": (RolloutState(), {"is_ready": False}, "pause", Phase.PROGRESSING, True),
    "resume-under-a-kill": (
        replace(KILLED, paused=True),
        {"kill_level": KillLevel.NEW_EPOCH},
        "resume",
        Phase.PROGRESSING,
        False,
    ),
}


@pytest.mark.parametrize(
    ("state", "circumstances", "command", "phase", "paused"), LATER.values(), ids=LATER.keys()
)
def test_order_that_comes_while_nothing_moves_counts_when_something_would(
    state: RolloutState, circumstances: dict[str, object], command: str, phase: Phase, paused: bool
) -> None:
    """Whoever stops a canary under a kill does not see it come back when the kill is lifted."""
    ordered = after(state, 10, command=command, **circumstances)
    lifted = after(ordered.state, 20, command=command).state
    settled = lifted if phase is not Phase.PAUSED else after(lifted, 30, command=command).state

    assert [Action(command.capitalize())] == [
        decision.action for decision in ordered.decisions if decision.action is not Action.KILL
    ]
    assert (phase, paused) == (settled.phase, settled.paused)


def test_pause_is_no_day_without_a_verdict() -> None:
    """A canary that had begun to hold before a long pause has its day again after it."""
    held = after(START, 601, figures=None).state
    paused = after(held, 700, figures=None, rollout=replace(ROLLOUT, paused=True)).state
    resumed = after(paused, 700 + 2 * HOLD_SECONDS_MAX, figures=None).state

    assert (Phase.HOLDING, Phase.PAUSED, Phase.HOLDING) == (held.phase, paused.phase, resumed.phase)


EDITED = {
    "fewer": (25, (50, 100), 50),
    "more": (50, (1, 5, 10, 25, 50, 100), 100),
    "others": (5, (2, 8, 64, 100), 8),
}


@pytest.mark.parametrize(("weight", "steps", "expected"), EDITED.values(), ids=EDITED.keys())
def test_next_step_is_the_first_that_is_more(weight: int, steps: tuple[int, ...], expected: int) -> None:
    """Steps that are edited on the way are neither leapt over nor gone back."""
    state = replace(START, step=3, weight=weight, read_weight=weight)
    following = after(state, 601, rollout=replace(ROLLOUT, steps=steps)).state

    assert (expected, expected) == (following.weight, following.read_weight)


def test_restarted_canary_reads_more_with_each_step() -> None:
    """It keeps its prompts, and its reads rise to them and beyond without a step back."""
    state = after(replace(START, step=3, weight=25, read_weight=25), 1, command="restart").state
    weights = [(state.weight, state.read_weight)]
    while state.phase is not Phase.COMPLETE:
        state = after(state, 601, command="restart").state
        weights.append((state.weight, state.read_weight))

    assert [(25, 1), (25, 5), (25, 25), (100, 100)] == weights


def test_policy_that_reads_nothing_earns_its_next_step_after_a_kill_too() -> None:
    """Its weight has not come down, so no ramp brings anything back, and two minutes are no step."""
    killed = after(
        replace(START, step=3, weight=25, read_weight=25), 10, kill_level=KillLevel.NO_REWRITE
    ).state
    back = decide_rollout(killed, replace(NEW, now=5000.0, reads=False)).state
    few = replace(GOOD, step_canary=Sample(), step_control=Sample())
    soon = after(back, RAMP_SECONDS, reads=False, figures=few).state

    assert (25, 25, False) == (soon.weight, soon.read_weight, soon.is_ramp)


def test_window_of_a_wrong_clock_holds_up_no_other() -> None:
    """Rules go on after a clock that was a day ahead has been put right."""
    ahead = replace(START, windows=(Window(START.step_since + 86_400.0),))

    assert Phase.ABORTED is walk(ahead, BAD, BAD).state.phase


def test_order_is_a_word_before_a_colon() -> None:
    """Whatever stands behind makes an order a new one."""
    assert (Order.PROMOTE, Order.PAUSE, None) == (order_of("promote:3"), order_of(" Pause "), order_of(""))


def test_pause_keeps_the_rules() -> None:
    """A paused canary that turns bad is stopped all the same."""
    paused = replace(START, paused=True)

    assert Phase.ABORTED is walk(paused, BAD, BAD).state.phase
    assert Phase.PAUSED is after(paused, 100_000).state.phase


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(replace(START, paused=True, phase=Phase.PAUSED), id="paused"),
        pytest.param(
            replace(
                START, weight=100, read_weight=100, phase=Phase.COMPLETE, complete_since=START.step_since
            ),
            id="complete",
        ),
    ],
)
def test_f16_canary_that_turns_bad_later_is_stopped_within_half_a_minute(state: RolloutState) -> None:
    """Looked at every quarter of a minute, by replays that disagree, whether it is paused or complete."""
    wrong = replace(GOOD, shadow_samples=200, shadow_agreement=0.5)
    turned, now = START.step_since + 600.0, START.step_since
    while state.phase is not Phase.ABORTED:
        now += EVALUATE_SECONDS
        figures = wrong if now > turned else GOOD
        state = decide_rollout(state, replace(NEW, now=now, figures=figures)).state
        assert now <= turned + 30.0, "it goes on"

    assert (turned < now, 0) == (True, state.read_weight)


def test_complete_is_watched_for_an_hour() -> None:
    """After the hour replays do not stop it any more: the gateways' own sampler goes on."""
    complete = replace(START, weight=100, read_weight=100, phase=Phase.COMPLETE, complete_since=1000.0)
    wrong = replace(GOOD, shadow_samples=200, shadow_kl=9.0)

    assert Phase.ABORTED is after(complete, WATCH_SECONDS, figures=wrong).state.phase
    assert Phase.COMPLETE is after(complete, WATCH_SECONDS + 1, figures=wrong).state.phase


def test_observing_policy_has_no_rollout() -> None:
    """What changes nothing needs no canary, and sees every session; what changes something begins small."""
    state = decide_rollout(RolloutState(), replace(NEW, is_active=False)).state

    assert (Phase.OBSERVING, 100) == (state.phase, state.weight)
    assert 1 == decide_rollout(state, replace(NEW, digest="b")).state.weight


def test_without_engines_it_waits() -> None:
    """A canary of nothing would teach nothing."""
    state = decide_rollout(RolloutState(), replace(NEW, is_ready=False)).state

    assert (Phase.WAITING, 0) == (state.phase, state.weight)
    assert 1 == decide_rollout(state, NEW).state.weight


numbers = st.none() | st.sampled_from([0.0, 0.01, 0.5, 1.0, 250.0, 10_000.0, math.nan, math.inf, -1.0])
samples = st.builds(
    Sample,
    requests=numbers,
    sessions=numbers,
    error_share=numbers,
    shed_share=numbers,
    abort_share=numbers,
    length_share=numbers,
    ttft_p50=numbers,
    ttft_p95=numbers,
    inter_token_p95=numbers,
    reused_share=numbers,
)
any_figures = st.none() | st.builds(
    Figures,
    canary=samples,
    control=samples,
    step_canary=samples,
    step_control=samples,
    shadow_samples=numbers,
    shadow_agreement=numbers,
    shadow_kl=numbers,
    config_age=numbers,
)
moments = st.lists(
    st.tuples(
        st.sampled_from([1.0, 15.0, 60.0, 601.0, 100_000.0]),
        any_figures | st.just(GOOD),
        st.sampled_from([KillLevel.NONE] * 3 + [KillLevel.NO_SUFFIX_READS]),
    ),
    max_size=30,
)


@settings(max_examples=200)
@given(moments)
def test_weights_only_rise_by_verdicts_and_only_fall_by_aborts_and_kills(
    given_moments: list[tuple[float, Figures | None, KillLevel]],
) -> None:
    """Whatever the figures: one step at a time, from data alone; reads never exceed the weight."""
    state, now = START, START.step_since
    steps = (0, *ROLLOUT.steps)
    for seconds, figures, level in given_moments:
        now += seconds
        outcome = decide_rollout(state, replace(NEW, now=now, figures=figures, kill_level=level))
        new = outcome.state
        assert new.read_weight <= new.weight
        assert new.weight in steps and new.read_weight in steps
        if new.weight > state.weight:
            assert figures is not None and level is KillLevel.NONE
            assert steps.index(new.weight) == steps.index(state.weight) + 1
            assert figures.step_canary.requests is not None
            assert figures.step_canary.requests >= ROLLOUT.min_requests
        if new.weight < state.weight or (new.read_weight < state.read_weight):
            assert new.phase in (Phase.ABORTED, Phase.KILLED)
        if state.phase is Phase.ABORTED:
            assert new.phase is Phase.ABORTED and new.read_weight == 0
        state = new


@given(any_figures)
def test_abort_wins_over_an_order_to_promote(figures: Figures | None) -> None:
    """Whoever asks for more gets the next step, or the abort that the rules demand, never both."""
    wrong = replace(figures or Figures(), shadow_samples=500, shadow_agreement=0.1)
    outcome = after(START, 10, command="promote", figures=wrong)

    assert (Phase.ABORTED, 1) == (outcome.state.phase, outcome.state.weight)
