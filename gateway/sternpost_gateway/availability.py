"""What a policy may ask for that this release does not do; each is said once, when the policy goes live."""

from __future__ import annotations

from sternpost_core.policy import Policy, TenantSourceKind


def is_served(policy: Policy) -> bool:
    """Say whether a policy's requests are rewritten: only with its own tenant source."""
    return policy.tenancy.tenant_source.kind is not TenantSourceKind.JWT_CLAIM


def missing_features(policy: Policy) -> list[str]:
    """Return what the policy asks for and does not get, as sentences."""
    notes: list[str] = []
    if not is_served(policy):
        notes.append(
            "tenantFrom jwtClaim is not available in this release; this policy's requests pass unchanged"
        )
    return notes
