"""The identify stage: whose request this is, which policy it gets, and what is switched off for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sternpost_core.jsonspan import Document, value
from sternpost_core.kill import KillLevel
from sternpost_core.policy import Policy
from sternpost_core.policy_match import PolicySet, session_of, tenant_of
from sternpost_core.rollout import Arm, bucket_of
from sternpost_gateway.availability import is_served
from sternpost_gateway.canary import Placed, Rollouts, conversation_bytes, place, session_key
from sternpost_gateway.headers import CACHE_HEADER, as_mapping
from sternpost_gateway.kills import EVERYONE, KillTable
from sternpost_gateway.receive import Received

NO_ROLLOUTS: Final[Rollouts] = {}
"""Every policy counts for all."""

SESSION_HEADERS: Final = ("x-session-id", "x-session-token", "x-claude-code-session-id", "x-session-affinity")
"""Where common clients name their session, when no policy says where."""

SESSION_FIELD: Final = "prompt_cache_key"
"""Where OpenAI's clients name it."""

CACHE_FIELD: Final = "prefix_cache"
"""The body field that turns reuse off for one request; it is consumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """
    A request and who it is from; `reuse_off` is the client's own wish.

    `arm` is what its session is in a rollout, and `held` the part of `level` that it gets for that.
    """

    received: Received
    model: str | None = None
    policy: Policy | None = None
    tenant: str | None = None
    session: str | None = None
    level: KillLevel = KillLevel.NONE
    epoch: int = 0
    arm: Arm = Arm.ALL
    held: KillLevel = KillLevel.NONE
    reuse_off: bool = False

    @property
    def is_served(self) -> bool:
        """Say whether the request's policy can be had with what is known of the caller."""
        return self.policy is None or is_served(self.policy, self.received.caller)


def identify(
    received: Received, policies: PolicySet, kills: KillTable, rollouts: Rollouts = NO_ROLLOUTS
) -> Identified:
    """Name model, policy, tenant, session and kill level; of an unread request, the level only."""
    document = received.document
    if document is None:
        return Identified(received=received, model=received.model, level=kills.everyone)
    headers = as_mapping(received.headers)
    model = text_member(document, "model")
    policy = policies.select_for(headers, model, received.caller)
    name = policy.full_name if policy else None
    tenant = tenant_of(policy, headers, received.caller) if policy else None
    session = (session_of(policy, headers) if policy else None) or _common_session(headers, document)
    placed = Placed()
    if policy is not None:
        key = session_key(policy, rollouts, tenant, session, document, received.path)
        placed = place(policy, rollouts, key)
    level, way = kills.level(name), kills.transition(name)
    if way is not None:
        key = conversation_bytes(tenant, session, document, received.path)
        level = way.level_of(bucket_of(name or EVERYONE, key), received.arrived)
    return Identified(
        received=received,
        model=model,
        policy=policy,
        tenant=tenant,
        session=session,
        level=max(level, placed.level),
        arm=placed.arm,
        held=placed.level,
        epoch=kills.epoch(name) if name else 0,
        reuse_off=headers.get(CACHE_HEADER, "").lower() == "off" or _is_false(document, CACHE_FIELD),
    )


def text_member(document: Document, key: str) -> str | None:
    """Return a top-level member that is a string, else None."""
    member = document.members.get(key)
    found = value(document, member.value_span) if member else None
    return found if isinstance(found, str) else None


def _common_session(headers: Mapping[str, str], document: Document) -> str | None:
    named = (headers[name] for name in SESSION_HEADERS if headers.get(name))
    return next(named, None) or text_member(document, SESSION_FIELD)


def _is_false(document: Document, key: str) -> bool:
    member = document.members.get(key)
    return member is not None and document.body[slice(*member.value_span)] == b"false"
