"""Kill levels are ordered, and a switch selects what it says."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.errors import PolicyError
from sternpost_core.kill import (
    CacheKillSwitch,
    KillLevel,
    effective_level,
    kill_switch_to_mapping,
    level_named,
    parse_kill_switch,
)
from sternpost_fakes.policies import MISSING, changed

LEVELS = ["None", "NoSuffixReads", "NewEpoch", "NoRewrite", "NoAffinity", "PlainProxy"]

SWITCH: dict[str, Any] = {
    "apiVersion": "sternpost.dev/v1alpha1",
    "kind": "CacheKillSwitch",
    "metadata": {"name": "everything"},
    "spec": {
        "level": "NoSuffixReads",
        "selector": {"namespaces": ["agents"], "policies": ["other/support"]},
        "reason": "LoRA rollback, incident 4711",
        "force": True,
    },
}

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)


def test_levels_grow_from_none_to_plain_proxy() -> None:
    """The numbers are those of the documentation, K0 to K5."""
    assert [KillLevel(name) for name in LEVELS] == sorted(KillLevel)
    assert [0, 1, 2, 3, 4, 5] == [level.k for level in KillLevel]
    assert LEVELS == [str(level) for level in KillLevel]
    assert KillLevel.NO_REWRITE > KillLevel.NEW_EPOCH
    assert KillLevel.NONE <= KillLevel.NONE


@given(st.lists(st.sampled_from(KillLevel)))
def test_highest_level_wins(levels: list[KillLevel]) -> None:
    """Whatever the order; no level at all is none."""
    assert max([0, *(level.k for level in levels)]) == effective_level(levels).k


@pytest.mark.parametrize("level", KillLevel, ids=str)
def test_level_is_known_by_name_and_number(level: KillLevel) -> None:
    """In an incident nobody has to remember which letters are capitals."""
    forms = (level.value, level.value.upper(), f"K{level.k}", f" k{level.k}\n")

    assert [level] * len(forms) == [level_named(form) for form in forms]


@pytest.mark.parametrize("text", ["", "K", "K6", "1", "NoSuffixRead", "No Suffix Reads"])
def test_what_is_no_level_is_not_guessed(text: str) -> None:
    """A word that is nearly a level is none."""
    assert None is level_named(text)


def test_switch_is_read() -> None:
    """Every field reaches its place."""
    expected = CacheKillSwitch(
        name="everything",
        level=KillLevel.NO_SUFFIX_READS,
        namespaces=("agents",),
        policies=("other/support",),
        reason="LoRA rollback, incident 4711",
        forced=True,
    )

    assert expected == parse_kill_switch(SWITCH)


@pytest.mark.parametrize(
    ("path", "new", "expected"),
    [
        pytest.param("spec.selector", {}, [True, True, True], id="all"),
        pytest.param("spec.selector", MISSING, [True, True, True], id="no-selector"),
        pytest.param("spec.selector", {"namespaces": ["agents"]}, [True, True, False], id="namespace"),
        pytest.param("spec.selector", {"policies": ["agents/support"]}, [True, False, False], id="policy"),
        pytest.param("spec.reason", "x", [True, True, True], id="namespace-or-policy"),
    ],
)
def test_switch_selects_by_namespace_or_full_name(path: str, new: Any, expected: list[bool]) -> None:
    """A policy is selected by either; naming neither selects all."""
    switch = parse_kill_switch(changed(SWITCH, path, new))

    policies = [("agents", "support"), ("agents", "other"), ("other", "support")]
    assert expected == [switch.selects(namespace, name) for namespace, name in policies]


@pytest.mark.parametrize(
    ("path", "new", "at", "found"),
    [
        pytest.param("spec.level", MISSING, "spec.level", "nothing", id="no-level"),
        pytest.param("spec.level", None, "spec.level", "null", id="null-level"),
        pytest.param("spec.level", "K1", "spec.level", "'K1'", id="level"),
        pytest.param("spec.selector.namespaces", [], "spec.selector.namespaces", "an empty list", id="empty"),
        pytest.param("spec.selector.policies", ["a"], "spec.selector.policies[0]", "'a'", id="bare-name"),
        pytest.param("spec.selector.policies", ["A/b"], "spec.selector.policies[0]", "'A/b'", id="bad-name"),
        pytest.param("spec.selector.tenants", ["a"], "spec.selector.tenants", "an unknown key", id="unknown"),
        pytest.param("spec.reason", 4711, "spec.reason", "4711", id="reason"),
        pytest.param("spec.force", "yes", "spec.force", "'yes'", id="force"),
        pytest.param("metadata.namespace", "agents", "metadata.namespace", "a namespace", id="namespaced"),
    ],
)
def test_wrong_switch_is_refused(path: str, new: Any, at: str, found: str) -> None:
    """The one fault names its path and value."""
    with pytest.raises(PolicyError) as caught:
        parse_kill_switch(changed(SWITCH, path, new))

    assert [(at, found)] == [(fault.path, fault.value) for fault in caught.value.faults]


@given(
    st.builds(
        CacheKillSwitch,
        name=labels,
        level=st.sampled_from(KillLevel),
        namespaces=st.lists(labels, unique=True, max_size=3).map(tuple),
        policies=st.lists(st.builds("{}/{}".format, labels, labels), unique=True, max_size=3).map(tuple),
        reason=st.text(max_size=20),
        forced=st.booleans(),
    )
)
def test_written_switch_reads_the_same(switch: CacheKillSwitch) -> None:
    """Writing and reading are inverse."""
    assert switch == parse_kill_switch(kill_switch_to_mapping(switch))
