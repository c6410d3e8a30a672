"""Reading pods: which can serve, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sternpost_gateway.cluster.resources import Object

OVER: Final = ("Succeeded", "Failed")
"""The phases of pods that will not run again."""

KEPT_METADATA: Final = ("name", "namespace", "resourceVersion", "deletionTimestamp")

REVISION_LABEL: Final = "sternpost.dev/revision"
"""The label by which whoever runs engines says that a pod's engine is another one than before."""

READY: Final = "Ready"
"""The condition of a pod whose readiness probes all pass."""


def is_ready(pod: Object) -> bool:
    """Say whether a pod is ready for new requests: its probes pass, and nobody has asked it to end."""
    conditions = _objects(_below(pod, "status").get("conditions"))
    passes = any(item.get("type") == READY and item.get("status") == "True" for item in conditions)
    return passes and not is_leaving(pod)


def is_leaving(pod: Object) -> bool:
    """Say whether somebody has asked a pod to end, or it has ended."""
    over = _below(pod, "status").get("phase") in OVER
    return over or bool(_below(pod, "metadata").get("deletionTimestamp"))


def revision_of(pod: Object) -> str:
    """Return what a pod says of its engine's revision, empty if it says nothing."""
    found = _below(_below(pod, "metadata"), "labels").get(REVISION_LABEL)
    return found if isinstance(found, str) else ""


def slim_pod(pod: Object) -> Object:
    """Return of a pod what this module reads, and what identifies it."""
    metadata, status = _below(pod, "metadata"), _below(pod, "status")
    ready = [item for item in _objects(status.get("conditions")) if item.get("type") == READY]
    kept = {key: metadata[key] for key in KEPT_METADATA if key in metadata}
    revision = revision_of(pod)
    return {
        "metadata": {**kept, "labels": {REVISION_LABEL: revision}} if revision else kept,
        "spec": {"containers": [{"ports": [dict(port) for port in _ports(pod)]}]},
        "status": {
            "podIP": status.get("podIP"),
            "phase": status.get("phase"),
            "conditions": [{"type": READY, "status": item.get("status")} for item in ready],
        },
    }


def pod_address(pod: Object, port_name: str, port: int) -> str | None:
    """
    Return HOST:PORT of a pod, None while it has no address.

    The port is the one that a container names `port_name`, else `port`.
    """
    host = _below(pod, "status").get("podIP")
    if not isinstance(host, str) or not host:
        return None
    named = (item.get("containerPort") for item in _ports(pod) if item.get("name") == port_name)
    number = next((value for value in named if isinstance(value, int)), port)
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"


def _ports(pod: Object) -> Iterator[Mapping[str, Any]]:
    for container in _objects(_below(pod, "spec").get("containers")):
        yield from _objects(container.get("ports"))


def _below(item: Object, key: str) -> Mapping[str, Any]:
    value = item.get(key)
    return value if isinstance(value, Mapping) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
