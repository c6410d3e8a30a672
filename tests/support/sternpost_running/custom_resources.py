"""The custom resources of one namespace of a running cluster, as tests write and read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sternpost_running.kubernetes import READY_SECONDS_MAX, Cluster

PLURALS = {"CachePolicy": "cachepolicies", "EnginePool": "enginepools"}
API = "/apis/sternpost.dev/v1alpha1"


def is_ready(status: Mapping[str, Any]) -> bool:
    """Tell whether a status says Ready."""
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", []))


@dataclass(frozen=True, slots=True)
class Resources:
    """Makes policies and pools in `namespace`, and looks at them."""

    cluster: Cluster
    namespace: str

    def pool(self, name: str = "pool", **engine: Any) -> dict[str, Any]:
        """Apply a pool whose engines the operator runs, two unless it is told otherwise."""
        spec = {"engine": {"model": "m", "image": "engine", "replicas": 2, **engine}}
        return self._apply("EnginePool", name, spec)

    def policy(self, name: str = "policy", **spec: Any) -> dict[str, Any]:
        """Apply a policy that reuses tails, for a model that is named after it."""
        prompt = {"layout": "FixedTail", "tail": {"source": "LastSystemMessage"}}
        whole = {
            "match": {"models": [f"{self.namespace}-{name}"]},
            "poolRef": {"name": "pool"},
            "prompt": prompt,
        }
        return self._apply("CachePolicy", name, {**whole, "suffixCache": {}, **spec})

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object; an empty one where there is none."""
        return self.cluster.get(f"{API}/namespaces/{self.namespace}/{PLURALS[kind]}/{name}")

    def status(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object's status."""
        status: dict[str, Any] = self.get(kind, name).get("status", {})
        return status

    def condition(self, kind: str, name: str, condition: str) -> tuple[str, str, str]:
        """Return status, reason and message of a condition."""
        found = self.status(kind, name).get("conditions", [])
        nothing: Mapping[str, str] = {}
        one = next((one for one in found if one["type"] == condition), nothing)
        return one.get("status", ""), one.get("reason", ""), one.get("message", "")

    def wait_for(
        self,
        kind: str,
        name: str,
        holds: Callable[[Mapping[str, Any]], object],
        what: str,
        seconds_max: float = READY_SECONDS_MAX,
    ) -> dict[str, Any]:
        """Wait until something holds of an object's status, and return the status."""
        try:
            self.cluster.wait(lambda: holds(self.status(kind, name)), what, seconds_max)
        except AssertionError as error:
            # Why it does not hold is most often said by the object itself.
            raise AssertionError(f"{error}; {kind} {name} says {self.status(kind, name)}") from error
        return self.status(kind, name)

    def events(self, name: str) -> list[str]:
        """Return the reasons of the operator's events about an object."""
        items = self.cluster.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [
            event["reason"]
            for event in items
            if event["involvedObject"]["name"] == name
            and event["source"].get("component") == "sternpost-operator"
        ]

    def annotate(self, name: str, order: str) -> None:
        """Ask something of a policy's rollout."""
        words = ["annotate", "-n", self.namespace, "cachepolicy", name, "--overwrite"]
        done = self.cluster.kubectl(*words, f"sternpost.dev/rollout={order}")
        assert done.returncode == 0, done.stderr

    def _apply(self, kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        metadata = {"name": name, "namespace": self.namespace}
        value = {
            "apiVersion": "sternpost.dev/v1alpha1",
            "kind": kind,
            "metadata": metadata,
            "spec": dict(spec),
        }
        self.cluster.apply(value)
        return value
