"""Which paths are the engines': all below `/v1`, and what vLLM serves beside it to the same clients."""

from __future__ import annotations

from typing import Final

BELOW: Final = "/v1/"
"""What the paths of OpenAI's API begin with."""

STEP_OUT: Final = ".."
"""The segment of a path that leads out of the one before it."""

BESIDE: Final = frozenset(
    {"/tokenize", "/detokenize", "/pooling", "/classify", "/score", "/rerank", "/v2/rerank"}
)
"""Paths that take a model's input and have no other place in vLLM, or have that of another API.

What steers or measures an engine (its metrics, its health, its cache, its weights) is nobody's but its
operator's, and is not passed through.
"""


def is_for_engines(path: str) -> bool:
    """
    Say whether a request for a decoded path goes to an engine.

    One that steps out of where it begins does not: what stands in front of an engine might follow it.
    """
    return (path.startswith(BELOW) and STEP_OUT not in path.split("/")) or path in BESIDE
