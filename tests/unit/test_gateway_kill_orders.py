"""What a body that sets a kill level may say, and what is said to one that may not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sternpost_core.errors import BodyError
from sternpost_core.kill import LEVEL_FORMS, KillLevel
from sternpost_gateway.admin import KillOrder, read_kill


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        pytest.param({"level": "NewEpoch"}, KillOrder(KillLevel.NEW_EPOCH, None, "", False), id="by-name"),
        pytest.param({"level": "K3"}, KillOrder(KillLevel.NO_REWRITE, None, "", False), id="by-number"),
        pytest.param({"level": "none"}, KillOrder(KillLevel.NONE, None, "", False), id="in-any-case"),
        pytest.param(
            {"level": "K1", "policy": "agents/support", "reason": "drill", "force": True},
            KillOrder(KillLevel.NO_SUFFIX_READS, "agents/support", "drill", True),
            id="whole",
        ),
    ],
)
def test_an_order_is_read(order: dict[str, Any], expected: KillOrder) -> None:
    """A level has the same names as on the command line and in the kill file."""
    assert expected == read_kill(json.dumps(order).encode())


@pytest.mark.parametrize(
    ("order", "path", "value", "allowed"),
    [
        pytest.param({}, "level", "nothing", LEVEL_FORMS, id="no-level"),
        pytest.param({"level": None}, "level", "None", LEVEL_FORMS, id="null"),
        pytest.param({"level": "K9"}, "level", "'K9'", LEVEL_FORMS, id="unknown-level"),
        pytest.param({"level": 3}, "level", "3", LEVEL_FORMS, id="number"),
        pytest.param({"level": "K1", "lvl": 1}, "lvl", "a key", "level, policy, reason, force", id="key"),
        pytest.param({"level": "K1", "force": "yes"}, "force", "str", "true or false", id="force"),
    ],
)
def test_a_wrong_order_is_told(order: dict[str, Any], path: str, value: str, allowed: str) -> None:
    """By its key, what stands there, and what may."""
    with pytest.raises(BodyError) as refused:
        read_kill(json.dumps(order).encode())

    assert [(path, value, allowed)] == [(one.path, one.value, one.allowed) for one in refused.value.faults]
