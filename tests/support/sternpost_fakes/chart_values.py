"""Values of the Helm chart that tests render, by what they are for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

COMBINATIONS: Final[Mapping[str, dict[str, Any]]] = {
    "defaults": {},
    "one namespace": {"namespace": "agents"},
    "own secrets": {
        "gateway": {
            "adminToken": {"existingSecret": "admin", "key": "t"},
            "saltKey": {"existingSecret": "salt", "key": "s"},
        }
    },
    "replaced credentials": {
        "gateway": {"credentials": "replace", "engineKey": {"existingSecret": "vllm", "key": "key"}}
    },
    "static engines": {"gateway": {"engines": ["http://vllm-0:8000", "http://vllm-1:8000"]}},
    "autoscaling": {"gateway": {"autoscaling": {"enabled": True}}},
    "no disruption budget": {"gateway": {"podDisruptionBudget": {"enabled": False}}},
    "ingress": {
        "gateway": {
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "hosts": [{"host": "llm.example", "tlsSecret": "tls"}],
            }
        }
    },
    "ingress without TLS": {"gateway": {"ingress": {"enabled": True, "hosts": [{"host": "llm.example"}]}}},
    "route": {
        "gateway": {
            "httpRoute": {"enabled": True, "parentRefs": [{"name": "edge"}], "hostnames": ["llm.example"]}
        }
    },
    "placement": {
        "gateway": {
            "nodeSelector": {"pool": "cpu"},
            "tolerations": [{"key": "cpu", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "high",
            "podAnnotations": {"a": "b"},
            "env": [{"name": "STERNPOST_IDLE_SECONDS", "value": "60"}],
        },
        "imagePullSecrets": [{"name": "pull"}],
    },
    "clients that prove themselves": {
        "gateway": {
            "workers": 4,
            "credentials": "none",
            "tls": {"existingSecret": "served", "clientCaKey": "ca.crt", "minVersion": "1.3"},
            "engineTls": {"existingSecret": "met", "serverName": "engine", "clientCertificate": True},
            "clientKeys": {"existingSecret": "clients"},
            "poolSecrets": [{"namespace": "agents", "name": "vllm"}],
            "clientTokens": {"keysUrl": "https://login/keys", "issuer": "https://login", "audience": "a"},
        }
    },
    "no operator": {"operator": {"enabled": False}},
    "operator with figures": {
        "operator": {
            "prometheusUrl": "http://prometheus:9090",
            "podAnnotations": {"a": "b"},
            "nodeSelector": {"a": "b"},
        }
    },
    "policies": {
        "networkPolicy": {
            "enabled": True,
            "clients": [{"namespaceSelector": {}}],
            "monitoring": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        }
    },
    "open policies": {"networkPolicy": {"enabled": True}},
    "monitoring": {
        "monitoring": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True},
            "dashboards": {"enabled": True, "annotations": {"folder": "Sternpost"}},
        }
    },
    "everything at once": {
        "gateway": {
            "autoscaling": {"enabled": True},
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "hosts": [{"host": "llm.example", "tlsSecret": "t"}],
            },
            "env": [{"name": "STERNPOST_IDLE_SECONDS", "value": "60"}],
            "tolerations": [{"key": "cpu", "operator": "Exists"}],
        },
        "networkPolicy": {"enabled": True, "clients": [{"namespaceSelector": {}}]},
        "monitoring": {"dashboards": {"enabled": True}},
    },
}
"""Every kind of values that the chart knows, each by itself, and many at once."""
