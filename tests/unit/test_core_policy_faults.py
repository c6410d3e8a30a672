"""A wrong CachePolicy is refused, and each fault names its path, what was found and what is allowed."""

from typing import Any

import pytest

from sternpost_core.errors import PolicyError
from sternpost_core.policy_parse import parse
from sternpost_core.reader import FAULTS_MAX
from sternpost_fakes.policies import FULL, MISSING, SMALLEST, changed

SAME = ""
"""The fault's path is the path of the change."""


def faults_of(mapping: object) -> list[tuple[str, str]]:
    """Return path and found value of every fault."""
    with pytest.raises(PolicyError) as caught:
        parse(mapping)
    return [(fault.path, fault.value) for fault in caught.value.faults]


MODEL_NAMES = "spec.match.models"
RULE = {"name": "a", "detect": "Timestamp"}

REFUSED: dict[str, tuple[str, Any, str, str]] = {
    "other-version": ("apiVersion", "sternpost.dev/v2", SAME, "'sternpost.dev/v2'"),
    "no-version": ("apiVersion", MISSING, SAME, "nothing"),
    "other-kind": ("kind", "EnginePool", SAME, "'EnginePool'"),
    "no-name": ("metadata.name", MISSING, SAME, "nothing"),
    "bad-name": ("metadata.name", "Support", SAME, "'Support'"),
    "name-ends-in-a-dash": ("metadata.name", "a-", SAME, "'a-'"),
    "name-with-a-newline": ("metadata.name", "a\n", SAME, "'a\\n'"),
    "long-name": ("metadata.name", "a" * 254, SAME, "'" + "a" * 77 + "...'"),
    "bad-namespace": ("metadata.namespace", "a.b", SAME, "'a.b'"),
    "unknown-metadata": ("metadata.nmae", "x", SAME, "an unknown key"),
    "unknown-top": ("specs", {}, SAME, "an unknown key"),
    "unknown-spec": ("spec.promt", {}, SAME, "an unknown key"),
    "spec-of-wrong-type": ("spec", [], SAME, "an empty list"),
    "no-spec": ("spec", MISSING, SAME, "nothing"),
    "no-match": ("spec.match", MISSING, SAME, "nothing"),
    "no-pool": ("spec.poolRef", MISSING, SAME, "nothing"),
    "empty-pool": ("spec.poolRef", {}, "spec.poolRef.name", "nothing"),
    "priority-as-text": ("spec.match.priority", "1", SAME, "'1'"),
    "priority-as-boolean": ("spec.match.priority", True, SAME, "true"),
    "priority-too-high": ("spec.match.priority", 1_000_001, SAME, "1000001"),
    "models-as-text": (MODEL_NAMES, "qwen", SAME, "'qwen'"),
    "no-models-at-all": (MODEL_NAMES, [], SAME, "an empty list"),
    "empty-model": (MODEL_NAMES, [""], f"{MODEL_NAMES}[0]", "''"),
    "model-twice": (MODEL_NAMES, ["a", "a"], f"{MODEL_NAMES}[1]", "'a' again"),
    "model-number": (MODEL_NAMES, ["a", 1], f"{MODEL_NAMES}[1]", "1"),
    "header-value": ("spec.match.headers", {"x": 1}, "spec.match.headers.x", "1"),
    "header-name": ("spec.match.headers", {"x y": "1"}, "spec.match.headers.x y", "the key"),
    "header-twice": ("spec.match.headers", {"x": "1", "X": "2"}, "spec.match.headers.X", "the header again"),
    "header-key-number": ("spec.match.headers", {1: "1"}, "spec.match.headers.1", "a key that is no string"),
    "many-headers": ("spec.match.headers", {f"x{n}": "" for n in range(17)}, SAME, "17 keys"),
    "isolation": ("spec.tenancy.isolation", "tenant", SAME, "'tenant'"),
    "no-tenant-source": ("spec.tenancy.tenantFrom", {}, SAME, "0 of its keys"),
    "two-tenant-sources": (
        "spec.tenancy.tenantFrom",
        {"header": "a", "jwtClaim": "b"},
        SAME,
        "2 of its keys",
    ),
    "tenant-source-of-wrong-type": ("spec.tenancy.tenantFrom", "x", SAME, "'x'"),
    "tenant-header": ("spec.tenancy.tenantFrom.header", "a b", SAME, "'a b'"),
    "session-header": ("spec.tenancy.sessionFrom", {}, "spec.tenancy.sessionFrom.header", "nothing"),
    "prefix-epoch-below-0": ("spec.tenancy.prefixEpoch", -1, SAME, "-1"),
    "prefix-epoch-too-high": ("spec.tenancy.prefixEpoch", 2**31, SAME, "2147483648"),
    "prefix-epoch-as-text": ("spec.tenancy.prefixEpoch", "4", SAME, "'4'"),
    "layout": ("spec.prompt.layout", "FixedTai", SAME, "'FixedTai'"),
    "canonicalize-as-yaml-boolean": ("spec.prompt.canonicalize", False, SAME, "false"),
    "rule-of-wrong-type": ("spec.prompt.volatile", ["x"], "spec.prompt.volatile[0]", "'x'"),
    "rules-of-wrong-type": ("spec.prompt.volatile", {}, SAME, "an object"),
    "rule-name": ("spec.prompt.volatile", [{**RULE, "name": "A"}], "spec.prompt.volatile[0].name", "'A'"),
    "rule-name-twice": ("spec.prompt.volatile", [RULE, RULE], "spec.prompt.volatile[1].name", "'a' again"),
    "rule-finds-nothing": (
        "spec.prompt.volatile",
        [{"name": "a"}],
        "spec.prompt.volatile[0].detect",
        "neither",
    ),
    "rule-finds-twice": (
        "spec.prompt.volatile",
        [{**RULE, "pattern": "x"}],
        "spec.prompt.volatile[0].detect",
        "both",
    ),
    "unknown-detector": (
        "spec.prompt.volatile",
        [{"name": "a", "detect": "Clock"}],
        "spec.prompt.volatile[0].detect",
        "'Clock'",
    ),
    "stripped-clock": (
        "spec.prompt.volatile",
        [{**RULE, "action": "Strip"}],
        "spec.prompt.volatile[0].action",
        "Strip",
    ),
    "stripped-pattern": (
        "spec.prompt.volatile",
        [{"name": "a", "pattern": "x", "action": "Strip"}],
        "spec.prompt.volatile[0].action",
        "Strip",
    ),
    "bad-pattern": (
        "spec.prompt.volatile",
        [{"name": "a", "pattern": "("}],
        "spec.prompt.volatile[0].pattern",
        "'(' (missing ), unterminated subpattern at position 0)",
    ),
    "pattern-for-nothing": (
        "spec.prompt.volatile",
        [{"name": "a", "pattern": "x*"}],
        "spec.prompt.volatile[0].pattern",
        "'x*', which the empty text matches",
    ),
    "pattern-of-wrong-type": (
        "spec.prompt.volatile",
        [{"name": "a", "pattern": 1}],
        "spec.prompt.volatile[0].pattern",
        "1",
    ),
    "many-rules": ("spec.prompt.volatile", [RULE] * 33, SAME, "a list of 33"),
    "tail-without-source": ("spec.prompt.tail", {}, "spec.prompt.tail.source", "nothing"),
    "tail-too-short": ("spec.prompt.tail.minTokens", 255, SAME, "255"),
    "tail-over-the-buckets": ("spec.prompt.tail.minTokens", 1025, SAME, "1025"),
    "anchor-mode-without-anchor": ("spec.suffixCache.anchor", MISSING, SAME, "nothing"),
    "anchor-zero": ("spec.suffixCache.anchor", 0, SAME, "0"),
    "nothing-computed": ("spec.suffixCache.recompute.last", 0, SAME, "0"),
    "unknown-recompute": (
        "spec.suffixCache.recompute.tail",
        1,
        SAME,
        "an unknown key",
    ),
    "calibrated-without-middles": (
        "spec.suffixCache",
        {"calibration": {"generic": False}},
        "spec.suffixCache.calibration",
        "no middles",
    ),
    "config-map": (
        "spec.suffixCache.calibration.configMapRef.name",
        "A",
        SAME,
        "'A'",
    ),
    "bucket": ("spec.suffixCache.buckets", [256, 300], SAME, "300"),
    "buckets-fall": ("spec.suffixCache.buckets", [512, 256], "spec.suffixCache.buckets[1]", "256"),
    "bucket-as-text": ("spec.suffixCache.buckets", ["256"], "spec.suffixCache.buckets[0]", "'256'"),
    "no-buckets": ("spec.suffixCache.buckets", [], SAME, "an empty list"),
    "tail-share": (
        "spec.suffixCache.bypass.minTailShare",
        1.5,
        SAME,
        "1.5",
    ),
    "suffix-cache-of-wrong-type": ("spec.suffixCache", True, SAME, "true"),
    "warm": ("spec.warm", "yes", SAME, "'yes'"),
    "steps-stand-still": ("spec.rollout.steps", [1, 1, 100], "spec.rollout.steps[1]", "1"),
    "steps-end-early": ("spec.rollout.steps", [1, 50], SAME, "50 at the end"),
    "step-too-large": ("spec.rollout.steps", [1, 5, 101], "spec.rollout.steps[2]", "101"),
    "step-zero": ("spec.rollout.steps", [0, 100], "spec.rollout.steps[0]", "0"),
    "duration-number": ("spec.rollout.minDuration", 600, SAME, "600"),
    "duration-form": ("spec.rollout.minDuration", "10 min", SAME, "'10 min'"),
    "duration-long": ("spec.rollout.minDuration", "169h", SAME, "'169h'"),
    "requests-negative": ("spec.rollout.minRequests", -1, SAME, "-1"),
    "url": (
        "spec.rollout.analysis.prometheus.url",
        "prometheus:9090",
        SAME,
        "'prometheus:9090'",
    ),
    "url-with-password": (
        "spec.rollout.analysis.prometheus",
        {"url": "http://a:b@c"},
        "spec.rollout.analysis.prometheus.url",
        "'http://a:b@c'",
    ),
    "ratio-under-one": (
        "spec.rollout.analysis.maxTtftRatio",
        0.5,
        SAME,
        "0.5",
    ),
    "ratio-nan": (
        "spec.rollout.analysis.maxTtftRatio",
        float("nan"),
        SAME,
        "nan",
    ),
    "share-boolean": ("spec.shadow.sampleRate", True, SAME, "true"),
    "share-over-one": ("spec.shadow.sampleRate", 1.01, SAME, "1.01"),
    "kill-level-null": ("spec.killLevel", None, SAME, "null"),
    "kill-level": ("spec.killLevel", "K1", SAME, "'K1'"),
    "tenants-of-api-keys": (
        "spec.tenancy.tenantFrom",
        {"apiKey": True},
        "spec.match.tenants",
        "names of tenants",
    ),
    "excluded-tenants-of-api-keys": (
        "spec.tenancy.tenantFrom",
        {"apiKey": True},
        "spec.shadow.excludeTenants",
        "names of tenants",
    ),
    "excluded-tenant-empty": (
        "spec.shadow.excludeTenants",
        [""],
        "spec.shadow.excludeTenants[0]",
        "''",
    ),
    "no-api-key": (
        "spec.tenancy",
        {"tenantFrom": {"apiKey": False}},
        "spec.tenancy.tenantFrom.apiKey",
        "false",
    ),
}


@pytest.mark.parametrize(("path", "new", "at", "found"), REFUSED.values(), ids=REFUSED.keys())
def test_fault_names_its_path_and_value(path: str, new: Any, at: str, found: str) -> None:
    """What is wrong is found where it stands."""
    assert (at or path, found) in faults_of(changed(FULL, path, new))


@pytest.mark.parametrize(
    ("path", "new", "faults"),
    [
        pytest.param("spec.prompt.tail", MISSING, ["spec.prompt.layout", "spec.suffixCache"], id="no-tail"),
        pytest.param("spec.prompt.tail", 3, ["spec.prompt.tail"], id="tail-of-wrong-type"),
        pytest.param("spec.prompt", 3, ["spec.prompt", "spec.suffixCache"], id="prompt-of-wrong-type"),
        pytest.param("spec.match", 3, ["spec.match"], id="match-of-wrong-type"),
        pytest.param("metadata", MISSING, ["metadata"], id="no-metadata"),
        pytest.param("spec.prompt.layout", "x", ["spec.prompt.layout"], id="layout"),
        pytest.param("spec.suffixCache.mode", "x", ["spec.suffixCache.mode"], id="mode"),
        pytest.param("spec.rollout.steps", [1, 101], ["spec.rollout.steps[1]"], id="steps"),
        pytest.param("spec.prompt.volatile", [3], ["spec.prompt.volatile[0]"], id="rule"),
    ],
)
def test_one_mistake_is_reported_once(path: str, new: Any, faults: list[str]) -> None:
    """No fault follows from another."""
    assert faults == [at for at, _ in faults_of(changed(FULL, path, new))]


def test_all_faults_are_reported_at_once() -> None:
    """A person mends the object in one go."""
    mapping = changed(FULL, "spec.prompt.layout", "x")
    mapping = changed(mapping, "spec.rollout.steps", [5, 1])
    mapping = changed(mapping, "spec.colour", "red")
    mapping = changed(mapping, "kind", MISSING)

    with pytest.raises(PolicyError) as caught:
        parse(mapping)

    assert ["kind", "spec.prompt.layout", "spec.rollout.steps[1]", "spec.colour"] == [
        fault.path for fault in caught.value.faults
    ]
    assert "CachePolicy agents/support" == caught.value.subject


@pytest.mark.parametrize(
    ("path", "suffix"),
    [
        pytest.param("spec.prompt.layuot", "; did you mean layout?", id="near"),
        pytest.param("spec.prompt.zzz", "layout, canonicalize, volatile, tail", id="far"),
    ],
)
def test_unknown_key_shows_what_is_known(path: str, suffix: str) -> None:
    """The keys of the object are listed, and the nearest is suggested where one is near."""
    with pytest.raises(PolicyError) as caught:
        parse(changed(FULL, path, 1))

    (fault,) = caught.value.faults
    assert fault.allowed.startswith("layout, canonicalize, volatile, tail")
    assert fault.allowed.endswith(suffix)


@pytest.mark.parametrize("mapping", [None, [], "CachePolicy", 3])
def test_what_is_no_object_is_refused(mapping: object) -> None:
    """The one fault says what was found instead."""
    assert ["CachePolicy"] == [path for path, _ in faults_of(mapping)]


@pytest.mark.parametrize("name", ["a", "a.b-c", "0", "a" * 253])
def test_names_of_objects_are_dns_names(name: str) -> None:
    """What Kubernetes takes as a name is taken here."""
    assert name == parse(changed(SMALLEST, "metadata.name", name)).name


def test_faults_are_bounded() -> None:
    """A huge wrong object gets the first faults, soon, and not megabytes of them."""
    mapping = changed(FULL, "spec", {f"key{number}": 1 for number in range(20_000)})

    with pytest.raises(PolicyError) as caught:
        parse(mapping)

    assert FAULTS_MAX == len(caught.value.faults)
