"""The Kubernetes resources that the operator reads and writes, and where they are found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sternpost_core.kill import KILL_SWITCH_KIND
from sternpost_core.policy import POLICY_KIND
from sternpost_core.pool import POOL_KIND

GROUP: Final = "sternpost.dev"
VERSION: Final = "v1alpha1"

POOL_LABEL: Final = "sternpost.dev/pool"
"""On everything that a pool renders: the pool's name."""

MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "sternpost-operator"

Object = Mapping[str, Any]
"""A Kubernetes object as JSON has it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object, and whether it lies in namespaces."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The value of `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_plural(self) -> str:
        """The name that rules of access and messages use, such as `statefulsets.apps`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, below: str = "") -> str:
        """Return the path of the collection, of an object or of its subresource."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        return f"{base}{inside}/{self.plural}{f'/{name}' if name else ''}{f'/{below}' if below else ''}"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What identifies an object; `namespace` is empty where the kind has none."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


POLICIES: Final = Resource(GROUP, VERSION, "cachepolicies", POLICY_KIND)
POOLS: Final = Resource(GROUP, VERSION, "enginepools", POOL_KIND)
SWITCHES: Final = Resource(GROUP, VERSION, "cachekillswitches", KILL_SWITCH_KIND, namespaced=False)
STATEFUL_SETS: Final = Resource("apps", "v1", "statefulsets", "StatefulSet")
PODS: Final = Resource("", "v1", "pods", "Pod")
SERVICES: Final = Resource("", "v1", "services", "Service")
EVENTS: Final = Resource("", "v1", "events", "Event")
BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
BUDGETS_BEFORE_1_21: Final = Resource("policy", "v1beta1", "poddisruptionbudgets", "PodDisruptionBudget")
ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)

OWN: Final = (POLICIES, POOLS, SWITCHES)
"""The custom resources, which are watched and listed."""

RENDERED: Final = (STATEFUL_SETS, SERVICES, PODS)
"""What pools render, and the pods that come of it; found by `MANAGED_LABEL`."""


def key_of(value: Object, kind: str) -> Key:
    """Return the key of an object; lists leave out the kind of their elements, so it is passed in."""
    metadata = value["metadata"]
    return Key(kind, metadata.get("namespace", ""), metadata["name"])
