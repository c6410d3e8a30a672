"""Which paths are the engines': all below `/v1`, and what vLLM serves beside it to the same clients."""

from __future__ import annotations

from typing import Final

BELOW: Final = "/v1/"
"""What the paths of OpenAI's API begin with."""

BESIDE: Final = frozenset(
    {"/tokenize", "/detokenize", "/pooling", "/classify", "/score", "/rerank", "/v2/rerank"}
)
"""Paths that take a model's input and have no other place in vLLM, or have that of another API.

What steers or measures an engine (its metrics, its health, its cache, its weights) is nobody's but its
operator's, and is not passed through.
"""


def is_for_engines(path: str) -> bool:
    """Say whether a request for a decoded path goes to an engine."""
    return path.startswith(BELOW) or path in BESIDE
