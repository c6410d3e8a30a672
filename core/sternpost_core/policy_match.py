"""
Which policy a request gets, and which policies may not stand side by side.

Two policies of equal priority are refused where one request could match both: which of them it gets would
be chance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from sternpost_core.errors import Fault, PolicyError
from sternpost_core.policy import Policy, TenantSourceKind

API_KEY_TENANT_PREFIX: Final = "key-"
"""Marks a tenant that is known by its API key only."""

_API_KEY_HEADERS: Final = ("authorization", "x-api-key")
_API_KEY_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class Traits:
    """What of a request decides its policy; header names are lower-case."""

    model: str | None
    tenant: str | None
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Caller:
    """
    Who has proved to send a request: `tenant` by a key or a token, and what a verified token claims as texts.
    """

    tenant: str
    claims: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicySet:
    """Policies of which each request gets at most one; highest priority first, then by full name."""

    policies: tuple[Policy, ...]

    def select(self, traits: Traits) -> Policy | None:
        """Return the first policy that matches, whatever its own source of the tenant."""
        return next((policy for policy in self.policies if matches(policy, traits)), None)

    def select_for(
        self, headers: Mapping[str, str], model: str | None, caller: Caller | None = None
    ) -> Policy | None:
        """Return the first policy that matches when each takes the tenant from its own source."""
        return next(
            (one for one in self.policies if matches(one, traits_for(one, headers, model, caller))), None
        )


def build_policy_set(policies: Iterable[Policy]) -> PolicySet:
    """
    Order policies for selection.

    Raises:
        PolicyError: when two have one full name, or equal priority although one request could match both;
            with one fault for each pair.
    """
    ordered = tuple(sorted(policies, key=lambda policy: (-policy.match.priority, policy.full_name)))
    faults = [fault for first, second in combinations(ordered, 2) if (fault := _conflict(first, second))]
    if faults:
        raise PolicyError("policies", faults)
    return PolicySet(ordered)


def settle(policies: Iterable[Policy]) -> dict[str, Fault]:
    """
    Return the policies that have to stand back for an earlier one, by full name, each with the reason.

    The order is the order of precedence: where policies are in a cluster, the oldest first.
    """
    standing: list[Policy] = []
    refused: dict[str, Fault] = {}
    for policy in policies:
        faults = (_conflict(policy, earlier) for earlier in standing)
        fault = next((fault for fault in faults if fault is not None), None)
        if fault is None:
            standing.append(policy)
        else:
            refused[policy.full_name] = fault
    return refused


def matches(policy: Policy, traits: Traits) -> bool:
    """Tell whether everything that the policy asks for holds; a trait that is None meets no demand."""
    match = policy.match
    return (
        (not match.models or traits.model in match.models)
        and (not match.tenants or traits.tenant in match.tenants)
        and all(traits.headers.get(name) == value for name, value in match.headers.items())
    )


def overlaps(first: Policy, second: Policy) -> bool:
    """
    Tell whether one request could match both policies.

    Two demands exclude one another only where they are made of the same thing: two tenants from the same
    header do, two tenants from different headers do not, because a request may carry both headers.
    """
    ours, theirs = _demands(first), _demands(second)
    possible = all(ours.values()) and all(theirs.values())
    return possible and all(ours[subject] & theirs[subject] for subject in ours.keys() & theirs.keys())


def tenant_of(policy: Policy, headers: Mapping[str, str], caller: Caller | None = None) -> str | None:
    """
    Return the tenant that the policy sees in a request, or None.

    An API key that nobody has checked becomes a digest, because the tenant's name is logged. A claim counts
    only as the caller's, whose token has been checked.
    """
    source = policy.tenancy.tenant_source
    if source.kind is TenantSourceKind.HEADER:
        return headers.get(source.name) or None
    if source.kind is TenantSourceKind.JWT_CLAIM:
        return None if caller is None else caller.claims.get(source.name)
    if source.kind is TenantSourceKind.API_KEY:
        if caller is not None:
            return caller.tenant
        key = next((headers[name] for name in _API_KEY_HEADERS if headers.get(name)), None)
        return None if key is None else _key_tenant(key)
    return None


def traits_for(
    policy: Policy, headers: Mapping[str, str], model: str | None, caller: Caller | None = None
) -> Traits:
    """Return what the policy is matched against; the tenant is read only where the policy asks about it."""
    return Traits(model, tenant_of(policy, headers, caller) if policy.match.tenants else None, headers)


def session_of(policy: Policy, headers: Mapping[str, str]) -> str | None:
    """Return the session that the policy sees in a request's headers, or None."""
    return headers.get(policy.tenancy.session_header) or None


def _key_tenant(key: str) -> str:
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
    return API_KEY_TENANT_PREFIX + digest[:_API_KEY_DIGITS]


def _demands(policy: Policy) -> dict[tuple[str, str], frozenset[str]]:
    """Return the values that the policy accepts of each thing it asks about."""
    match, source = policy.match, policy.tenancy.tenant_source
    demands = {("header", name): frozenset({value}) for name, value in match.headers.items()}
    if match.models:
        demands["model", ""] = frozenset(match.models)
    if match.tenants:
        subject = (source.kind.value, source.name)
        tenants = frozenset(match.tenants)
        demands[subject] = demands.get(subject, tenants) & tenants
    return demands


def _conflict(first: Policy, second: Policy) -> Fault | None:
    if first.full_name == second.full_name:
        return Fault(first.full_name, "the name of two policies", "one policy of each name")
    if first.match.priority != second.match.priority or not overlaps(first, second):
        return None
    found = f"{first.match.priority}, as in {second.full_name}, which can match the same request,"
    allowed = "different priorities, or matches that exclude one another"
    return Fault(f"{first.full_name}: spec.match.priority", found, allowed)
