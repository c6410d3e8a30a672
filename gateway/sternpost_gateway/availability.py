"""What a policy may ask for that this release does not do; each is said once, when the policy goes live."""

from __future__ import annotations

from sternpost_core.policy import Policy, TailSource, TenantSourceKind


def is_served(policy: Policy) -> bool:
    """Say whether a policy's requests are rewritten: only with its own tail and tenant source."""
    tail = policy.prompt.tail
    return policy.tenancy.tenant_source.kind is not TenantSourceKind.JWT_CLAIM and (
        tail is None or tail.source is not TailSource.LEARNED
    )


def missing_features(policy: Policy) -> list[str]:
    """Return what the policy asks for and does not get, as sentences."""
    notes: list[str] = []
    if not is_served(policy):
        notes.append(
            "tail source Learned and tenantFrom jwtClaim are not available"
            " in this release; this policy's requests pass unchanged"
        )
    return notes
