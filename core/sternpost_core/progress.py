"""
How far a CachePolicy's rollout has come: what of its status, and of its pool's, bears on requests.

The operator writes it, and every gateway reads it here, so that both agree about what a missing field means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

WEIGHT_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Progress:
    """
    Percent of session buckets whose prompts the policy writes, and of those that may read the suffix store.

    `epoch` is the operator's share of the keys' epoch. It only grows, and gateways add it to their own.
    """

    weight: int = 0
    read_weight: int = 0
    epoch: int = 0

    def writes(self, bucket: int) -> bool:
        """Tell whether the policy writes the prompts of a session bucket, 0 to 99."""
        return bucket < self.weight

    def reads(self, bucket: int) -> bool:
        """Tell whether a session bucket, 0 to 99, may read the suffix store."""
        return bucket < min(self.weight, self.read_weight)


def read_progress(policy: Mapping[str, Any], pool: Mapping[str, Any] | None) -> Progress:
    """
    Return what the objects of a policy and of its pool say.

    A policy that no operator has looked at yet has no canary. Whatever is not in its form counts as missing:
    a status is the operator's, and no reason to refuse a policy.
    """
    status, pool_status = _status(policy), _status(pool or {})
    weight = _count(status.get("weight"), WEIGHT_MAX)
    return Progress(
        weight=weight,
        read_weight=_count(status.get("readWeight", weight), WEIGHT_MAX),
        # Both only grow, so their sum is a new one whenever either of them is.
        epoch=_count(status.get("epoch")) + _count(pool_status.get("epoch")),
    )


def _status(value: Mapping[str, Any]) -> Mapping[str, Any]:
    status = value.get("status")
    return status if isinstance(status, Mapping) else {}


def _count(found: object, most: int | None = None) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        return 0
    return found if most is None else min(found, most)
