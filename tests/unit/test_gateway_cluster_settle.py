"""Objects of the API server become a configuration; what is wrong with one takes nothing away."""

from __future__ import annotations

from typing import Any

import pytest

from sternpost_core.kill import KillLevel
from sternpost_gateway.cluster.mirror import Store
from sternpost_gateway.cluster.resources import Key, Object
from sternpost_gateway.cluster.settle import Settled, Stores, settle


def policy(name: str = "support", model: str = "qwen", **spec: Any) -> Object:
    """Return a CachePolicy as the API server sends it."""
    return {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CachePolicy",
        "metadata": {
            "name": name,
            "namespace": "agents",
            "uid": "u",
            "resourceVersion": "5",
            "generation": 2,
        },
        "spec": {"match": {"models": [model]}, "poolRef": {"name": "qwen"}, **spec},
        "status": {"phase": "Ready"},
    }


def switch(level: str) -> Object:
    """Return a CacheKillSwitch for everything."""
    return {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CacheKillSwitch",
        "metadata": {"name": "everything"},
        "spec": {"level": level, "selector": {}, "reason": "drill"},
    }


def stored(*items: Object) -> Store:
    """Return a store of objects."""
    return {Key(item["metadata"].get("namespace", ""), item["metadata"]["name"]): item for item in items}


def levels(settled: Settled) -> dict[str, KillLevel]:
    """Return what is live, by name."""
    return {item.name: item.kill_level for item in settled.config.policies.policies}


def test_good_objects_go_live() -> None:
    """What Kubernetes adds to an object is no fault."""
    settled = settle(Stores(stored(policy()), {}, stored(switch("NoSuffixReads"))), Settled())

    assert ({"support": KillLevel.NONE}, ()) == (levels(settled), settled.faults)
    assert [KillLevel.NO_SUFFIX_READS] == [item.level for item in settled.config.switches]


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        pytest.param(
            policy(prompt={"layout": "Sideways"}),
            "CachePolicy agents/support: spec.prompt.layout",
            id="value",
        ),
        pytest.param(policy(colour="red"), "CachePolicy agents/support: spec.colour", id="unknown key"),
        pytest.param({**policy(), "spec": None}, "CachePolicy agents/support: spec", id="blank spec"),
        pytest.param(
            {**policy(), "apiVersion": "sternpost.dev/v9"},
            "CachePolicy agents/support: apiVersion",
            id="version",
        ),
    ],
)
def test_a_bad_object_keeps_its_last_good_form(bad: Object, path: str) -> None:
    """An edit with a fault is told, with the object and the path, and changes nothing, twice over."""
    first = settle(Stores(stored(policy(), policy("other", "llama"))), Settled())
    second = settle(Stores(stored(bad, policy("other", "llama"))), first)
    third = settle(Stores(stored(bad, policy("other", "llama"))), second)

    assert first.config == second.config == third.config
    assert [path] == [fault.path for fault in third.faults]


def test_a_bad_object_that_was_never_good_stays_out_alone() -> None:
    """Others go live beside it."""
    settled = settle(Stores(stored(policy(colour="red"), policy("other", "llama"))), Settled())

    assert ["other"] == list(levels(settled))


def test_a_kill_level_is_heard_from_an_object_with_faults() -> None:
    """Whoever raises it in the same edit that broke something else is obeyed."""
    first = settle(Stores(stored(policy())), Settled())
    second = settle(Stores(stored(policy(colour="red", killLevel="NewEpoch"))), first)

    assert {"support": KillLevel.NEW_EPOCH} == levels(second)


def test_an_object_with_faults_takes_no_kill_level_back() -> None:
    """Only an object that is right may switch on again."""
    first = settle(Stores(stored(policy(killLevel="NoSuffixReads"))), Settled())
    second = settle(Stores(stored(policy(colour="red", killLevel="None"))), first)
    third = settle(Stores(stored(policy(killLevel="None"))), second)

    assert {"support": KillLevel.NO_SUFFIX_READS} == levels(second)
    assert {"support": KillLevel.NONE} == levels(third)


def test_of_two_that_exclude_one_another_the_one_that_was_there_stays() -> None:
    """A newcomer with the same priority and models cannot push out what serves."""
    first = settle(Stores(stored(policy("support"))), Settled())
    second = settle(Stores(stored(policy("a-newcomer"), policy("support"))), first)

    assert ["support"] == list(levels(second))
    assert 1 == len(second.faults)


def test_a_change_into_a_conflict_keeps_the_form_before() -> None:
    """The changed policy serves what it served."""
    first = settle(Stores(stored(policy("a"), policy("b", "llama"))), Settled())
    second = settle(Stores(stored(policy("a"), policy("b", "qwen", killLevel="NoSuffixReads"))), first)

    assert [("qwen",), ("llama",)] == [item.match.models for item in second.config.policies.policies]
    assert {"a": KillLevel.NONE, "b": KillLevel.NO_SUFFIX_READS} == levels(second)


def test_a_deleted_object_is_gone() -> None:
    """The last good form is for objects that exist."""
    first = settle(Stores(stored(policy())), Settled())

    assert {} == levels(settle(Stores(), first))
