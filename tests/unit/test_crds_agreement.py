"""Schema and parser agree: what a server lets in is read, and what the parser refuses never gets that far."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sternpost_core.errors import PolicyError
from sternpost_core.objects import PARSERS
from sternpost_fakes.crd_schema import CrdSchema
from sternpost_fakes.policies import FULL as FULL_WITH_STATUS
from sternpost_fakes.policies import FULL_POOL, MISSING, SMALLEST, SMALLEST_POOL, SWITCH, changed

FULL = changed(FULL_WITH_STATUS, "status", MISSING)
SCHEMAS = {kind: CrdSchema.of(kind) for kind in PARSERS}
ADOPTING = {**FULL_POOL, "spec": {"selector": {"matchLabels": {"app": "vllm"}}, "port": 8001}}

GOOD = {
    "smallest-policy": SMALLEST,
    "full-policy": FULL,
    "smallest-pool": SMALLEST_POOL,
    "full-pool": FULL_POOL,
    "adopting-pool": ADOPTING,
    "switch": SWITCH,
    "switch-for-all": changed(SWITCH, "spec.selector", {}),
}


def is_parsed(value: dict[str, Any]) -> bool:
    """Tell whether the parser takes the object."""
    try:
        PARSERS[value["kind"]](value)
    except PolicyError:
        return False
    return True


def is_let_in(value: dict[str, Any]) -> bool:
    """Tell whether an API server takes the object."""
    return not SCHEMAS[value["kind"]].faults(value)


@pytest.mark.parametrize("value", GOOD.values(), ids=GOOD.keys())
def test_good_object_is_taken_by_both(value: dict[str, Any]) -> None:
    """Neither finds a fault."""
    assert [] == SCHEMAS[value["kind"]].faults(value)
    PARSERS[value["kind"]](value)


@pytest.mark.parametrize("value", GOOD.values(), ids=GOOD.keys())
def test_defaults_are_the_parsers(value: dict[str, Any]) -> None:
    """An object means the same with the server's defaults as without them."""
    parse = PARSERS[value["kind"]]

    assert parse(value) == parse(SCHEMAS[value["kind"]].defaulted(value))


RULE = {"name": "a", "detect": "Timestamp"}
TAILLESS = {"layout": "Preserve"}
POLICY_CHANGES: dict[str, tuple[str, Any]] = {
    "unknown-field": ("spec.promt", {}),
    "no-match": ("spec.match", MISSING),
    "no-models": ("spec.match.models", []),
    "model-twice": ("spec.match.models", ["a", "a"]),
    "priority": ("spec.match.priority", 1_000_001),
    "header-name": ("spec.match.headers", {"x y": "1"}),
    "tenants-of-api-keys": ("spec.tenancy.tenantFrom", {"apiKey": True}),
    "no-api-key": ("spec.tenancy.tenantFrom", {"apiKey": False}),
    "two-tenant-sources": ("spec.tenancy.tenantFrom", {"header": "a", "jwtClaim": "b"}),
    "no-tenant-source": ("spec.tenancy.tenantFrom", {}),
    "session-header": ("spec.tenancy.sessionFrom", {}),
    "prefix-epoch-below-0": ("spec.tenancy.prefixEpoch", -1),
    "prefix-epoch-too-high": ("spec.tenancy.prefixEpoch", 2**31),
    "layout": ("spec.prompt.layout", "FixedTai"),
    "rule-name": ("spec.prompt.volatile", [{**RULE, "name": "A"}]),
    "rule-twice": ("spec.prompt.volatile", [RULE, RULE]),
    "rule-finds-nothing": ("spec.prompt.volatile", [{"name": "a"}]),
    "rule-finds-twice": ("spec.prompt.volatile", [{**RULE, "pattern": "x"}]),
    "stripped-clock": ("spec.prompt.volatile", [{**RULE, "action": "Strip"}]),
    "stripped-pattern": ("spec.prompt.volatile", [{"name": "a", "pattern": "x", "action": "Strip"}]),
    "layout-without-tail": ("spec.prompt", {"layout": "FixedTail"}),
    "suffix-cache-without-tail": ("spec.prompt", TAILLESS),
    "tail-over-the-buckets": ("spec.prompt.tail.minTokens", 1025),
    "anchor-mode-without-anchor": ("spec.suffixCache.anchor", MISSING),
    "calibrated-without-middles": ("spec.suffixCache", {"calibration": {"generic": False}}),
    "bucket": ("spec.suffixCache.buckets", [256, 300]),
    "buckets-fall": ("spec.suffixCache.buckets", [512, 256]),
    "steps-fall": ("spec.rollout.steps", [5, 1, 100]),
    "steps-twice": ("spec.rollout.steps", [1, 1, 100]),
    "steps-end-early": ("spec.rollout.steps", [1, 50]),
    "no-duration": ("spec.rollout.minDuration", ""),
    "duration-form": ("spec.rollout.minDuration", "10 min"),
    "duration-long": ("spec.rollout.minDuration", "169h"),
    "url": ("spec.rollout.analysis.prometheus.url", "prometheus:9090"),
    "url-with-password": ("spec.rollout.analysis.prometheus.url", "http://a:b@c"),
    "ratio": ("spec.rollout.analysis.maxTtftRatio", 0.5),
    "share": ("spec.shadow.sampleRate", 1.01),
    "no-tenants-excluded": ("spec.shadow.excludeTenants", []),
    "tenant-excluded-twice": ("spec.shadow.excludeTenants", ["acme", "acme"]),
    "level": ("spec.killLevel", "K1"),
}

ENGINE = FULL_POOL["spec"]["engine"]
POOL_CHANGES: dict[str, tuple[str, Any]] = {
    "nothing": ("spec.engine", MISSING),
    "both": ("spec.selector", {"matchLabels": {"a": "b"}}),
    "port-beside-engine": ("spec.port", 8000),
    "no-labels": ("spec", {"selector": {"matchLabels": {}}}),
    "no-model": ("spec.engine.model", MISSING),
    "model-as-flag": ("spec.engine.model", "--trust-remote-code"),
    "model-with-space": ("spec.engine.model", "a b"),
    "empty-image": ("spec.engine.image", ""),
    "replicas": ("spec.engine.replicas", 1025),
    "own-flag": ("spec.engine.args", ["--kv-transfer-config={}"]),
    "own-flag-with-underscores": ("spec.engine.args", ["--scheduler_cls", "x"]),
    "lora-twice": ("spec.engine.loraAdapters", [{"name": "a", "path": "x"}, {"name": "a", "path": "y"}]),
    "lora-name": ("spec.engine.loraAdapters", [{"name": "a=b", "path": "x"}]),
    "variable-twice": ("spec.engine.env", [{"name": "A", "value": "x"}, {"name": "A", "value": "y"}]),
    "variable-without-value": ("spec.engine.env", [{"name": "A"}]),
    "own-variable": ("spec.engine.env", [{"name": "VLLM_PLUGINS", "value": ""}]),
    "variable-name": ("spec.engine.env", [{"name": "A-B", "value": ""}]),
    "volume-without-source": ("spec.engine.volumes", [{"name": "a", "mountPath": "/a"}]),
    "volume-of-two-sources": (
        "spec.engine.volumes",
        [{"name": "a", "mountPath": "/a", "emptyDir": {}, "configMap": {"name": "b"}}],
    ),
    "volume-of-the-host": (
        "spec.engine.volumes",
        [{"name": "a", "mountPath": "/a", "hostPath": {"path": "/"}}],
    ),
    "relative-mount": ("spec.engine.volumes", [{"name": "a", "mountPath": "a", "emptyDir": {}}]),
    "quantity": ("spec.engine.resources.limits", {"memory": "16 GB"}),
    "quantity-negative": ("spec.engine.resources.limits", {"cpu": -1}),
    "shared-memory": ("spec.engine.sharedMemory", "much"),
    "toleration-without-key": ("spec.engine.tolerations", [{"operator": "Equal", "value": "x"}]),
    "toleration-with-value": ("spec.engine.tolerations", [{"key": "a", "operator": "Exists", "value": "x"}]),
    "toleration-effect": ("spec.engine.tolerations", [{"key": "a", "effect": "Never"}]),
    "spread-twice": ("spec.engine.topologySpread", [{"topologyKey": "zone"}, {"topologyKey": "zone"}]),
    "skew": ("spec.engine.topologySpread", [{"topologyKey": "zone", "maxSkew": 0}]),
    "service-account": ("spec.engine.serviceAccountName", "A"),
    "startup": ("spec.engine.startupTimeout", "25h"),
    "grace": ("spec.engine.terminationGracePeriod", "soon"),
    "warm-timeout": ("spec.engine.update.warmTimeout", 600),
    "fraction": ("spec.suffixStore.poolFraction", 20),
    "replace-without-secret": ("spec.credentials", {"mode": "Replace"}),
    "secret-without-replace": ("spec.credentials.mode", "Forward"),
}

SWITCH_CHANGES: dict[str, tuple[str, Any]] = {
    "no-level": ("spec.level", MISSING),
    "level": ("spec.level", "K1"),
    "namespace": ("spec.selector.namespaces", ["A"]),
    "no-namespaces": ("spec.selector.namespaces", []),
    "policy-without-namespace": ("spec.selector.policies", ["support"]),
    "unknown-selector": ("spec.selector.pools", ["a/b"]),
    "reason": ("spec.reason", "a" * 1025),
}

REFUSED = {
    f"{name}-{change}": changed(base, path, new)
    for name, base, changes in (
        ("policy", FULL, POLICY_CHANGES),
        ("pool", FULL_POOL, POOL_CHANGES),
        ("switch", SWITCH, SWITCH_CHANGES),
    )
    for change, (path, new) in changes.items()
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_bad_object_is_refused_by_both(value: dict[str, Any]) -> None:
    """The server says no at once, and the parser would have said no, too."""
    assert (False, False) == (is_let_in(value), is_parsed(value))


PARSER_ALONE = {
    "pattern-is-no-regular-expression": ("spec.prompt.volatile", [{"name": "a", "pattern": "("}]),
    "pattern-for-nothing": ("spec.prompt.volatile", [{"name": "a", "pattern": "x*"}]),
    "header-in-two-cases": ("spec.match.headers", {"x": "1", "X": "2"}),
}


@pytest.mark.parametrize(("path", "new"), PARSER_ALONE.values(), ids=PARSER_ALONE.keys())
def test_some_faults_only_the_parser_sees(path: str, new: Any) -> None:
    """What no schema can say gets a condition instead; the list is complete but for policies that overlap."""
    value = changed(FULL, path, new)

    assert (True, False) == (is_let_in(value), is_parsed(value))


def leaves(value: Any, path: str) -> Iterator[str]:
    """Yield the paths of all values below `value` that lie in objects only."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield f"{path}.{key}"
            yield from leaves(below, f"{path}.{key}")


PLACES = [
    (base, path)
    for base in (SMALLEST, FULL, FULL_POOL, ADOPTING, SWITCH)
    for path in leaves(base["spec"], "spec")
    # Kubernetes knows no fractions of resources as numbers; files may have them.
    if not {"headers", "matchLabels", "resources", "sharedMemory"} & set(path.split("."))
]
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([MISSING, "", "a", "-", "Off", "None", "10m", "1h", "5", "A", "/", "x/y", "8Gi", "é"]),
    st.integers(-2, 5000),
    st.sampled_from([0.2, 1.5, -0.1, True, False, [], {}, ["a"], [100], [1, 100], [256], {"name": "a"}]),
)


@settings(max_examples=300)
@given(place=st.sampled_from(PLACES), new=VALUES)
def test_any_change_is_judged_alike(place: tuple[dict[str, Any], str], new: Any) -> None:
    """Whatever is put wherever, either both take it or neither."""
    base, path = place
    value = changed(base, path, new)

    assert is_let_in(value) == is_parsed(value)


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        pytest.param(3, 4, False, id="up"),
        pytest.param(3, 3, False, id="the-same"),
        pytest.param(3, 2, True, id="down"),
        pytest.param(3, MISSING, True, id="taken-away"),
        pytest.param(MISSING, 1, False, id="the-first"),
    ],
)
def test_a_prefix_epoch_only_grows(before: Any, after: Any, refused: bool) -> None:
    """What was made unreachable stays so, whatever is applied next."""
    tenancies = [{} if epoch is MISSING else {"prefixEpoch": epoch} for epoch in (before, after)]
    old, new = (changed(SMALLEST, "spec.tenancy", tenancy) for tenancy in tenancies)

    assert refused == any("only grows" in fault for fault in CrdSchema.of("CachePolicy").faults(new, old))
