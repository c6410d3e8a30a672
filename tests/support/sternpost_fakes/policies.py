"""Custom resources as a file holds them, right and, by `changed`, wrong."""

import copy
from typing import Any

MISSING: Any = object()
"""Stands for taking a key away."""

SMALLEST: dict[str, Any] = {
    "apiVersion": "sternpost.dev/v1alpha1",
    "kind": "CachePolicy",
    "metadata": {"name": "support-observe"},
    "spec": {"match": {"models": ["qwen2.5-7b"]}, "poolRef": {"name": "qwen"}},
}

FULL: dict[str, Any] = {
    "apiVersion": "sternpost.dev/v1alpha1",
    "kind": "CachePolicy",
    "metadata": {
        "name": "support",
        "namespace": "agents",
        "uid": "5f2c",
        "labels": {"team": "support"},
        "annotations": {},
        "generation": 3,
        "resourceVersion": "991",
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "managedFields": [{}],
        "ownerReferences": [],
        "finalizers": [],
    },
    "spec": {
        "match": {
            "priority": 100,
            "models": ["qwen2.5-7b"],
            "tenants": ["acme", "globex"],
            "headers": {"X-App": "support"},
        },
        "poolRef": {"name": "qwen"},
        "tenancy": {
            "isolation": "Tenant",
            "tenantFrom": {"header": "X-Tenant-Id"},
            "sessionFrom": {"header": "X-Session-Id"},
            "prefixEpoch": 3,
        },
        "prompt": {
            "layout": "FixedTail",
            "canonicalize": "Pin",
            "volatile": [
                {"name": "clock", "detect": "Timestamp", "action": "Relocate"},
                {"name": "billing", "detect": "BillingHeader", "action": "Strip"},
                {"name": "ticket", "pattern": "^Ticket: [A-Z]+-[0-9]+$", "action": "Relocate"},
            ],
            "tail": {"source": "LastSystemMessage", "minTokens": 300},
        },
        "suffixCache": {
            "mode": "Anchor",
            "anchor": 4096,
            "recompute": {"head": 4, "last": 16, "match": 8},
            "correction": "None",
            "calibration": {"generic": False, "configMapRef": {"name": "support-middles"}},
            "buckets": [256, 1024],
            "bypass": {"minTailShare": 0.5},
        },
        "warm": True,
        "rollout": {
            "steps": [2, 100],
            "minDuration": "1h30m",
            "minRequests": 5,
            "minSessions": 6,
            "paused": True,
            "analysis": {
                "prometheus": {"url": "http://prometheus.monitoring:9090"},
                "maxTtftRatio": 2,
                "maxErrorIncrease": 0.01,
                "minShadowAgreement": 0.9,
                "maxShadowKl": 0.1,
            },
        },
        "shadow": {"sampleRate": 1, "excludeTenants": ["acme"]},
        "killLevel": "NewEpoch",
    },
    "status": {"phase": "Canary", "anything": [1]},
}

SMALLEST_POOL: dict[str, Any] = {
    "apiVersion": "sternpost.dev/v1alpha1",
    "kind": "EnginePool",
    "metadata": {"name": "small", "namespace": "agents"},
    "spec": {"engine": {"model": "SmolLM2-135M-Instruct", "image": "registry.example/sternpost-vllm:0.1.0"}},
}

FULL_POOL: dict[str, Any] = {
    "apiVersion": "sternpost.dev/v1alpha1",
    "kind": "EnginePool",
    "metadata": {"name": "qwen", "namespace": "agents"},
    "spec": {
        "engine": {
            "model": "Qwen/Qwen2.5-7B-Instruct",
            "revision": "a09a354",
            "servedModelName": "qwen2.5-7b",
            "loraAdapters": [{"name": "support", "path": "/adapters/support"}],
            "image": "registry.example/sternpost-vllm:0.1.0",
            "imagePullPolicy": "Always",
            "imagePullSecrets": [{"name": "registry"}],
            "replicas": 4,
            "args": ["--max-model-len", "32768"],
            "env": [
                {"name": "HF_HOME", "value": "/models"},
                {"name": "HF_TOKEN", "secretKeyRef": {"name": "hub", "key": "token"}},
            ],
            "volumes": [
                {"name": "models", "mountPath": "/models", "persistentVolumeClaim": {"claimName": "models"}},
                {
                    "name": "adapters",
                    "mountPath": "/adapters",
                    "readOnly": True,
                    "configMap": {"name": "adapters"},
                },
                {"name": "keys", "mountPath": "/keys", "secret": {"secretName": "keys"}},
                {"name": "scratch", "mountPath": "/scratch", "emptyDir": {"sizeLimit": "1Gi"}},
            ],
            "sharedMemory": "8Gi",
            "resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"memory": "16Gi"}},
            "nodeSelector": {"accelerator": "h100"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "topologySpread": [{"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 2}],
            "serviceAccountName": "engine",
            "priorityClassName": "high",
            "runtimeClassName": "nvidia",
            "startupTimeout": "45m",
            "terminationGracePeriod": "5m",
            "update": {"warmTimeout": "20m"},
        },
        "suffixStore": {"poolFraction": 0.3},
        "credentials": {"mode": "Replace", "secretRef": {"name": "engine-key"}},
    },
}

SWITCH: dict[str, Any] = {
    "apiVersion": "sternpost.dev/v1alpha1",
    "kind": "CacheKillSwitch",
    "metadata": {"name": "everything"},
    "spec": {
        "level": "NoSuffixReads",
        "selector": {"namespaces": ["agents"], "policies": ["chat/support"]},
        "reason": "an adapter was rolled back",
    },
}


def changed(base: dict[str, Any], path: str, new: Any) -> dict[str, Any]:
    """Return a copy of `base` with the value at `path`, whose steps are parted by dots, set or taken away."""
    whole = copy.deepcopy(base)
    *above, last = path.split(".")
    at = whole
    for step in above:
        at = at[step]
    if new is MISSING:
        del at[last]
    else:
        at[last] = new
    return whole
