"""An EnginePool either adopts pods or describes those to run."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.errors import PolicyError
from sternpost_core.pool import (
    RESERVED_ARGUMENTS,
    Adopted,
    Credentials,
    CredentialsMode,
    Engine,
    EnginePool,
    LoraAdapter,
    parse_pool,
    pool_to_mapping,
)
from sternpost_fakes.policies import MISSING, changed

POOL: dict[str, Any] = {
    "apiVersion": "sternpost.dev/v1alpha1",
    "kind": "EnginePool",
    "metadata": {"name": "qwen", "namespace": "agents"},
    "spec": {
        "engine": {
            "model": "Qwen/Qwen2.5-7B-Instruct",
            "image": "registry.example/sternpost-vllm:0.1.0",
            "replicas": 4,
            "args": ["--max-model-len", "32768"],
            "resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"memory": "16Gi", "cpu": 0.5}},
        },
        "suffixStore": {"poolFraction": 0.3},
        "credentials": {"mode": "Replace", "secretRef": {"name": "engine-key"}},
    },
}

ADOPTING = {
    **POOL,
    "metadata": {"name": "qwen"},
    "spec": {"selector": {"matchLabels": {"app": "vllm-qwen"}}, "port": 8001},
}

words = st.from_regex(r"[!-,.-~][!-~]{0,8}", fullmatch=True)
labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
quantities = st.sampled_from(["1", "500m", "16Gi", "1.5", "1e3", "+2", ".5", "10E", "4k"])
resources = st.dictionaries(labels, quantities, max_size=2)


def faults_of(mapping: object) -> list[tuple[str, str]]:
    """Return path and found value of every fault."""
    with pytest.raises(PolicyError) as caught:
        parse_pool(mapping)
    return [(fault.path, fault.value) for fault in caught.value.faults]


def test_pool_to_run_is_read() -> None:
    """Every field reaches its place; quantities become text."""
    expected = EnginePool(
        name="qwen",
        namespace="agents",
        engines=Engine(
            model="Qwen/Qwen2.5-7B-Instruct",
            image="registry.example/sternpost-vllm:0.1.0",
            replicas=4,
            args=("--max-model-len", "32768"),
            limits={"nvidia.com/gpu": "1"},
            requests={"memory": "16Gi", "cpu": "0.5"},
        ),
        pool_fraction=0.3,
        credentials=Credentials(mode=CredentialsMode.REPLACE, secret="engine-key"),
    )

    assert expected == parse_pool(POOL)
    assert "agents/qwen" == expected.full_name


def test_pool_to_adopt_is_read() -> None:
    """Without credentials none are sent, and the suffix store has its default share."""
    expected = EnginePool(name="qwen", engines=Adopted(match_labels={"app": "vllm-qwen"}, port=8001))

    assert expected == parse_pool(ADOPTING)
    assert (0.2, CredentialsMode.NONE) == (expected.pool_fraction, expected.credentials.mode)


REFUSED: dict[str, tuple[str, Any, str, str]] = {
    "nothing": ("spec.engine", MISSING, "spec.engine", "neither"),
    "both": ("spec.selector", {"matchLabels": {"a": "b"}}, "spec.engine", "both"),
    "port-beside-engine": ("spec.port", 8000, "spec.port", "8000"),
    "no-model": ("spec.engine.model", MISSING, "spec.engine.model", "nothing"),
    "empty-image": ("spec.engine.image", "", "spec.engine.image", "''"),
    "replicas": ("spec.engine.replicas", -1, "spec.engine.replicas", "-1"),
    "args-number": ("spec.engine.args", ["--max-model-len", 8000], "spec.engine.args[1]", "8000"),
    "model-as-flag": ("spec.engine.model", "--help", "spec.engine.model", "'--help'"),
    "own-flag": ("spec.engine.args", ["--port=1"], "spec.engine.args[0]", "'--port=1'"),
    "own-flag-with-underscores": (
        "spec.engine.args",
        ["--scheduler_cls", "x"],
        "spec.engine.args[0]",
        "'--scheduler_cls'",
    ),
    "lora-twice": (
        "spec.engine.loraAdapters",
        [{"name": "a", "path": "x"}, {"name": "a", "path": "y"}],
        "spec.engine.loraAdapters[1].name",
        "'a' again",
    ),
    "warm-timeout": ("spec.engine.update", {"warmTimeout": 5}, "spec.engine.update.warmTimeout", "5"),
    "quantity": (
        "spec.engine.resources.limits.memory",
        "16 GB",
        "spec.engine.resources.limits.memory",
        "'16 GB'",
    ),
    "quantity-negative": ("spec.engine.resources.limits.cpu", -1, "spec.engine.resources.limits.cpu", "-1"),
    "quantity-boolean": (
        "spec.engine.resources.limits.cpu",
        True,
        "spec.engine.resources.limits.cpu",
        "true",
    ),
    "unknown-resources": ("spec.engine.resources.limit", {}, "spec.engine.resources.limit", "an unknown key"),
    "fraction": ("spec.suffixStore.poolFraction", 20, "spec.suffixStore.poolFraction", "20"),
    "replace-without-secret": (
        "spec.credentials",
        {"mode": "Replace"},
        "spec.credentials.secretRef",
        "nothing",
    ),
    "secret-without-replace": ("spec.credentials.mode", "Forward", "spec.credentials.secretRef", "a Secret"),
}


@pytest.mark.parametrize(("path", "new", "at", "found"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_pool_is_refused(path: str, new: Any, at: str, found: str) -> None:
    """The one fault names its path and value."""
    assert [(at, found)] == faults_of(changed(POOL, path, new))


@pytest.mark.parametrize(
    ("path", "new", "at", "found"),
    [
        pytest.param("spec.selector", {}, "spec.selector.matchLabels", "no labels", id="all-pods"),
        pytest.param("spec.selector", "app=x", "spec.selector", "'app=x'", id="selector-of-wrong-type"),
        pytest.param("spec.port", 0, "spec.port", "0", id="port"),
        pytest.param(
            "spec.selector.matchLabels.app", 1, "spec.selector.matchLabels.app", "1", id="label-of-wrong-type"
        ),
    ],
)
def test_wrong_selector_is_refused(path: str, new: Any, at: str, found: str) -> None:
    """A selector that would adopt every pod is a fault too."""
    assert (at, found) in faults_of(changed(ADOPTING, path, new))


def is_free(argument: str) -> bool:
    """Say whether an argument is none of those that the operator gives by itself."""
    name = argument.partition("=")[0]
    return name not in {f"--{reserved}" for reserved in RESERVED_ARGUMENTS}


@given(
    st.builds(
        EnginePool,
        name=labels,
        namespace=labels,
        engines=st.builds(
            Adopted,
            match_labels=st.dictionaries(labels, labels, min_size=1, max_size=2),
            port=st.integers(1, 65535),
        )
        | st.builds(
            Engine,
            model=words,
            image=st.text(min_size=1, max_size=9),
            revision=st.just("") | words,
            served_model_name=st.just("") | words,
            lora_adapters=st.lists(
                st.builds(LoraAdapter, name=labels, path=words), max_size=2, unique_by=lambda lora: lora.name
            ).map(tuple),
            replicas=st.integers(0, 1024),
            warm_seconds=st.integers(0, 24 * 3600),
            args=st.lists(st.text(max_size=9).filter(is_free), max_size=3).map(tuple),
            limits=resources,
            requests=resources,
        ),
        pool_fraction=st.floats(0, 1),
        credentials=st.builds(
            Credentials, mode=st.sampled_from([CredentialsMode.FORWARD, CredentialsMode.NONE])
        )
        | st.builds(Credentials, mode=st.just(CredentialsMode.REPLACE), secret=labels),
    )
)
def test_written_pool_reads_the_same(pool: EnginePool) -> None:
    """Writing and reading are inverse."""
    assert pool == parse_pool(pool_to_mapping(pool))
