"""
A request's arm, and what it does to the request: a session that the rollout has not reached keeps its bytes.

It is the kill levels' own path that such a request takes: the one that is always in use, and always tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sternpost_core.jsonspan import Document
from sternpost_core.kill import KillLevel
from sternpost_core.policy import Policy
from sternpost_core.rollout import WEIGHT_MAX, Arm, Rollout, arm_of, bucket_of, reads
from sternpost_gateway.dialogue import dialogue_of

Rollouts = Mapping[str, Rollout]
"""How far each policy is rolled out, by its full name; one that is not there is there for all."""

OPENING_BYTES: Final = 1024
"""Of what stands in for a session: the first user message, as all later turns repeat it."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A request's arm, and the least level that it gets for it."""

    arm: Arm = Arm.ALL
    level: KillLevel = KillLevel.NONE


def place(policy: Policy, rollouts: Rollouts, session: bytes) -> Placed:
    """Return the arm of a session."""
    rollout = rollouts.get(policy.full_name)
    if rollout is None:
        return Placed()
    bucket = bucket_of(policy.full_name, session)
    arm = arm_of(bucket, rollout.weight)
    if arm is not Arm.CANARY:
        return Placed(arm, KillLevel.NO_REWRITE)
    if policy.suffix_cache is not None and not reads(bucket, rollout):
        return Placed(arm, KillLevel.NO_SUFFIX_READS)
    return Placed(arm)


def session_key(
    policy: Policy, rollouts: Rollouts, tenant: str | None, session: str | None, document: Document, path: str
) -> bytes:
    """
    Return what a request's bucket is taken from: its tenant and session, else how its conversation begins.

    It is looked for only where buckets differ.
    """
    rollout = rollouts.get(policy.full_name)
    if rollout is None or (rollout.weight, rollout.read_weight) in ((0, 0), (WEIGHT_MAX, WEIGHT_MAX)):
        return b""
    return conversation_bytes(tenant, session, document, path)


def conversation_bytes(tenant: str | None, session: str | None, document: Document, path: str) -> bytes:
    """Return a request's tenant and session as bytes, else its tenant and how its conversation begins."""
    if session is not None:
        return f"{tenant!r} {session!r}".encode()
    dialogue = dialogue_of(document, path)
    spans = (dialogue.middle[:1] or (dialogue.text,)) if dialogue is not None else ()
    opening = b"".join(document.body[span.start : span.end] for span in spans if span is not None)
    return repr(tenant).encode() + b" " + opening[:OPENING_BYTES]
