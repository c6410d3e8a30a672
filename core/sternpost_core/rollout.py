"""
Who gets a policy's new behaviour while it is rolled out: buckets of sessions, the same at every gateway.

A session's bucket is a hash, so nothing has to be remembered, and nothing moves that need not: when the
weight grows, the canary keeps its sessions and gains others. The control is as large as the canary for as
long as both fit, and takes its buckets from the other end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

BUCKETS: Final = 10_000
"""A weight of one percent is a hundred buckets."""

WEIGHT_MAX: Final = 100

_DOMAIN: Final = b"sternpost.dev/bucket"


class Arm(StrEnum):
    """What a session is in a rollout; the values are metric labels."""

    CANARY = "canary"
    """It gets the behaviour."""

    CONTROL = "control"
    """It does not, and is compared with the canary."""

    REST = "rest"
    """It does not, and is compared with nobody."""

    ALL = "all"
    """There is no rollout: every session gets the behaviour."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """
    How far a policy is rolled out, in percent of sessions.

    `weight` is for all that it does to prompts, `read_weight`, which is never more, for reading the suffix
    store. `epoch` is the least that the policy's keys may have.
    """

    weight: int = WEIGHT_MAX
    read_weight: int = WEIGHT_MAX
    epoch: int = 0


FOR_ALL: Final = Rollout()
"""Of a policy that nobody rolls out step by step."""

NOT_BEGUN: Final = Rollout(0, 0)
"""Of a policy that is to be rolled out, and about which nothing has been decided yet."""


def bucket_of(policy: str, session: bytes) -> int:
    """Return a session's bucket, from 0 to `BUCKETS` - 1; each policy has its own order of sessions."""
    name = policy.encode()
    parts = (_DOMAIN, name, session)
    data = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") % BUCKETS


def arm_of(bucket: int, weight: int) -> Arm:
    """
    Return what a bucket is at a weight in percent.

    At 10% the canary is buckets 0 to 999 and the control 9000 to 9999; at 60% the control is the other 40%.
    """
    size = weight * BUCKETS // WEIGHT_MAX
    if bucket < size:
        return Arm.CANARY
    return Arm.CONTROL if bucket >= BUCKETS - size else Arm.REST


def reads(bucket: int, rollout: Rollout) -> bool:
    """Say whether a bucket's sessions may read the suffix store."""
    return bucket < min(rollout.weight, rollout.read_weight) * BUCKETS // WEIGHT_MAX


def rollout_of(status: object, missing: Rollout) -> Rollout:
    """
    Return what a policy's status says, `missing` where it says nothing.

    A weight that cannot be understood is 0: what is not known to be decided is not done.
    """
    said: Mapping[str, Any] = status if isinstance(status, Mapping) else {}
    epoch = _number(said.get("epoch"), 2**53)
    if "weight" not in said:
        return Rollout(missing.weight, missing.read_weight, epoch)
    weight = _number(said["weight"], WEIGHT_MAX)
    return Rollout(weight, min(weight, _number(said.get("readWeight", weight), WEIGHT_MAX)), epoch)


def _number(found: object, largest: int) -> int:
    is_number = isinstance(found, int) and not isinstance(found, bool)
    return found if is_number and isinstance(found, int) and 0 <= found <= largest else 0
