"""
The logits processor that vLLM loads into the engine's own process (`--logits-processors`).

The engine reports log-probabilities as they are before any logits processor, so that a forced request tells
what the model thought of the forced tokens, and of others in their places.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from bench.quality.teacher import FORCED, Force, forcing


class ForcedAnswer(AdapterLogitsProcessor):  # type: ignore[misc]  # vLLM's classes have no types here
    """Lets a request that names its answer generate just that."""

    def is_argmax_invariant(self) -> bool:
        """It is not: it decides what is generated."""
        return False

    def new_req_logits_processor(self, params: Any) -> Force | None:
        """Return what forces this request's tokens; None for a request that names none."""
        forced = (params.extra_args or {}).get(FORCED)
        return forcing([int(token) for token in forced]) if forced else None
