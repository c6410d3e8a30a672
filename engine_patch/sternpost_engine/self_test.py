"""
The engine's self-test: a splice must compute what full prefill computes.

When the engine has started, it builds a tail of random tokens, and reads it behind the tokens that it was
built behind. The read's last tokens see copied KV where the build's saw computed KV, and the middle's row in
the same forward; so their keys and values must be the build's. Model, attention backend, kernels and rows are
those of real requests, and nothing of a user's is in it. Two short steps, before the first request.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sternpost_core.hint import HINT_FIELD, Hint, Operation, Reason

SELF_TEST_PREFIX: Final = "sternpost-self-test"
"""Begins the ids of the self-test's requests; no request of a client can have it, for vLLM makes the ids."""

SELF_TEST_KIND: Final = "self-test"
"""The kind of its tail, which sets it apart from any policy's."""

SCAFFOLD_TOKENS: Final = 16
"""The tokens in front of the tail: in the build its scaffold, in the read the middle's row."""

LAST_TOKENS: Final = 16
"""The tail's last tokens, which the read computes and the worker compares."""

SELF_TEST_TAIL_TOKENS: Final = 256
"""The tail's length, unless the engine takes longer ones only."""

COMPARED: Final = -2
"""The variant of a capture that is compared with what the build left, and not kept."""

SEED: Final = 20
"""The same random tokens at every start, so that a refusal can be made again."""


ATTEMPTS_MAX: Final = 3
"""So often it begins, where its requests are not let come to their end."""

CUT_SHORT: Final = frozenset({Reason.BUILDING, Reason.NOT_BUILT, Reason.BUSY, Reason.HIT})
"""How a request ends that was aborted, whose tail was forgotten, or that found no room: nothing was tried."""


def tail_tokens_for(tail_tokens_min: int, tokens_max: int) -> int:
    """Return how long a tail to try: one that the engine takes, and that fits into its longest request."""
    return max(tail_tokens_min, min(SELF_TEST_TAIL_TOKENS, tokens_max - SCAFFOLD_TOKENS - 1))


class Verdict(StrEnum):
    """How the self-test stands."""

    NOT_RUN = "not_run"
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Probe:
    """One request of the self-test: its id, its prompt, its `kv_transfer_params`, and whether it builds."""

    request_id: str
    prompt: tuple[int, ...]
    transfer: dict[str, Any]
    builds: bool = False


class SelfTest:
    """
    Two requests, one after the other, and what became of them.

    An engine may be put to sleep, or flooded with requests, before it is done; then it begins again.

    `vocabulary` is how many token ids there are, and `tail_tokens` how long a tail the engine takes.
    """

    def __init__(self, *, vocabulary: int, tail_tokens: int) -> None:
        chosen = random.Random(SEED)
        prompt = [chosen.randrange(vocabulary) for _ in range(SCAFFOLD_TOKENS + tail_tokens)]
        # One token stands twice, so that the worker can check the keys that it keeps.
        prompt[-1] = prompt[SCAFFOLD_TOKENS]
        self._prompt = tuple(prompt)
        self._tail_tokens = tail_tokens
        self._compared: bool | None = None
        self._attempts = 0
        self.verdict = Verdict.NOT_RUN
        self.reason: str | None = None

    @property
    def tokens(self) -> int:
        """The length of its requests, with the one token that is asked for."""
        return len(self._prompt) + 1

    def begin(self) -> Probe:
        """Return the build."""
        self.verdict, self._compared = Verdict.RUNNING, None
        self._attempts += 1
        return self._probe(Operation.BUILD)

    def owns(self, request_id: str) -> bool:
        """Whether a request is the self-test's."""
        return request_id.startswith(SELF_TEST_PREFIX)

    def compared(self, *, equal: bool) -> None:
        """The workers compared what the read computed with what the build left."""
        self._compared = equal

    def ended(self, request_id: str, reason: Reason) -> Probe | None:
        """One of its requests has ended, for this reason: return the next one, or conclude."""
        operation = Operation.BUILD if request_id == self._id(Operation.BUILD) else Operation.READ
        if operation is Operation.BUILD and reason is Reason.BUILT:
            return self._probe(Operation.READ)
        if operation is Operation.READ and reason is Reason.HIT and self._compared is not None:
            self._conclude(equal=self._compared)
        elif reason in CUT_SHORT and self._attempts < ATTEMPTS_MAX:
            return self.begin()
        else:
            self._fail(f"its {operation.value} ended as {reason.value}")
        return None

    def _conclude(self, *, equal: bool) -> None:
        if equal:
            self.verdict = Verdict.PASSED
        else:
            self._fail("a splice computes other keys and values than full prefill")

    def _fail(self, what: str) -> None:
        self.verdict, self.reason = Verdict.FAILED, f"self-test: {what}"

    def _probe(self, operation: Operation) -> Probe:
        hint = Hint(
            op=operation,
            prefix_tokens=SCAFFOLD_TOKENS,
            tail_tokens=self._tail_tokens,
            last=LAST_TOKENS,
            kind=SELF_TEST_KIND,
        )
        transfer = {HINT_FIELD: hint.to_mapping()}
        return Probe(self._id(operation), self._prompt, transfer, builds=operation is Operation.BUILD)

    def _id(self, operation: Operation) -> str:
        return f"{SELF_TEST_PREFIX}-{operation.value}"
