"""
What is asked of both engines: who speaks in which order, what is fixed, what is measured.

A scenario is a list of sessions, a session a list of turns that follow one another. Turns are scripted, so
that both engines get the same bytes whatever they answer. Batches of one session measure each request by
itself; batches of eight sessions at once measure the engine under load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from bench.common.engine_api import Messages
from sternpost_gateway.bench.texts import rules, text

ANSWER_TOKENS: Final = 16
"""Every answer's length: an agent's short reply."""

TURNS: Final = 5
"""Of a session with tools, as in the founding article."""

HISTORY_TURNS: Final = 3
"""Of a conversation without tools."""

AT_ONCE: Final = 8
"""Sessions that run at once under load."""

RULES_TOKENS: Final = 1200
MIDDLE_TOKENS: Final = 80
"""The founding article's request: so much of the user's, then so much that is fixed."""

SHORT_TAIL_TOKENS: Final = 60
"""Under the plugin's least length of a tail, 256."""

SHORT_CHAT_TOKENS: Final = 150
NO_REUSE_TOKENS: Final = 250
PREFIX_TOKENS: Final = 700
TURN_TOKENS: Final = 50
"""Of each message of a turn: the user's, the tool's call and its result."""

LONG_MIDDLE_TOKENS: Final = 1700
"""More than the share of a step that a middle may take, and than an anchor of 2,048 leaves behind it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """
    One request: what stands between prefix and tail.

    What is not `measured` only makes the state that the next turn meets.
    """

    middle: Messages
    measured: bool = True


@dataclass(frozen=True, slots=True)
class Session:
    """Turns that follow one another."""

    id: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Sessions that run at once."""

    id: str
    sessions: tuple[Session, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """
    `prefix` and `tail` are the fixed parts, empty for none.

    `hinted` says whether requests carry the hint to read the tail; `built` whether the tail is in the
    suffix store.
    """

    name: str
    batches: tuple[Batch, ...]
    prefix: str = ""
    tail: str = ""
    hinted: bool = True
    built: bool = True


@dataclass(frozen=True, slots=True)
class Size:
    """How many batches a scenario has: of one session, and of `AT_ONCE` sessions."""

    alone: int
    loaded: int


SIZES: Final = {
    "fixed_tail": Size(12, 3),
    "tool_turns": Size(3, 1),
    "regenerate": Size(10, 0),
    "long_session": Size(3, 0),
    "no_reuse": Size(20, 8),
    "short_chat": Size(20, 8),
    "past_anchor": Size(3, 0),
}
"""
Sized so that the whole run takes twenty minutes on one core; more would narrow the intervals.

Where a bound is near 1, a single batch says little: those have the most.
"""


def make_scenarios(seed: int) -> tuple[Scenario, ...]:
    """Make all scenarios, the same ones for the same seed."""
    chance = Random(seed)
    tail = rules(chance, RULES_TOKENS)
    short_tail = rules(chance, SHORT_TAIL_TOKENS)
    prefix = text(chance, PREFIX_TOKENS)
    return (
        _scenario("fixed_tail", seed, _one_turn(MIDDLE_TOKENS), tail=tail),
        _scenario("tool_turns", seed, _tool_turns, prefix=prefix, tail=tail),
        _scenario("regenerate", seed, _twice, tail=tail),
        _scenario("long_session", seed, _history, prefix=prefix, tail=tail),
        _scenario("no_reuse", seed, _one_turn(NO_REUSE_TOKENS), hinted=False, built=False),
        _scenario("short_chat", seed, _one_turn(SHORT_CHAT_TOKENS), tail=short_tail, built=False),
        _scenario("past_anchor", seed, _one_turn(LONG_MIDDLE_TOKENS), prefix=prefix, tail=tail),
    )


MakeTurns = Callable[[Random], Sequence[Turn]]


def _scenario(
    name: str,
    seed: int,
    make: MakeTurns,
    *,
    prefix: str = "",
    tail: str = "",
    hinted: bool = True,
    built: bool = True,
) -> Scenario:
    chance = Random(f"{seed} {name}")
    size = SIZES[name]
    alone = [_batch(f"{name}-1-{number}", 1, make, chance) for number in range(size.alone)]
    loaded = [_batch(f"{name}-{AT_ONCE}-{number}", AT_ONCE, make, chance) for number in range(size.loaded)]
    return Scenario(
        name=name,
        batches=(*alone, *loaded),
        prefix=prefix,
        tail=tail,
        hinted=hinted,
        built=built,
    )


def _batch(name: str, sessions: int, make: MakeTurns, chance: Random) -> Batch:
    made = (Session(f"{name}-{number}", tuple(make(chance))) for number in range(sessions))
    return Batch(name, tuple(made))


def _one_turn(tokens: int) -> MakeTurns:
    return lambda chance: [Turn((_user(chance, tokens),))]


def _twice(chance: Random) -> list[Turn]:
    """Return a request, and the same one again: what a user sees who presses "regenerate"."""
    middle = (_user(chance, MIDDLE_TOKENS),)
    return [Turn(middle, measured=False), Turn(middle)]


def _tool_turns(chance: Random) -> list[Turn]:
    """Return a question whose answer takes a tool call in each turn."""
    messages = [_user(chance, TURN_TOKENS)]
    turns = [Turn(tuple(messages))]
    for number in range(1, TURNS):
        call = f'{{"tool": "look_up", "number": {number}, "about": "{text(chance, TURN_TOKENS // 2)}"}}'
        messages += [
            {"role": "assistant", "content": call},
            {"role": "user", "content": f"Tool result: {text(chance, TURN_TOKENS)}"},
        ]
        turns.append(Turn(tuple(messages)))
    return turns


def _history(chance: Random) -> list[Turn]:
    """Return a conversation that goes on, whose every request holds all of it."""
    messages = [_user(chance, MIDDLE_TOKENS)]
    turns = [Turn(tuple(messages))]
    for _ in range(1, HISTORY_TURNS):
        answer = {"role": "assistant", "content": text(chance, MIDDLE_TOKENS)}
        messages += [answer, _user(chance, MIDDLE_TOKENS)]
        turns.append(Turn(tuple(messages)))
    return turns


def _user(chance: Random, tokens: int) -> dict[str, str]:
    return {"role": "user", "content": text(chance, tokens)}
