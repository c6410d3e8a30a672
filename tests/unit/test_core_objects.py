"""A file's objects are read all together, or all their faults are named."""

from typing import Any

import pytest

from sternpost_core.errors import PolicyError
from sternpost_core.kill import CacheKillSwitch, KillLevel
from sternpost_core.objects import parse_objects
from sternpost_core.policy_parse import parse
from sternpost_core.pool import Adopted, EnginePool
from sternpost_fakes.policies import FULL, SMALLEST, changed

POOL: dict[str, Any] = {
    "apiVersion": "sternpost.dev/v1alpha1",
    "kind": "EnginePool",
    "metadata": {"name": "qwen"},
    "spec": {"selector": {"matchLabels": {"app": "vllm"}}},
}
SWITCH: dict[str, Any] = {
    "apiVersion": "sternpost.dev/v1alpha1",
    "kind": "CacheKillSwitch",
    "metadata": {"name": "everything"},
    "spec": {"level": "NewEpoch"},
}


def test_objects_of_all_kinds_are_read_in_order() -> None:
    """An empty document is passed over."""
    expected = [
        parse(SMALLEST),
        EnginePool(name="qwen", engines=Adopted(match_labels={"app": "vllm"})),
        CacheKillSwitch(name="everything", level=KillLevel.NEW_EPOCH),
    ]

    assert expected == parse_objects([SMALLEST, None, POOL, SWITCH])


def test_no_objects_are_none() -> None:
    """An empty file holds nothing, and that is no fault."""
    assert [] == parse_objects([])
    assert [] == parse_objects([None])


def test_faults_of_all_objects_are_named() -> None:
    """The subject names the wrong objects, and each path starts with its object's place."""
    objects = [
        SMALLEST,
        changed(FULL, "spec.prompt.layout", "x"),
        changed(SWITCH, "spec.level", "x"),
        {"kind": "Service", "metadata": {"name": "a"}},
        "text",
        {"kind": ["CachePolicy"]},
        {"metadata": "x"},
    ]

    with pytest.raises(PolicyError) as caught:
        parse_objects(objects)

    assert (
        "object 1 (CachePolicy agents/support), object 2 (CacheKillSwitch everything), object 3 (Service a),"
        " object 4 (object), object 5 (object), object 6 (object)"
    ) == caught.value.subject
    assert [
        ("[1].spec.prompt.layout", "'x'"),
        ("[2].spec.level", "'x'"),
        ("[3].kind", "'Service'"),
        ("[4].kind", "'text'"),
        ("[5].kind", "a list of 1"),
        ("[6].kind", "null"),
    ] == [(fault.path, fault.value) for fault in caught.value.faults]


def test_message_is_a_sentence_for_each_fault() -> None:
    """What a person reads names the object, the key, the value and what is allowed."""
    with pytest.raises(PolicyError) as caught:
        parse_objects([changed(FULL, "spec.prompt.layout", "Tail")])

    assert (
        "object 0 (CachePolicy agents/support): [0].spec.prompt.layout: 'Tail' is not allowed;"
        " allowed: Preserve, TailFirst, FixedTail"
    ) == str(caught.value)
