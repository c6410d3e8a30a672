"""
Teacher forcing inside the engine: a request may name the tokens that it is given as its answer.

The engine reports log-probabilities as they are before any logits processor, so that a forced request tells
what the model thought of the forced tokens, and of others in their places. This module is loaded by vLLM
(`--logits-processors`), in the engine's own process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

FORCED: Final = "bench_forced"
"""The key of a request's `vllm_xargs` that holds the token ids."""


class ForcedAnswer(AdapterLogitsProcessor):  # type: ignore[misc]  # vLLM's classes have no types here
    """Lets a request that names its answer generate just that."""

    def is_argmax_invariant(self) -> bool:
        """It is not: it decides what is generated."""
        return False

    def new_req_logits_processor(self, params: Any) -> Callable[[list[int], Any], Any] | None:
        """Return what forces this request's tokens; None for a request that names none."""
        forced = (params.extra_args or {}).get(FORCED)
        return forcing([int(token) for token in forced]) if forced else None


def forcing(tokens: Sequence[int]) -> Callable[[list[int], Any], Any]:
    """Return a function that leaves one token possible: the next one of `tokens`."""

    def force(output: list[int], logits: Any) -> Any:
        # Behind the last forced token the request has ended, or computes one that is not used.
        token = tokens[min(len(output), len(tokens) - 1)]
        kept = logits[token].clone()
        logits.fill_(float("-inf"))
        logits[token] = kept
        return logits

    return force
