"""
The splice: a stored tail's KV behind a middle, and one forward over everything that is not copied.

A prompt is `front` (prefix and middle) and tail. In rotate mode the tail's keys are turned to where the tail
stands; in anchor mode it always begins at one position, whatever is in front, and the gap is never seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from sternpost_engine.calibration import AS_BUILT, Mix
from sternpost_engine.matching import Run
from sternpost_engine.reference.cache import Rows, SlotCache
from sternpost_engine.reference.model import ReferenceModel
from sternpost_engine.tensors import StoredTail


@dataclass(frozen=True, slots=True, kw_only=True)
class Splice:
    """
    One request that reads a stored tail.

    `runs` are the tail's tokens that are computed, the last token among them. The first `held` tokens of
    `front` are in the cache already. `anchor` is the tail's first position, None for rotate mode. `answer`
    follows the tail, teacher-forced.
    """

    front: tuple[int, ...]
    runs: tuple[Run, ...]
    mix: Mix = AS_BUILT
    held: int = 0
    anchor: int | None = None
    answer: tuple[int, ...] = ()

    @property
    def tail_position(self) -> int:
        """The position that the tail's first token is rotated by."""
        return len(self.front) if self.anchor is None else self.anchor

    @property
    def computed_tail_tokens(self) -> int:
        """How many of the tail's tokens are computed."""
        return sum(run.count for run in self.runs)


def computed_runs(
    tail_tokens: int, *, head: int = 0, last: int = 1, matched: Sequence[Run] = ()
) -> tuple[Run, ...]:
    """
    Return the runs of a tail that are computed: its first, those that the middle points at, its last.

    `matched` lie between head and last. A tail that head and last cover is one run.

    Raises:
        ValueError: `head` is below 0 or `last` below 1: the last token's output is what is sampled.
    """
    if head < 0 or last < 1:
        raise ValueError(f"head {head} and last {last} are not allowed; allowed: from 0 and from 1 on")
    if head + last >= tail_tokens:
        return (Run(0, tail_tokens),)
    first = (Run(0, head),) if head else ()
    return (*first, *matched, Run(tail_tokens - last, last))


def splice(model: ReferenceModel, cache: SlotCache, tail: StoredTail, request: Splice) -> torch.Tensor:
    """
    Copy the tail into the cache, compute the rest in one forward, and return the logits.

    The cache needs room for front, tail and answer. The result has one row for the tail's last token and
    one for each token of the answer: [1 + len(answer), vocabulary].

    Raises:
        ValueError: an anchor lies inside the front.
    """
    if request.anchor is not None and request.anchor < len(request.front):
        allowed = f"{len(request.front)} and more, where the front ends"
        raise ValueError(f"anchor {request.anchor} is not allowed; allowed: {allowed}")
    place_tail(model, cache, tail, request)
    rows = _rows(tail.tokens, request)
    return model.forward(cache, rows, range(len(rows) - 1 - len(request.answer), len(rows)))


def place_tail(model: ReferenceModel, cache: SlotCache, tail: StoredTail, request: Splice) -> None:
    """Copy the tail's KV behind the front, keys turned to their positions."""
    count, slot = len(tail.tokens), len(request.front)
    turns = {
        heads: model.rotation.turn(request.tail_position, count, heads)
        for heads in {shape.kv_heads for shape in model.shapes}
    }
    for index, shape in enumerate(model.shapes):
        keys, values = tail.mixed(index, 0, count, request.mix)
        rotated = torch.empty_like(keys)
        turns[shape.kv_heads].apply(keys, rotated)
        cache.write(index, slot, rotated, values)


def prefill(
    model: ReferenceModel,
    cache: SlotCache,
    front: Sequence[int],
    tail: Sequence[int],
    *,
    answer: Sequence[int] = (),
    held: int = 0,
    anchor: int | None = None,
) -> torch.Tensor:
    """
    Compute a prompt in full and return the logits, in the shape that `splice` has.

    The first `held` tokens of `front` are in the cache already. With an `anchor` the tail stands behind a
    gap, and everything is computed.
    """
    tokens = (*front, *tail, *answer)
    shift = 0 if anchor is None else anchor - len(front)
    slots = tuple(range(held, len(tokens)))
    positions = tuple(slot + shift * (slot >= len(front)) for slot in slots)
    rows = Rows(tokens[held:], slots, positions)
    return model.forward(cache, rows, range(len(rows) - 1 - len(answer), len(rows)))


def _rows(tail: Sequence[int], request: Splice) -> Rows:
    entries = list(_entries(tail, request))
    tokens, slots, positions = zip(*entries, strict=True)
    return Rows(tokens, slots, positions)


def _entries(tail: Sequence[int], request: Splice) -> Iterator[tuple[int, int, int]]:
    """Yield token, slot and position of everything that is computed."""
    for place in range(request.held, len(request.front)):
        yield request.front[place], place, place
    behind, shift = len(request.front), request.tail_position - len(request.front)
    for run in request.runs:
        for offset in range(run.offset, run.end):
            yield tail[offset], behind + offset, behind + offset + shift
    end = behind + len(tail)
    for number, token in enumerate(request.answer):
        yield token, end + number, end + number + shift
