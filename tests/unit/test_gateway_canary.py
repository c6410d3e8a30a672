"""A policy that is being rolled out: who gets its behaviour, and what the others get."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from sternpost_core.jsonspan import scan
from sternpost_core.kill import KillLevel
from sternpost_core.policy import Policy
from sternpost_core.policy_parse import parse
from sternpost_core.rollout import Arm, Rollout
from sternpost_gateway.canary import Placed, place, session_key
from sternpost_gateway.receive import CHAT_PATH

NAME = "agents/support"


def policy(**spec: Any) -> Policy:
    """Return a policy that reads tails."""
    full = {"match": {"models": ["qwen"]}, "poolRef": {"name": "qwen"}, "suffixCache": {}, **spec}
    full.setdefault("prompt", {"tail": {"source": "LastSystemMessage"}})
    return parse(
        {
            "apiVersion": "sternpost.dev/v1alpha1",
            "kind": "CachePolicy",
            "metadata": {"name": "support", "namespace": "agents"},
            "spec": full,
        }
    )


def key(rollout: Rollout, session: str | None, *messages: str, tenant: str = "acme") -> bytes:
    """Return the key of a chat."""
    listed = [
        {"role": "system", "content": "rules"},
        *({"role": "user", "content": text} for text in messages),
    ]
    document = scan(json.dumps({"model": "qwen", "messages": listed}).encode())
    return session_key(policy(), {NAME: rollout}, tenant, session, document, CHAT_PATH)


def test_without_a_rollout_everybody_gets_the_behaviour() -> None:
    """A policy of a directory, or of a cluster without an operator."""
    assert Placed(Arm.ALL, KillLevel.NONE) == place(policy(), {}, b"")


@pytest.mark.parametrize(
    ("rollout", "expected"),
    [
        pytest.param(Rollout(0, 0), {(Arm.REST, KillLevel.NO_REWRITE): 1.0}, id="nobody yet"),
        pytest.param(Rollout(100, 100), {(Arm.CANARY, KillLevel.NONE): 1.0}, id="all"),
        pytest.param(Rollout(100, 0), {(Arm.CANARY, KillLevel.NO_SUFFIX_READS): 1.0}, id="bytes stay"),
        pytest.param(
            Rollout(10, 10),
            {
                (Arm.CANARY, KillLevel.NONE): 0.1,
                (Arm.CONTROL, KillLevel.NO_REWRITE): 0.1,
                (Arm.REST, KillLevel.NO_REWRITE): 0.8,
            },
            id="a tenth",
        ),
    ],
)
def test_the_weight_decides_for_how_many(
    rollout: Rollout, expected: dict[tuple[Arm, KillLevel], float]
) -> None:
    """Who is not reached keeps its bytes; who may not read keeps the rewritten ones."""
    sessions = 4_000
    placed = Counter(
        (found.arm, found.level)
        for n in range(sessions)
        for found in [place(policy(), {NAME: rollout}, str(n).encode())]
    )

    assert expected.keys() == placed.keys()
    assert all(abs(placed[arm] / sessions - share) < 0.03 for arm, share in expected.items())


def test_a_named_session_is_itself_whatever_it_says() -> None:
    """And two tenants' sessions of one name are two."""
    half = Rollout(50, 50)

    assert key(half, "s", "hello") == key(half, "s", "hello", "more")
    assert key(half, "s", "hello") != key(half, "s", "hello", tenant="globex")


def test_without_a_name_a_conversation_is_known_by_how_it_begins() -> None:
    """Its later turns repeat its first message."""
    half = Rollout(50, 50)

    assert key(half, None, "hello") == key(half, None, "hello", "more")
    assert key(half, None, "hello") != key(half, None, "goodbye")


def test_where_all_are_alike_nobody_is_looked_at() -> None:
    """The first and the last step cost nothing."""
    assert b"" == key(Rollout(0, 0), "s") == key(Rollout(100, 100), "s")
