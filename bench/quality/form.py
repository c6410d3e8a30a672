"""
Whether an answer has the form that a tail asks for, apart from whether it is the right one; all of it pure.

Arms are asked for the log-probabilities of the exact arm's greedy answer, so an arm's own choice is known at
each position behind the same beginning. Two things follow. At the first position: whether the likeliest
token begins one of the answers that the tail allows, which for a tail of tools is the validity of a tool
call. Behind the first word: whether the likeliest token ends the answer, where the tail allows no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.quality.asking import Reading

ENDS: Final = frozenset({".", "<|im_end|>", "<|endoftext|>"})
"""The texts of tokens that end an answer: a full stop, and what ends the model's turn."""


@dataclass(frozen=True, slots=True)
class Ending:
    """
    Where an answer is to end: the position behind its first word, and which likeliest tokens there end it.

    `places` count among the exact answer's likeliest tokens at that position; without any, no arm ends there.
    """

    position: int
    places: frozenset[int]


def is_named(reading: Reading) -> bool:
    """Tell whether no token is likelier at first than the likeliest of those that begin an allowed answer."""
    return max(reading.answers) >= max(reading.positions[0])


def named_mass(reading: Reading) -> float:
    """Return the probability, from 0 to 1, that the first token begins an allowed answer."""
    return math.fsum(map(math.exp, reading.answers))


def ending_of(texts: Sequence[str], likeliest: Sequence[Sequence[str]]) -> Ending:
    """
    Return where the answer is to end.

    `texts` are those of the exact answer's tokens, `likeliest` those of the likeliest tokens by position. A
    word goes on while tokens begin with a letter. An answer that is cut within its first word ends nowhere.
    """
    for position in range(1, len(texts)):
        if not texts[position][:1].isalpha():
            ends = (place for place, text in enumerate(likeliest[position]) if text in ENDS)
            return Ending(position, frozenset(ends))
    return Ending(0, frozenset())


def is_ended(reading: Reading, ending: Ending) -> bool:
    """Tell whether the arm's likeliest token behind the first word ends the answer."""
    values = reading.positions[ending.position]
    return max(range(len(values)), key=values.__getitem__) in ending.places
