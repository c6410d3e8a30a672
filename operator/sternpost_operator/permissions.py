"""
What the operator must be allowed to do: nothing else is asked for anywhere.

The chart renders its ClusterRole from the same list, and an end-to-end test runs with exactly these rights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sternpost_operator.kube import Api
from sternpost_operator.resources import ACCESS_REVIEWS, GROUP


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs on resources of one group, each with the reason that it is needed."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    reason: str


PERMISSIONS: Final = (
    Permission(
        GROUP,
        ("cachepolicies", "enginepools", "cachekillswitches"),
        ("get", "list", "watch"),
        "what is wanted",
    ),
    Permission(
        GROUP,
        ("cachepolicies/status", "enginepools/status", "cachekillswitches/status"),
        ("update",),
        "what was found and done",
    ),
    Permission(
        "apps",
        ("statefulsets",),
        ("create", "get", "list", "patch", "watch"),
        "the engines of a pool",
    ),
    Permission(
        "", ("services",), ("create", "get", "list", "patch", "watch"), "the names of a pool's engines"
    ),
    Permission(
        "policy",
        ("poddisruptionbudgets",),
        ("create", "get", "list", "patch"),
        "one engine at a time in a drain",
    ),
    Permission("", ("pods",), ("get", "list", "watch"), "which engines and gateways there are"),
    Permission("", ("events",), ("create",), "what a person should find beside an object"),
    # Owner references that block deletion need this where the admission plugin for them is on.
    Permission(GROUP, ("enginepools/finalizers",), ("update",), "owning what a pool becomes"),
    # The framework looks which resources there are, and whether it may watch them everywhere.
    Permission("apiextensions.k8s.io", ("customresourcedefinitions",), ("list", "watch"), "new resources"),
)
"""Everything, for a ClusterRole."""


def policy_rules() -> list[dict[str, Any]]:
    """Return the permissions as the rules of a ClusterRole."""
    return [
        {"apiGroups": [one.group], "resources": list(one.resources), "verbs": list(one.verbs)}
        for one in PERMISSIONS
    ]


def single_rights() -> Iterator[tuple[str, str, str]]:
    """Yield every right by itself: group, resource with its subresource, verb."""
    for one in PERMISSIONS:
        yield from ((one.group, resource, verb) for resource in one.resources for verb in one.verbs)


async def missing_rights(api: Api) -> list[str]:
    """
    Return the rights that the operator lacks, such as "create statefulsets.apps".

    Raises:
        ApiFailed: the API server did not say.
    """
    return [
        f"{verb} {resource}{f'.{group}' if group else ''}"
        for group, resource, verb in single_rights()
        if not await _is_allowed(api, group, resource, verb)
    ]


async def _is_allowed(api: Api, group: str, resource: str, verb: str) -> bool:
    plural, _, subresource = resource.partition("/")
    attributes = {"group": group, "resource": plural, "subresource": subresource, "verb": verb}
    review = {
        "apiVersion": ACCESS_REVIEWS.api_version,
        "kind": ACCESS_REVIEWS.kind,
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }
    answer = await api.create(ACCESS_REVIEWS, review)
    return bool(answer.get("status", {}).get("allowed"))
