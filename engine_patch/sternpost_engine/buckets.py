"""
The suffix store's length buckets: what room a tail takes, and what share of the budget each length has.

A tail's room is rounded up to its bucket, so that freed room fits the next tail of that bucket. A bucket's
share is what the others cannot take from it; what a bucket leaves unused the others may borrow, and they
give it back as soon as it is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

BUCKET_TOKENS: Final = (256, 512, 1024, 2048, 4096)
"""The buckets' lengths in tokens, shortest first."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tails of at most `tokens` tokens; `share`, from 0 to 1, is this bucket's part of the budget."""

    tokens: int
    share: float


EQUAL_BUCKETS: Final = tuple(Bucket(tokens, 1 / len(BUCKET_TOKENS)) for tokens in BUCKET_TOKENS)
"""What an engine has whose owner says nothing of shares."""


@dataclass(frozen=True, slots=True)
class Held:
    """One tail that could make way: its entry, its bucket's length and its room in bytes."""

    entry: int
    bucket: int
    room_bytes: int


def bucket_for(buckets: Sequence[Bucket], tokens: int) -> Bucket | None:
    """Return the smallest bucket that takes so many tokens, or None; `buckets` are shortest first."""
    return next((bucket for bucket in buckets if tokens <= bucket.tokens), None)


def choose_victims(
    idle: Sequence[Held],
    bucket: int,
    *,
    used: Mapping[int, int],
    shares: Mapping[int, int],
    budget_bytes: int,
) -> list[int] | None:
    """
    Say which tails make way for a newcomer of this bucket, or None when they would not free enough.

    `idle` are the tails that nobody reads, least recently read first. `used` is each bucket's room in bytes
    with the newcomer's counted in, and `shares` each bucket's share in bytes. The buckets over their shares
    give way first, the newcomer's own among them. Where all of their tails are being read, the newcomer's
    bucket gives up one of its own; a tail of another bucket within its share never makes way.
    """
    left = dict(used)
    waiting = list(idle)
    victims: list[int] = []
    while sum(left.values()) > budget_bytes:
        borrower = next((held for held in waiting if left[held.bucket] > shares[held.bucket]), None)
        victim = borrower or next((held for held in waiting if held.bucket == bucket), None)
        if victim is None:
            return None
        waiting.remove(victim)
        left[victim.bucket] -= victim.room_bytes
        victims.append(victim.entry)
    return victims
