"""
A rollout's next step: a pure function of what was, what is asked for, and what the figures say.

Two weights move. `weight` is the share of sessions whose prompts are written by the policy. `read_weight` is
the share whose requests may read the suffix store. An abort and a kill bring down the second alone, because
prompts that change again would be cold everywhere at once; what was killed comes back by a ramp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sternpost_core.kill import KillLevel
from sternpost_core.policy import Rollout
from sternpost_operator.analysis import (
    RULES,
    USEFUL_WEIGHT,
    WINDOW_SECONDS,
    WINDOWS_MAX,
    Verdict,
    Window,
    abort_reason,
    breaches,
    is_useless,
    judge,
    shortage,
)
from sternpost_operator.figures import Figures

HOLD_SECONDS_MAX: Final = 24 * 3600.0
"""A canary that cannot be judged for so long is taken back."""

WATCH_SECONDS: Final = 3600.0
"""How long the rules go on after the last step."""

RAMP_SECONDS: Final = 120.0
"""How long a step lasts at least on the way back from a kill."""

DECISIONS_MAX: Final = 10
WEIGHT_MAX: Final = 100


class Phase(StrEnum):
    """Where a rollout stands."""

    REJECTED = "Rejected"
    OBSERVING = "Observing"
    WAITING = "Waiting"
    PROGRESSING = "Progressing"
    HOLDING = "Holding"
    PAUSED = "Paused"
    COMPLETE = "Complete"
    ABORTED = "Aborted"
    KILLED = "Killed"


class Action(StrEnum):
    """What was decided."""

    START = "Start"
    PROMOTE = "Promote"
    COMPLETE = "Complete"
    ABORT = "Abort"
    PAUSE = "Pause"
    RESUME = "Resume"
    RESTART = "Restart"
    KILL = "Kill"
    UNKILL = "Unkill"


class Order(StrEnum):
    """What a person may ask for by the annotation."""

    PROMOTE = "promote"
    ABORT = "abort"
    PAUSE = "pause"
    RESUME = "resume"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided, with the figures that it was made from; `at` in Unix seconds."""

    at: float
    action: Action
    weight: int
    reason: str
    figures: Figures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """
    What a rollout remembers; times are in Unix seconds.

    `is_ramp` says that it is on its way back from a kill, to a weight that it had earned before.
    """

    digest: str = ""
    phase: Phase = Phase.WAITING
    step: int = 0
    weight: int = 0
    read_weight: int = 0
    step_since: float = 0.0
    hold_since: float | None = None
    complete_since: float | None = None
    paused: bool = False
    is_ramp: bool = False
    command: str = ""
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """
    What a rollout is decided from.

    `digest` is of what is rolled out; `is_active` says whether it does anything at all, `reads` whether it
    reads the suffix store. `command` is the annotation as it is now; `figures` is None where there are none.
    """

    now: float
    digest: str
    rollout: Rollout
    is_active: bool
    reads: bool
    is_ready: bool
    kill_level: KillLevel = KillLevel.NONE
    command: str = ""
    figures: Figures | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state from now on, what was decided to get there, and why it stands still where it does."""

    state: RolloutState
    decisions: tuple[Decision, ...] = ()
    reason: str = ""


def order_of(command: str) -> Order | None:
    """Return what the annotation asks for: a word, and behind a colon whatever makes it a new one."""
    word = command.partition(":")[0].strip().lower()
    return next((order for order in Order if order.value == word), None)


def decide_rollout(state: RolloutState, inputs: Inputs) -> Outcome:
    """Return the next state; the first of the steps that has something to say decides."""
    order = order_of(inputs.command) if inputs.command != state.command else None
    state = replace(state, command=inputs.command)
    steps: tuple[Callable[[RolloutState, Inputs, Order | None], Outcome | None], ...] = (
        _observe,
        _stop,
        _start,
        _kill,
        _unkill,
        _obey,
        _stay_aborted,
    )
    outcomes = (step(state, inputs, order) for step in steps)
    outcome = next((outcome for outcome in outcomes if outcome is not None), None)
    return _keep_pause(outcome or _judge(state, inputs), inputs, order)


def _observe(state: RolloutState, inputs: Inputs, order: Order | None) -> Outcome | None:
    if inputs.is_active:
        return None
    # Nothing is changed for anybody, so everybody is observed.
    everybody = RolloutState(weight=WEIGHT_MAX, read_weight=WEIGHT_MAX, command=state.command)
    return Outcome(replace(everybody, digest=inputs.digest, phase=Phase.OBSERVING))


def _stop(state: RolloutState, inputs: Inputs, order: Order | None) -> Outcome | None:
    # Whoever stops a rollout that waits, or is killed, does not want it to go on by itself when that is over.
    keeps = state.digest == inputs.digest
    if order is not Order.ABORT or (state.phase is Phase.ABORTED and keeps):
        return None
    stopped = state if keeps else replace(_waiting(state, inputs), digest=inputs.digest)
    return _abort(stopped, inputs, "asked for")


def _start(state: RolloutState, inputs: Inputs, order: Order | None) -> Outcome | None:
    is_new = state.digest != inputs.digest or state.phase in (Phase.WAITING, Phase.OBSERVING)
    if not is_new and order is not Order.RESTART:
        return None
    if not inputs.is_ready:
        return Outcome(_waiting(state, inputs), reason="the pool has no engine that is ready")
    action = Action.RESTART if order is Order.RESTART and not is_new else Action.START
    started = _at_step(replace(_waiting(state, inputs), digest=inputs.digest), inputs, 1)
    killed = inputs.kill_level >= KillLevel.NO_SUFFIX_READS
    if killed:
        started = replace(started, read_weight=0, phase=Phase.KILLED)
    reason = "asked for" if action is Action.RESTART else "a new policy, or what it does has changed"
    return _decided(started, inputs, action, reason)


def _waiting(state: RolloutState, inputs: Inputs) -> RolloutState:
    # A rollout that has begun keeps its weight until the next one can begin: its prompts stay warm.
    keeps = state.digest == inputs.digest
    kept = state if keeps else RolloutState(command=state.command, paused=state.paused)
    return replace(kept, phase=Phase.WAITING, is_ramp=False, hold_since=None, complete_since=None, windows=())


def _kill(state: RolloutState, inputs: Inputs, order: Order | None) -> Outcome | None:
    if inputs.kill_level is KillLevel.NONE:
        return None
    if state.phase in (Phase.KILLED, Phase.ABORTED):
        return Outcome(state, reason=f"the kill level is {inputs.kill_level}")
    killed = replace(state, phase=Phase.KILLED, read_weight=0, hold_since=None, windows=())
    return _decided(killed, inputs, Action.KILL, f"the kill level is {inputs.kill_level}")


def _unkill(state: RolloutState, inputs: Inputs, order: Order | None) -> Outcome | None:
    if state.phase is not Phase.KILLED:
        return None
    # Nothing of a policy that does not read has come down, so there is nothing to bring back.
    read_weight = min(inputs.rollout.steps[0], state.weight) if inputs.reads else state.weight
    # With the first step alone there is no way back: the weight was not earned yet, and is earned as usual.
    back = replace(
        state,
        phase=Phase.PROGRESSING,
        read_weight=read_weight,
        is_ramp=read_weight < state.weight,
        step_since=inputs.now,
        complete_since=None,
        windows=(),
    )
    return _decided(back, inputs, Action.UNKILL, "no kill level applies any more")


def _obey(state: RolloutState, inputs: Inputs, order: Order | None) -> Outcome | None:
    if state.phase is Phase.ABORTED:
        return None
    if order is Order.PROMOTE and not _is_complete(state):
        # Even who asks for more does not get it from a canary that the rules would stop.
        ruled, verdict = _rule(state, inputs)
        stop = verdict.abort or abort_reason(ruled.windows)
        return _abort(ruled, inputs, stop) if stop else _promote(ruled, inputs, "asked for")
    if order is Order.PAUSE and not state.paused:
        return _decided(replace(state, paused=True, phase=Phase.PAUSED), inputs, Action.PAUSE, "asked for")
    if order is Order.RESUME and state.paused:
        resumed = replace(state, paused=False, phase=Phase.PROGRESSING)
        return _decided(resumed, inputs, Action.RESUME, "asked for")
    return None


def _keep_pause(outcome: Outcome, inputs: Inputs, order: Order | None) -> Outcome:
    """Keep the order to pause, or to go on, where nothing moves yet: it counts as soon as something does."""
    wanted, state = order is Order.PAUSE, outcome.state
    is_late = order not in (Order.PAUSE, Order.RESUME) or state.phase in (Phase.OBSERVING, Phase.ABORTED)
    if is_late or state.paused is wanted:
        return outcome
    action = Action.PAUSE if wanted else Action.RESUME
    kept = _decided(replace(state, paused=wanted), inputs, action, "asked for")
    return replace(outcome, state=kept.state, decisions=(*outcome.decisions, *kept.decisions))


def _stay_aborted(state: RolloutState, inputs: Inputs, order: Order | None) -> Outcome | None:
    if state.phase is not Phase.ABORTED:
        return None
    return Outcome(state, reason="aborted; a change of the policy, or the order restart, starts again")


def _judge(state: RolloutState, inputs: Inputs) -> Outcome:
    """Let the rules speak, and then the step's own demands."""
    if state.complete_since is not None and inputs.now - state.complete_since > WATCH_SECONDS:
        return Outcome(replace(state, phase=Phase.COMPLETE, windows=()))
    state, verdict = _rule(state, inputs)
    stop = verdict.abort or abort_reason(state.windows)
    if stop is not None:
        return _abort(state, inputs, stop)
    if _is_complete(state):
        return Outcome(replace(state, phase=Phase.COMPLETE, hold_since=None))
    hold = verdict.hold or (None if inputs.is_ready else "the pool has no engine that is ready")
    if inputs.rollout.paused or state.paused:
        # A pause that somebody wants, however long, is no day without a verdict.
        return Outcome(replace(state, phase=Phase.PAUSED, hold_since=None), reason=hold or "paused")
    return _hold(state, inputs, hold) if hold is not None else _advance(state, inputs)


def _rule(state: RolloutState, inputs: Inputs) -> tuple[RolloutState, Verdict]:
    """Judge the last window, and remember it."""
    verdict = judge(inputs.figures, inputs.rollout.analysis, has_control=_has_control(state))
    return _with_window(state, inputs, verdict), verdict


def _advance(state: RolloutState, inputs: Inputs) -> Outcome:
    """Go to the next step if this one has lasted and seen enough."""
    figures = inputs.figures
    assert figures is not None, "without figures there is a hold"
    least = RAMP_SECONDS if state.is_ramp else float(inputs.rollout.min_duration_seconds)
    if inputs.now - state.step_since < least:
        return Outcome(replace(state, phase=Phase.PROGRESSING, hold_since=None), reason="the step goes on")
    if not state.is_ramp:
        lacking = shortage(figures, inputs.rollout)
        if lacking is not None:
            return _hold(state, inputs, lacking)
    broken = breaches(figures.step_canary, figures.step_control, inputs.rollout.analysis)
    if broken:
        return _abort(state, inputs, f"{', '.join(broken)} over the whole step")
    if state.weight >= USEFUL_WEIGHT and not state.is_ramp and is_useless(figures):
        return _abort(state, inputs, "no gain: neither reuse nor time to first token is better by 5%")
    return _promote(state, inputs, "the step has lasted and seen enough")


def _promote(state: RolloutState, inputs: Inputs, reason: str) -> Outcome:
    is_behind = inputs.reads and state.read_weight < state.weight
    promoted = _read_more(state, inputs) if is_behind else _at_step(state, inputs, _following(state, inputs))
    action = Action.COMPLETE if promoted.phase is Phase.COMPLETE else Action.PROMOTE
    return _decided(promoted, inputs, action, reason)


def _following(state: RolloutState, inputs: Inputs) -> int:
    """Return the number of the first step beyond what there is: steps may have been edited since the last."""
    steps = inputs.rollout.steps
    return next((number for number, step in enumerate(steps, 1) if step > state.read_weight), len(steps))


def _read_more(state: RolloutState, inputs: Inputs) -> RolloutState:
    """Let the next share of sessions read, up to those whose prompts the policy writes anyway."""
    following = next((step for step in inputs.rollout.steps if step > state.read_weight), WEIGHT_MAX)
    read_weight = min(following, state.weight)
    more = replace(
        state,
        read_weight=read_weight,
        is_ramp=state.is_ramp and read_weight < state.weight,
        phase=Phase.PROGRESSING,
        step_since=inputs.now,
        hold_since=None,
        windows=(),
    )
    return _completed(more, inputs)


def _hold(state: RolloutState, inputs: Inputs, reason: str) -> Outcome:
    since = state.hold_since if state.hold_since is not None else inputs.now
    if inputs.now - since > HOLD_SECONDS_MAX:
        taken_back = replace(_aborted(state), weight=0)
        return _decided(taken_back, inputs, Action.ABORT, f"no verdict for a day: {reason}")
    return Outcome(replace(state, phase=Phase.HOLDING, hold_since=since), reason=reason)


def _abort(state: RolloutState, inputs: Inputs, reason: str) -> Outcome:
    aborted = _aborted(state)
    # Where nothing is read, the prompts are all that the policy has changed.
    aborted = aborted if inputs.reads else replace(aborted, weight=0)
    return _decided(aborted, inputs, Action.ABORT, reason)


def _aborted(state: RolloutState) -> RolloutState:
    return replace(
        state,
        phase=Phase.ABORTED,
        read_weight=0,
        is_ramp=False,
        hold_since=None,
        complete_since=None,
        windows=(),
    )


def _at_step(state: RolloutState, inputs: Inputs, number: int) -> RolloutState:
    steps = inputs.rollout.steps
    number = min(number, len(steps))
    # Going back to an earlier step would make the sessions in between cold.
    weight = max(state.weight, steps[number - 1])
    there = replace(
        state,
        step=number,
        weight=weight,
        read_weight=steps[number - 1],
        phase=Phase.PROGRESSING,
        is_ramp=False,
        step_since=inputs.now,
        hold_since=None,
        windows=(),
    )
    return _completed(there, inputs)


def _completed(state: RolloutState, inputs: Inputs) -> RolloutState:
    if state.weight < WEIGHT_MAX or state.read_weight < state.weight:
        return state
    return replace(state, phase=Phase.COMPLETE, step=len(inputs.rollout.steps), complete_since=inputs.now)


def _has_control(state: RolloutState) -> bool:
    """Tell whether there are sessions to compare with."""
    return min(state.weight, state.read_weight) < WEIGHT_MAX


def _is_complete(state: RolloutState) -> bool:
    return state.complete_since is not None


def _with_window(state: RolloutState, inputs: Inputs, verdict: Verdict) -> RolloutState:
    """Remember the window, one for each minute; without a verdict there is nothing to remember."""
    if verdict.hold is not None and not verdict.breaches:
        return state
    # A window that has yet to come was written by a clock that was wrong, and holds up none of the others.
    if state.windows and 0 <= inputs.now - state.windows[-1].at < WINDOW_SECONDS:
        return state
    window = Window(inputs.now, verdict.breaches[: len(RULES)])
    return replace(state, windows=(*state.windows, window)[-WINDOWS_MAX:])


def _decided(state: RolloutState, inputs: Inputs, action: Action, reason: str) -> Outcome:
    decision = Decision(inputs.now, action, state.weight, reason, inputs.figures)
    return Outcome(state, (decision,), reason)
