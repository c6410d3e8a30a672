"""
What an EnginePool becomes in a cluster: a StatefulSet, a headless Service and a PodDisruptionBudget.

Everything carries the pool's label and a digest of itself, so that what has to be applied again is seen
without comparing fields that the server fills in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from sternpost_core.engine_pod import SOURCE_KEYS, Spread, Variable, Volume, VolumeKind, toleration_to_mapping
from sternpost_core.pool import CREDENTIALS_KEY, PORT_DEFAULT, CredentialsMode, Engine, EnginePool
from sternpost_operator.plan import Apply
from sternpost_operator.resources import (
    MANAGED_BY,
    MANAGED_LABEL,
    POOL_LABEL,
    POOLS,
    SERVICES,
    STATEFUL_SETS,
    Object,
    Resource,
)

DIGEST_ANNOTATION: Final = "sternpost.dev/digest"
TEMPLATE_ANNOTATION: Final = "sternpost.dev/template"
"""On the StatefulSet: the digest of its pods' template, the part whose change reaches pods."""

DIGEST_DIGITS: Final = 16

CONTAINER: Final = "engine"
PORT_NAME: Final = "http"
HEALTH_PATH: Final = "/health"
PROBE_PERIOD_SECONDS: Final = 5
PROBE_TIMEOUT_SECONDS: Final = 5
READINESS_FAILURES: Final = 2
LIVENESS_PERIOD_SECONDS: Final = 20
LIVENESS_FAILURES: Final = 6
"""Two minutes: a busy engine answers late, and a restart costs every KV that it holds."""

UNAVAILABLE_MAX: Final = 1
"""How many engines a drain of nodes may take away at once."""

SHARED_MEMORY_VOLUME: Final = "sternpost-shm"
TEXTS_VOLUME: Final = "sternpost-texts"
TEXTS_PATH: Final = "/etc/sternpost/texts"

Texts = tuple[str, ...]
"""The ConfigMaps of middles that the pool's policies name for calibration, by name."""

SERVER: Final = ("python3", "-m", "vllm.entrypoints.openai.api_server")
PLUGIN: Final = "sternpost"
SCHEDULER: Final = "sternpost_engine.scheduler.SternpostScheduler"
CONNECTOR: Final[Mapping[str, Any]] = {
    "kv_connector": "SternpostConnector",
    "kv_connector_module_path": "sternpost_engine.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}
"""What turns the plugin on; the engine's guide says the same, and a test holds the two together."""


def digest(value: object) -> str:
    """Return the digest of a JSON value, whatever the order of its keys."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(canonical).hexdigest()[:DIGEST_DIGITS]


def model_digest(engine: Engine) -> str:
    """Return the digest of everything that makes older KV wrong: model, revision, adapters."""
    loras = sorted([lora.name, lora.path] for lora in engine.lora_adapters)
    return digest([engine.model, engine.revision, loras])


def pool_labels(name: str) -> dict[str, str]:
    """Return the labels of everything that a pool renders."""
    return {POOL_LABEL: name, MANAGED_LABEL: MANAGED_BY}


def render(
    pool: EnginePool,
    engine: Engine,
    uid: str,
    partition: int,
    budgets: Resource,
    texts: Texts = (),
) -> tuple[Apply, ...]:
    """Return everything that a pool needs; pods of lower numbers than `partition` keep their template."""
    return (
        Apply(SERVICES, _finish(_service(pool), pool, uid)),
        Apply(STATEFUL_SETS, _finish(stateful_set(pool, engine, partition, texts), pool, uid)),
        Apply(budgets, _finish(_budget(pool, budgets), pool, uid)),
    )


def stateful_set(pool: EnginePool, engine: Engine, partition: int, texts: Texts = ()) -> dict[str, Any]:
    """Return the StatefulSet, without owner and digest."""
    template = pod_template(pool, engine, texts)
    value = _envelope(STATEFUL_SETS, pool)
    value["metadata"]["annotations"] = {TEMPLATE_ANNOTATION: digest(template)}
    value["spec"] = {
        "replicas": engine.replicas,
        "serviceName": pool.name,
        "selector": {"matchLabels": {POOL_LABEL: pool.name}},
        # Engines do not wait for each other at a start; a change goes through the partition, one by one.
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
        "template": template,
    }
    return value


def pod_template(pool: EnginePool, engine: Engine, texts: Texts = ()) -> dict[str, Any]:
    """Return the pods' template."""
    pod = engine.pod
    spec: dict[str, Any] = {
        "containers": [_container(pool, engine, texts)],
        "terminationGracePeriodSeconds": pod.termination_seconds,
        "volumes": _volumes(engine, texts),
        "nodeSelector": dict(pod.node_selector),
        "tolerations": [toleration_to_mapping(toleration) for toleration in pod.tolerations],
        "topologySpreadConstraints": [_spread(spread, pool.name) for spread in pod.topology_spread],
        "serviceAccountName": pod.service_account,
        # Engines need nothing of the API server.
        "automountServiceAccountToken": False,
        "priorityClassName": pod.priority_class,
        "runtimeClassName": pod.runtime_class,
        "imagePullSecrets": [{"name": name} for name in pod.pull_secrets],
    }
    return {"metadata": {"labels": pool_labels(pool.name)}, "spec": _present(spec)}


def engine_arguments(pool: EnginePool, engine: Engine, texts: Texts = ()) -> list[str]:
    """Return what vLLM is started with; the owner's own arguments come last."""
    arguments = ["--model", engine.model, "--served-model-name", engine.served_model_name or engine.model]
    arguments += ["--host", "0.0.0.0", "--port", str(PORT_DEFAULT), "--enable-prompt-tokens-details"]
    arguments += ["--revision", engine.revision] if engine.revision else []
    if engine.lora_adapters:
        modules = [f"{lora.name}={lora.path}" for lora in engine.lora_adapters]
        arguments += ["--enable-lora", "--lora-modules", *modules]
    if pool.pool_fraction > 0:
        extra = {"pool_fraction": pool.pool_fraction, **({"calibration_texts": TEXTS_PATH} if texts else {})}
        settings = {**CONNECTOR, "kv_connector_extra_config": extra}
        arguments += ["--scheduler-cls", SCHEDULER, "--kv-transfer-config", json.dumps(settings)]
    return [*arguments, *engine.args]


def _container(pool: EnginePool, engine: Engine, texts: Texts) -> dict[str, Any]:
    resources = {"limits": dict(engine.limits), "requests": dict(engine.requests)}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": engine.image,
        "imagePullPolicy": engine.pod.pull_policy.value,
        "command": list(SERVER),
        "args": engine_arguments(pool, engine, texts),
        "env": _environment(pool, engine),
        "ports": [{"name": PORT_NAME, "containerPort": PORT_DEFAULT, "protocol": "TCP"}],
        "resources": _present(resources),
        "volumeMounts": _mounts(engine, texts),
        "startupProbe": _probe(PROBE_PERIOD_SECONDS, _startup_failures(engine)),
        "readinessProbe": _probe(PROBE_PERIOD_SECONDS, READINESS_FAILURES),
        "livenessProbe": _probe(LIVENESS_PERIOD_SECONDS, LIVENESS_FAILURES),
    }
    return _present(container)


def _probe(period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": HEALTH_PATH, "port": PORT_NAME},
        "periodSeconds": period,
        "timeoutSeconds": PROBE_TIMEOUT_SECONDS,
        "failureThreshold": failures,
    }


def _startup_failures(engine: Engine) -> int:
    return max(1, -(-engine.pod.startup_seconds // PROBE_PERIOD_SECONDS))


def _environment(pool: EnginePool, engine: Engine) -> list[dict[str, Any]]:
    # An empty list of plugins names none; a missing one would load every plugin that is installed.
    plugins = PLUGIN if pool.pool_fraction > 0 else ""
    own = [{"name": "VLLM_PLUGINS", "value": plugins}]
    if pool.credentials.mode is CredentialsMode.REPLACE and pool.credentials.secret:
        key = Variable(name="VLLM_API_KEY", secret=pool.credentials.secret, key=CREDENTIALS_KEY)
        own.append(_variable(key))
    return [*own, *(_variable(variable) for variable in engine.pod.env)]


def _variable(variable: Variable) -> dict[str, Any]:
    if variable.secret is None:
        return {"name": variable.name, "value": variable.value}
    reference = {"name": variable.secret, "key": variable.key}
    return {"name": variable.name, "valueFrom": {"secretKeyRef": reference}}


def _volumes(engine: Engine, texts: Texts) -> list[dict[str, Any]]:
    volumes = [_volume(volume) for volume in engine.pod.volumes]
    if engine.pod.shared_memory:
        memory = {"medium": "Memory", "sizeLimit": engine.pod.shared_memory}
        volumes.append({"name": SHARED_MEMORY_VOLUME, "emptyDir": memory})
    if texts:
        sources = [{"configMap": {"name": name}} for name in texts]
        volumes.append({"name": TEXTS_VOLUME, "projected": {"sources": sources}})
    return volumes


def _volume(volume: Volume) -> dict[str, Any]:
    if volume.kind is VolumeKind.EMPTY_DIR:
        medium = {"medium": "Memory"} if volume.in_memory else {}
        limit = {"sizeLimit": volume.size_limit} if volume.size_limit else {}
        return {"name": volume.name, "emptyDir": {**medium, **limit}}
    source: dict[str, Any] = {SOURCE_KEYS[volume.kind]: volume.source}
    return {"name": volume.name, volume.kind.value: source}


def _mounts(engine: Engine, texts: Texts) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": volume.name, "mountPath": volume.mount_path, "readOnly": volume.read_only}
        for volume in engine.pod.volumes
    ]
    if engine.pod.shared_memory:
        mounts.append({"name": SHARED_MEMORY_VOLUME, "mountPath": "/dev/shm"})
    if texts:
        mounts.append({"name": TEXTS_VOLUME, "mountPath": TEXTS_PATH, "readOnly": True})
    return mounts


def _spread(spread: Spread, pool: str) -> dict[str, Any]:
    return {
        "topologyKey": spread.topology_key,
        "maxSkew": spread.max_skew,
        "whenUnsatisfiable": spread.when_unsatisfiable.value,
        "labelSelector": {"matchLabels": {POOL_LABEL: pool}},
    }


def _service(pool: EnginePool) -> dict[str, Any]:
    value = _envelope(SERVICES, pool)
    value["spec"] = {
        "clusterIP": "None",
        "selector": {POOL_LABEL: pool.name},
        "ports": [{"name": PORT_NAME, "port": PORT_DEFAULT, "targetPort": PORT_NAME, "protocol": "TCP"}],
    }
    return value


def _budget(pool: EnginePool, budgets: Resource) -> dict[str, Any]:
    value = _envelope(budgets, pool)
    value["spec"] = {
        "maxUnavailable": UNAVAILABLE_MAX,
        "selector": {"matchLabels": {POOL_LABEL: pool.name}},
    }
    return value


def _envelope(resource: Resource, pool: EnginePool) -> dict[str, Any]:
    metadata = {"name": pool.name, "namespace": pool.namespace, "labels": pool_labels(pool.name)}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


def _finish(value: dict[str, Any], pool: EnginePool, uid: str) -> Object:
    """Add the digest and the owner, so that what is rendered goes when the pool goes."""
    owner = {
        "apiVersion": POOLS.api_version,
        "kind": POOLS.kind,
        "name": pool.name,
        "uid": uid,
        "controller": True,
    }
    annotations = {**value["metadata"].get("annotations", {}), DIGEST_ANNOTATION: digest(value)}
    metadata = {**value["metadata"], "annotations": annotations, "ownerReferences": [owner]}
    return {**value, "metadata": metadata}


def _present(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value not in (None, [], {})}
