"""One model, one tail, and what is computed on one middle: the exact answer, the floor, and every arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from sternpost_engine.calibrate.arms import FLOOR, GAP, Arm, Source
from sternpost_engine.calibrate.frame import Frame
from sternpost_engine.calibrate.scores import Observation
from sternpost_engine.calibration import mix_for
from sternpost_engine.marking import Marker
from sternpost_engine.matching import Run
from sternpost_engine.reference import (
    ReferenceModel,
    Rows,
    SlotCache,
    Splice,
    computed_runs,
    prefill,
    splice,
)
from sternpost_engine.tensors import StoredTail


@dataclass(frozen=True, slots=True)
class Answer:
    """The exact greedy answer, and the logarithms of its distributions, [tokens, vocabulary]."""

    tokens: tuple[int, ...]
    logs: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Laboratory:
    """
    What every middle is computed with.

    `exact` computes in float32, `rough` is the same model in bfloat16. `tails` holds the tail by the source
    of its KV, `marker` knows the tail's words, `anchor` is the position of an anchored tail.
    """

    exact: ReferenceModel
    rough: ReferenceModel
    frame: Frame
    tails: Mapping[Source, StoredTail]
    marker: Marker
    anchor: int
    answer_tokens: int
    stop_tokens: frozenset[int]

    def observe(self, middle: Sequence[int], arms: Sequence[Arm]) -> dict[Arm, Observation]:
        """Return what each arm makes of one middle."""
        front = self.frame.front(middle)
        cache = self.exact.new_cache(len(front) + len(self.frame.tail) + self.answer_tokens)
        answer = self._answer(cache, front)
        seen = {}
        for arm in arms:
            logits, computed = self.compute(arm, cache, middle, answer.tokens[:-1])
            seen[arm] = _compare(answer, logits, computed, self._behind_prefix(front))
        return seen

    def request(self, arm: Arm, front: tuple[int, ...], middle: Sequence[int]) -> Splice:
        """Return how an arm reads the tail behind this middle; the prefix is in the cache."""
        ready = sorted(self.tails[arm.source].means) if arm.source is Source.CALIBRATED else []
        return Splice(
            front=front,
            runs=self._runs(arm, middle),
            mix=mix_for(len(middle), ready),
            held=self.frame.insert,
            anchor=self.anchor if arm.anchored else None,
        )

    def compute(
        self, arm: Arm, cache: SlotCache, middle: Sequence[int], given: tuple[int, ...]
    ) -> tuple[torch.Tensor, int]:
        """
        Return an arm's logits where the tokens `given` follow the tail, and how many tokens it computes.

        Those in front of the prefix's end and behind the tail do not count. `cache` must hold the front's
        exact KV: nothing of it depends on the tail, so every arm reads it from there.
        """
        front = self.frame.front(middle)
        if arm == FLOOR:
            rough = self.rough.new_cache(len(front) + len(self.frame.tail) + len(given))
            return prefill(self.rough, rough, front, self.frame.tail, answer=given), self._behind_prefix(
                front
            )
        if arm == GAP:
            logits = prefill(
                self.exact,
                cache,
                front,
                self.frame.tail,
                answer=given,
                held=len(front),
                anchor=self.anchor,
            )
            return logits, self._behind_prefix(front)
        request = self.request(arm, front, middle)
        computed = len(front) - self.frame.insert + request.computed_tail_tokens
        request = replace(request, held=len(front), answer=given)
        return splice(self.exact, cache, self.tails[arm.source], request), computed

    def _answer(self, cache: SlotCache, front: tuple[int, ...]) -> Answer:
        """Compute the prompt, and then the likeliest tokens one by one."""
        logits = [prefill(self.exact, cache, front, self.frame.tail)[0]]
        tokens: list[int] = []
        slot = len(front) + len(self.frame.tail)
        while True:
            tokens.append(int(logits[-1].argmax()))
            if len(tokens) == self.answer_tokens or tokens[-1] in self.stop_tokens:
                break
            rows = Rows((tokens[-1],), (slot,), (slot,))
            logits.append(self.exact.forward(cache, rows, [0])[0])
            slot += 1
        return Answer(tuple(tokens), _logs(torch.stack(logits)))

    def _runs(self, arm: Arm, middle: Sequence[int]) -> tuple[Run, ...]:
        length = len(self.frame.tail)
        end = max(length - arm.last, arm.head)
        matched = self.marker.mark(0, middle, first=arm.head, end=end, tokens_max=arm.match)
        return computed_runs(length, head=arm.head, last=arm.last, matched=matched)

    def _behind_prefix(self, front: Sequence[int]) -> int:
        return len(front) + len(self.frame.tail) - self.frame.insert


def _compare(answer: Answer, logits: torch.Tensor, computed: int, prompt: int) -> Observation:
    logs = _logs(logits)
    kl = (answer.logs.exp() * (answer.logs - logs)).sum(dim=-1)
    agrees = logs.argmax(dim=-1) == answer.logs.argmax(dim=-1)
    # Rounding can take the divergence of two equal distributions below zero.
    return Observation(tuple(kl.clamp_min(0.0).tolist()), tuple(agrees.tolist()), computed, prompt)


def _logs(logits: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits.to(torch.float32), dim=-1)
