"""What a pool renders is what an engine needs, and is applied again only when it changes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from sternpost_core.pool import Engine, EnginePool, parse_pool
from sternpost_engine.command_engine import CONNECTOR as ENGINE_CONNECTOR
from sternpost_engine.settings import parse_settings
from sternpost_engine.support import SCHEDULER as ENGINE_SCHEDULER
from sternpost_fakes.policies import FULL_POOL, SMALLEST_POOL
from sternpost_operator.pool_render import (
    CONNECTOR,
    DIGEST_ANNOTATION,
    SCHEDULER,
    TEMPLATE_ANNOTATION,
    engine_arguments,
    model_digest,
    pod_template,
    render,
)
from sternpost_operator.resources import BUDGETS, BUDGETS_BEFORE_1_21


def pool_of(value: dict[str, Any]) -> tuple[EnginePool, Engine]:
    """Return a pool and its engine."""
    pool = parse_pool(value)
    assert isinstance(pool.engines, Engine)
    return pool, pool.engines


FULL, FULL_ENGINE = pool_of(FULL_POOL)
SMALL, SMALL_ENGINE = pool_of(SMALLEST_POOL)
TEMPLATE = pod_template(FULL, FULL_ENGINE)["spec"]
CONTAINER = TEMPLATE["containers"][0]


def values(pool: EnginePool, engine: Engine, partition: int = 0) -> dict[str, Any]:
    """Return what is rendered, by kind."""
    return {one.resource.kind: one.value for one in render(pool, engine, "uid", partition, BUDGETS)}


def test_engine_is_started_with_the_plugin() -> None:
    """Connector and scheduler are the engine's own; the owner's arguments come last."""
    arguments = engine_arguments(FULL, FULL_ENGINE)
    settings = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])

    assert (ENGINE_CONNECTOR, ENGINE_SCHEDULER) == (CONNECTOR, SCHEDULER)
    assert {**CONNECTOR, "kv_connector_extra_config": {"pool_fraction": 0.3}} == settings
    assert ["--max-model-len", "32768"] == arguments[-2:]
    assert ["--model", "Qwen/Qwen2.5-7B-Instruct", "--served-model-name", "qwen2.5-7b"] == arguments[:4]
    assert "support=/adapters/support" == arguments[arguments.index("--lora-modules") + 1]


def test_engine_without_a_store_is_plain() -> None:
    """A share of 0 leaves the plugin out, and names none."""
    plain = replace(SMALL, pool_fraction=0)
    container = pod_template(plain, SMALL_ENGINE)["spec"]["containers"][0]

    assert "--kv-transfer-config" not in container["args"]
    assert [{"name": "VLLM_PLUGINS", "value": ""}] == container["env"]


def test_texts_of_policies_are_the_engines() -> None:
    """What policies name is mounted, and the plugin is told where."""
    spec = pod_template(SMALL, SMALL_ENGINE, ("a", "b"))["spec"]
    arguments = spec["containers"][0]["args"]
    settings = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])["kv_connector_extra_config"]
    (mount,) = spec["containers"][0]["volumeMounts"]
    sources = [{"configMap": {"name": "a"}}, {"configMap": {"name": "b"}}]

    assert [{"name": "sternpost-texts", "projected": {"sources": sources}}] == spec["volumes"]
    assert mount["mountPath"] == settings["calibration_texts"]
    assert parse_settings(settings).calibration_texts == settings["calibration_texts"]


def test_credentials_are_what_the_engine_asks_for() -> None:
    """The Secret that the gateway sends is the one that the engine wants."""
    reference = {"secretKeyRef": {"name": "engine-key", "key": "api-key"}}

    assert {"name": "VLLM_API_KEY", "valueFrom": reference} in CONTAINER["env"]


def test_pod_has_everything_that_is_asked_for() -> None:
    """Volumes, placement, timeouts and resources reach their places in the template."""
    assert ["models", "adapters", "keys", "scratch", "sternpost-shm"] == [
        one["name"] for one in TEMPLATE["volumes"]
    ]
    assert {"name": "sternpost-shm", "mountPath": "/dev/shm"} == CONTAINER["volumeMounts"][-1]
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "models"}} == TEMPLATE["volumes"][0]
    assert {"limits": {"nvidia.com/gpu": "1"}, "requests": {"memory": "16Gi"}} == CONTAINER["resources"]
    assert {"accelerator": "h100"} == TEMPLATE["nodeSelector"]
    assert 300 == TEMPLATE["terminationGracePeriodSeconds"]
    assert 45 * 60 / 5 == CONTAINER["startupProbe"]["failureThreshold"]
    assert {"matchLabels": {"sternpost.dev/pool": "qwen"}} == (
        TEMPLATE["topologySpreadConstraints"][0]["labelSelector"]
    )


def test_everything_belongs_to_the_pool() -> None:
    """Owner and labels let the server collect it, and the operator find it."""
    rendered = values(FULL, FULL_ENGINE)

    assert {"Service", "StatefulSet", "PodDisruptionBudget"} == set(rendered)
    for value in rendered.values():
        assert ("qwen", "agents") == (value["metadata"]["name"], value["metadata"]["namespace"])
        assert "uid" == value["metadata"]["ownerReferences"][0]["uid"]
        assert "qwen" == value["metadata"]["labels"]["sternpost.dev/pool"]


def test_budget_has_the_servers_version() -> None:
    """Before 1.21 there is only the beta."""
    (_, _, old) = render(SMALL, SMALL_ENGINE, "uid", 0, BUDGETS_BEFORE_1_21)

    assert "policy/v1beta1" == old.value["apiVersion"]


CHANGES = {
    "replicas": (replace(SMALL_ENGINE, replicas=3), False, False),
    "image": (replace(SMALL_ENGINE, image="other"), True, False),
    "argument": (replace(SMALL_ENGINE, args=("--max-num-seqs", "8")), True, False),
    "model": (replace(SMALL_ENGINE, model="other"), True, True),
    "revision": (replace(SMALL_ENGINE, revision="b"), True, True),
    "adapter": (replace(SMALL_ENGINE, lora_adapters=FULL_ENGINE.lora_adapters), True, True),
}


@pytest.mark.parametrize(("engine", "is_template", "is_model"), CHANGES.values(), ids=CHANGES.keys())
def test_digests_change_with_what_they_are_for(engine: Engine, is_template: bool, is_model: bool) -> None:
    """Scaling reaches no running pod; only another model makes older KV wrong."""
    before = values(SMALL, SMALL_ENGINE)["StatefulSet"]["metadata"]["annotations"]
    after = values(SMALL, engine)["StatefulSet"]["metadata"]["annotations"]

    assert before[DIGEST_ANNOTATION] != after[DIGEST_ANNOTATION]
    assert is_template == (before[TEMPLATE_ANNOTATION] != after[TEMPLATE_ANNOTATION])
    assert is_model == (model_digest(SMALL_ENGINE) != model_digest(engine))


def test_partition_is_part_of_what_is_applied() -> None:
    """Letting the next pod go is a change to be applied."""
    annotations = [
        values(SMALL, SMALL_ENGINE, part)["StatefulSet"]["metadata"]["annotations"] for part in (0, 1)
    ]

    assert annotations[0][DIGEST_ANNOTATION] != annotations[1][DIGEST_ANNOTATION]
    assert annotations[0][TEMPLATE_ANNOTATION] == annotations[1][TEMPLATE_ANNOTATION]
