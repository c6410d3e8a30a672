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


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of a workload there is: factors of its conversations, its prompts, and the time it takes."""

    count: float = 1.0
    tokens: float = 1.0
    seconds: float = 1.0

    def counted(self, number: int) -> int:
        """Return a number of conversations."""
        return max(1, round(number * self.count))

    def text(self, chance: random.Random, tokens: int) -> str:
        """Return a text of so many tokens that no other text has."""
        words = max(1, round(tokens * self.tokens / TOKENS_PER_WORD))
        return " ".join(f"{chance.getrandbits(28):07x}" for _ in range(words))

    def between(self, chance: random.Random, first: float, last: float) -> float:
        """Return a moment."""
        return self.seconds * chance.uniform(first, last)


WHOLE: Final = Size()


def shared_bursts(chance: random.Random, size: Size = WHOLE) -> Workload:
    """
    Bursts of eight concurrent requests, each burst behind one of six prefixes of 2,000 tokens.

    Each prefix comes fifteen times: to compute it on every engine once is a small part of the whole.
    """
    prefixes = [size.text(chance, 2000) for _ in range(6)]
    conversations = [
        Conversation(
            0.4 * burst * size.seconds, f"b{burst}-{number}", prefixes[burst % 6], (size.text(chance, 100),)
        )
        for burst in range(size.counted(90))
        for number in range(8)
    ]
    return Workload(conversations=tuple(conversations))


def sessions(chance: random.Random, size: Size = WHOLE) -> Workload:
    """Thirty-six sessions of five turns; each turn repeats all before it."""
    return Workload(
        conversations=tuple(
            Conversation(
                size.between(chance, 0, 6),
                f"s{number}",
                size.text(chance, 600),
                tuple(size.text(chance, 250) for _ in range(5)),
            )
            for number in range(size.counted(36))
        )
    )


def hot_prefix(chance: random.Random, size: Size = WHOLE) -> Workload:
    """Six of ten requests share one prefix; the others have one of twenty."""
    hot, others = size.text(chance, 2000), [size.text(chance, 2000) for _ in range(20)]
    return Workload(
        conversations=tuple(
            Conversation(
                size.between(chance, 0, 8),
                f"h{number}",
                hot if chance.random() < 0.6 else chance.choice(others),
                (size.text(chance, 200),),
            )
            for number in range(size.counted(200))
        )
    )


def no_reuse(chance: random.Random, size: Size = WHOLE) -> Workload:
    """No two requests share anything."""
    return Workload(
        conversations=tuple(
            Conversation(
                size.between(chance, 0, 9),
                f"n{number}",
                size.text(chance, 1000),
                (size.text(chance, 40),),
            )
            for number in range(size.counted(160))
        )
    )


def pod_joins(chance: random.Random, size: Size = WHOLE) -> Workload:
    """Sessions on three engines, until a fourth comes."""
    base = sessions(chance, size)
    return Workload(conversations=base.conversations, events=(Event(3.0 * size.seconds, 3, True),), down=(3,))


def pod_dies(chance: random.Random, size: Size = WHOLE) -> Workload:
    """Sessions on four engines, until one dies."""
    base = sessions(chance, size)
    return Workload(conversations=base.conversations, events=(Event(3.0 * size.seconds, 0, False),))


WORKLOADS: Final[Mapping[str, Callable[[random.Random, Size], Workload]]] = {
    "shared_bursts": shared_bursts,
    "sessions": sessions,
    "hot_prefix": hot_prefix,
    "no_reuse": no_reuse,
    "pod_joins": pod_joins,
    "pod_dies": pod_dies,
}
"""By name; each is drawn from a random generator, so that all routers get the same one."""
