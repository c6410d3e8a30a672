"""The made-up agents' requests: the same for a seed, and with every fault that they are to have."""

from __future__ import annotations

import json

import pytest

from sternpost_gateway.bench.agents import Faults, agent_bodies

CLEAN = Faults(clock=False, nonce=False, tool_order=False, key_order=False, tail=False)


def test_a_seed_gives_the_same_requests() -> None:
    """On every machine, so that figures can be compared."""
    assert list(agent_bodies(20, 1)) == list(agent_bodies(20, 1)) != list(agent_bodies(20, 2))


@pytest.mark.parametrize(
    ("faults", "clocks", "lists", "roles"),
    [
        pytest.param(Faults(), 20, 20, "system", id="all"),
        pytest.param(CLEAN, 1, 1, "user", id="none"),
    ],
)
def test_requests_have_the_faults_that_are_asked_for(
    faults: Faults, clocks: int, lists: int, roles: str
) -> None:
    """Clocks, tools in every order, and rules at the end."""
    bodies = [json.loads(body) for body in agent_bodies(20, 1, faults)]

    assert clocks == len({body["messages"][0]["content"] for body in bodies})
    assert lists >= len({json.dumps(body["tools"]) for body in bodies}) >= min(lists, 10)
    assert {roles} == {body["messages"][-1]["role"] for body in bodies}


def test_conversations_go_on() -> None:
    """A session's next request repeats what was said before."""
    bodies = [json.loads(body) for body in agent_bodies(50, 1, CLEAN)]
    longer = [body for body in bodies if len(body["messages"]) > 2]

    assert longer
    assert len({body["prompt_cache_key"] for body in bodies}) < len(bodies)
