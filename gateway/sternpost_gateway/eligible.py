"""Which engines may serve a request at all, before it is asked which serves it best."""

from __future__ import annotations

from collections.abc import Sequence

from sternpost_core.policy import Policy
from sternpost_gateway.errors import ModelNotFound
from sternpost_gateway.fleet import View


def eligible(views: Sequence[View], policy: Policy | None, model: str | None) -> tuple[View, ...]:
    """
    Return the engines of the policy's pool that serve the request's model.

    Where no engine is known to serve it, those of which nothing is known yet. Else, where all serve the same,
    all of the pool: what its engines say about an unknown model is better than anything that we could.

    Raises:
        ModelNotFound: engines serve different models, none this one, and no policy says whose word counts.
    """
    pool = f"{policy.namespace}/{policy.pool}" if policy is not None else None
    within = tuple(view for view in views if pool is None or view.engine.pool in ("", pool))
    if model is None:
        return within
    serving = tuple(view for view in within if model in view.info.models)
    chosen = serving or tuple(view for view in within if not view.info.models)
    if pool is None and within and not chosen and len({view.info.models for view in views}) > 1:
        raise ModelNotFound("no engine serves this model; GET /v1/models names those that are served")
    return chosen or within
