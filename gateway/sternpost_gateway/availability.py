"""What a policy may ask for that this release does not do; each is said once, when the policy goes live."""

from __future__ import annotations

from sternpost_core.policy import Policy, TenantSourceKind
from sternpost_core.policy_match import Caller


def is_served(policy: Policy, caller: Caller | None) -> bool:
    """Say whether a request of a policy is rewritten: only with the policy's own tenant source."""
    by_claim = policy.tenancy.tenant_source.kind is TenantSourceKind.JWT_CLAIM
    return not by_claim or (caller is not None and bool(caller.claims))


def missing_features(policy: Policy) -> list[str]:
    """Return what the policy asks for and does not get, as sentences."""
    notes: list[str] = []
    if policy.tenancy.tenant_source.kind is TenantSourceKind.JWT_CLAIM:
        notes.append("tenantFrom jwtClaim needs --jwt-keys; requests without a checked token pass unchanged")
    return notes
