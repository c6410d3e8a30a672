"""The pods of an EnginePool are read whole, and what is wrong is named with its path."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.engine_pod import (
    PodSettings,
    PullPolicy,
    Spread,
    TaintEffect,
    Toleration,
    TolerationOperator,
    Unsatisfiable,
    Variable,
    Volume,
    VolumeKind,
    pod_to_mapping,
    read_pod,
)
from sternpost_core.errors import Fault
from sternpost_core.reader import ObjectReader
from sternpost_fakes.policies import FULL_POOL

EXPECTED = PodSettings(
    env=(Variable(name="HF_HOME", value="/models"), Variable(name="HF_TOKEN", secret="hub", key="token")),
    volumes=(
        Volume(name="models", mount_path="/models", kind=VolumeKind.CLAIM, source="models"),
        Volume(
            name="adapters",
            mount_path="/adapters",
            kind=VolumeKind.CONFIG_MAP,
            source="adapters",
            read_only=True,
        ),
        Volume(name="keys", mount_path="/keys", kind=VolumeKind.SECRET, source="keys"),
        Volume(name="scratch", mount_path="/scratch", kind=VolumeKind.EMPTY_DIR, size_limit="1Gi"),
    ),
    shared_memory="8Gi",
    node_selector={"accelerator": "h100"},
    tolerations=(
        Toleration(key="nvidia.com/gpu", operator=TolerationOperator.EXISTS, effect=TaintEffect.NO_SCHEDULE),
    ),
    topology_spread=(Spread(topology_key="topology.kubernetes.io/zone", max_skew=2),),
    service_account="engine",
    priority_class="high",
    runtime_class="nvidia",
    pull_policy=PullPolicy.ALWAYS,
    pull_secrets=("registry",),
    startup_seconds=2700,
    termination_seconds=300,
)

NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
TEXTS = st.text(max_size=9)
VARIABLES = st.builds(Variable, name=NAMES.map(lambda name: name.replace("-", "_")), value=TEXTS) | st.builds(
    Variable, name=NAMES.map(lambda name: name.replace("-", "_")), secret=NAMES, key=NAMES
)
PATHS = NAMES.map(lambda name: f"/{name}")
VOLUMES = st.builds(
    Volume,
    name=NAMES,
    mount_path=PATHS,
    kind=st.sampled_from([VolumeKind.CLAIM, VolumeKind.CONFIG_MAP, VolumeKind.SECRET]),
    source=NAMES,
    read_only=st.booleans(),
) | st.builds(
    Volume,
    name=NAMES,
    mount_path=PATHS,
    kind=st.just(VolumeKind.EMPTY_DIR),
    size_limit=st.none() | st.just("1Gi"),
    in_memory=st.booleans(),
)
EFFECTS = st.none() | st.sampled_from(TaintEffect)
TOLERATIONS = st.builds(Toleration, key=NAMES, value=NAMES, effect=EFFECTS) | st.builds(
    Toleration, operator=st.just(TolerationOperator.EXISTS), effect=EFFECTS
)
SPREADS = st.builds(
    Spread,
    topology_key=NAMES,
    max_skew=st.integers(1, 100),
    when_unsatisfiable=st.sampled_from(Unsatisfiable),
)


def read(mapping: dict[str, Any]) -> tuple[PodSettings, list[Fault]]:
    """Read a pod's keys, and return what is wrong with them."""
    faults: list[Fault] = []
    reader = ObjectReader(mapping, "", faults)
    pod = read_pod(reader)
    reader.close()
    return pod, faults


def test_pod_is_read() -> None:
    """Every field reaches its place."""
    keys = pod_to_mapping(EXPECTED)
    engine = {key: value for key, value in FULL_POOL["spec"]["engine"].items() if key in keys}

    assert (EXPECTED, []) == read(engine)


def test_nothing_is_a_pod_with_defaults() -> None:
    """An engine needs none of it."""
    assert (PodSettings(), []) == read({})


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "variable-twice": ({"env": [{"name": "A", "value": ""}] * 2}, "env[1]", "'A' again"),
    "variable-without-value": ({"env": [{"name": "A"}]}, "env[0].value", "neither"),
    "own-variable": ({"env": [{"name": "VLLM_PLUGINS", "value": ""}]}, "env[0].name", "'VLLM_PLUGINS'"),
    "variable-of-wrong-type": ({"env": ["A=1"]}, "env[0]", "'A=1'"),
    "secret-key": (
        {"env": [{"name": "A", "secretKeyRef": {"name": "a", "key": ""}}]},
        "env[0].secretKeyRef.key",
        "''",
    ),
    "volume-of-the-host": (
        {"volumes": [{"name": "a", "mountPath": "/a", "hostPath": {}, "emptyDir": {}}]},
        "volumes[0].hostPath",
        "an unknown key",
    ),
    "volume-without-source": (
        {"volumes": [{"name": "a", "mountPath": "/a"}]},
        "volumes[0].name",
        "0 sources",
    ),
    "relative-mount": (
        {"volumes": [{"name": "a", "mountPath": "a", "emptyDir": {}}]},
        "volumes[0].mountPath",
        "'a'",
    ),
    "shared-memory": ({"sharedMemory": "8 GB"}, "sharedMemory", "'8 GB'"),
    "toleration-without-key": ({"tolerations": [{}]}, "tolerations[0].key", "no key"),
    "toleration-with-value": (
        {"tolerations": [{"operator": "Exists", "value": "x"}]},
        "tolerations[0].value",
        "'x'",
    ),
    "skew": ({"topologySpread": [{"topologyKey": "a", "maxSkew": 0}]}, "topologySpread[0].maxSkew", "0"),
    "node-selector-key": ({"nodeSelector": {"a b": "c"}}, "nodeSelector.a b", "the key"),
    "account": ({"serviceAccountName": "A"}, "serviceAccountName", "'A'"),
    "startup": ({"startupTimeout": 5}, "startupTimeout", "5"),
}


@pytest.mark.parametrize(("mapping", "path", "found"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_pod_is_refused(mapping: dict[str, Any], path: str, found: str) -> None:
    """The one fault names its path and value."""
    _, faults = read(mapping)

    assert [(path, found)] == [(fault.path, fault.value) for fault in faults]


@given(
    st.builds(
        PodSettings,
        env=st.lists(VARIABLES, max_size=3, unique_by=lambda item: item.name).map(tuple),
        volumes=st.lists(VOLUMES, max_size=3, unique_by=lambda item: item.name).map(tuple),
        shared_memory=st.none() | st.just("8Gi"),
        node_selector=st.dictionaries(NAMES, NAMES, max_size=2),
        tolerations=st.lists(TOLERATIONS, max_size=3).map(tuple),
        topology_spread=st.lists(SPREADS, max_size=3, unique_by=lambda item: item.topology_key).map(tuple),
        service_account=st.none() | NAMES,
        priority_class=st.none() | NAMES,
        runtime_class=st.none() | NAMES,
        pull_policy=st.sampled_from(PullPolicy),
        pull_secrets=st.lists(NAMES, max_size=2, unique=True).map(tuple),
        startup_seconds=st.integers(0, 24 * 3600),
        termination_seconds=st.integers(0, 24 * 3600),
    )
)
def test_written_pod_reads_the_same(pod: PodSettings) -> None:
    """Writing and reading are inverse."""
    assert (pod, []) == read(pod_to_mapping(pod))
