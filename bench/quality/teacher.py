"""
Teacher forcing: every arm is given the exact arm's answer, token by token.

A request names the tokens that it is to be given; `processor` applies them inside the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

FORCED: Final = "bench_forced"
"""The key of a request's `vllm_xargs` that holds the token ids."""

Force = Callable[[list[int], Any], Any]
"""Takes the tokens generated so far and the logits of the next one, and returns the logits to sample from."""


def forcing(tokens: Sequence[int]) -> Force:
    """Return a function that leaves one token possible: the next one of `tokens`."""

    def force(output: list[int], logits: Any) -> Any:
        # Behind the last forced token the request has ended, or computes one that is not used.
        token = tokens[min(len(output), len(tokens) - 1)]
        kept = logits[token].clone()
        logits.fill_(float("-inf"))
        logits[token] = kept
        return logits

    return force
