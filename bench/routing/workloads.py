"""What is asked for: each workload is conversations, of which each is turns that follow one another."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

WORD_BYTES: Final = 8
TOKENS_PER_WORD: Final = 2
"""Words are of eight bytes, two of the mock engines' tokens."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A session that begins at a moment: its system prompt, and what its user says, turn by turn."""

    at: float
    session: str
    system: str
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """At a moment, engine `engine` comes or goes."""

    at: float
    engine: int
    up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Conversations, what happens meanwhile, and which engines are down at the beginning."""

    conversations: tuple[Conversation, ...]
    events: tuple[Event, ...] = ()
    down: tuple[int, ...] = ()


def text(chance: random.Random, tokens: int) -> str:
    """Return a text of so many tokens that no other text has."""
    return " ".join(f"{chance.getrandbits(28):07x}" for _ in range(tokens // TOKENS_PER_WORD))


def shared_bursts(chance: random.Random) -> Workload:
    """Bursts of eight concurrent requests, each burst behind one of six prefixes of 2,000 tokens."""
    prefixes = [text(chance, 2000) for _ in range(6)]
    conversations = [
        Conversation(0.4 * burst, f"b{burst}-{number}", prefixes[burst % 6], (text(chance, 40),))
        for burst in range(18)
        for number in range(8)
    ]
    return Workload(conversations=tuple(conversations))


def sessions(chance: random.Random) -> Workload:
    """Twenty-four sessions of five turns; each turn repeats all before it."""
    return Workload(
        conversations=tuple(
            Conversation(
                chance.uniform(0, 4),
                f"s{number}",
                text(chance, 600),
                tuple(text(chance, 250) for _ in range(5)),
            )
            for number in range(24)
        )
    )


def hot_prefix(chance: random.Random) -> Workload:
    """Six of ten requests share one prefix; the others have one of twenty."""
    hot, others = text(chance, 2000), [text(chance, 2000) for _ in range(20)]
    return Workload(
        conversations=tuple(
            Conversation(
                chance.uniform(0, 8),
                f"h{number}",
                hot if chance.random() < 0.6 else chance.choice(others),
                (text(chance, 60),),
            )
            for number in range(200)
        )
    )


def no_reuse(chance: random.Random) -> Workload:
    """No two requests share anything."""
    return Workload(
        conversations=tuple(
            Conversation(chance.uniform(0, 8), f"n{number}", text(chance, 1000), (text(chance, 40),))
            for number in range(200)
        )
    )


def pod_joins(chance: random.Random) -> Workload:
    """Sessions on three engines, until a fourth comes."""
    base = sessions(chance)
    return Workload(conversations=base.conversations, events=(Event(3.0, 3, True),), down=(3,))


def pod_dies(chance: random.Random) -> Workload:
    """Sessions on four engines, until one dies."""
    base = sessions(chance)
    return Workload(conversations=base.conversations, events=(Event(3.0, 0, False),))


WORKLOADS: Final[Mapping[str, Callable[[random.Random], Workload]]] = {
    "shared_bursts": shared_bursts,
    "sessions": sessions,
    "hot_prefix": hot_prefix,
    "no_reuse": no_reuse,
    "pod_joins": pod_joins,
    "pod_dies": pod_dies,
}
"""By name; each is drawn from a random generator, so that all routers get the same one."""
