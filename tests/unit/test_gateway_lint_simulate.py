"""The simulated engine: what its two stores hold of each request."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sternpost_core.jsonspan import Document, value
from sternpost_core.policy import Layout, Policy
from sternpost_fakes.lint_logs import CLOSING, RULES, SHAPE, chat, logged, message
from sternpost_gateway.lint.encoders import EstimateEncoder
from sternpost_gateway.lint.fixes import PolicyNames, policy_of, tail_fix
from sternpost_gateway.lint.prompt import PlainPrompts, Unrenderable
from sternpost_gateway.lint.simulate import Simulation, Tally

SUFFIX = policy_of([tail_fix(Layout.FIXED_TAIL)], PolicyNames())
FIRST = policy_of([tail_fix(Layout.TAIL_FIRST)], PolicyNames())

LAST = 32
"""The last tail tokens that the policy has computed afresh."""


def body(question: str, *closing: dict[str, Any], opening: str = RULES) -> bytes:
    """Return a request that begins and ends with rules."""
    return json.dumps(chat(message("system", opening), message("user", question), *closing)).encode()


def tallies(policy: Policy | None, *bodies: bytes, tenants: str = "") -> Tally:
    """Return what a simulation of one policy counts; each letter of `tenants` is a request's tenant."""
    simulation = Simulation([policy], PlainPrompts(EstimateEncoder()), SHAPE)
    for number, sent in enumerate(bodies):
        tenant = tenants[number] if tenants else None
        simulation.observe(replace(logged(sent, number + 1), tenant=tenant))
    return simulation.scenarios[0].tally


def tail_tokens() -> int:
    """Return the tokens of the closing rules."""
    return len(EstimateEncoder().encode(f"system\n{CLOSING}\n")) // 4


RULED = [body(f"question {number}", message("system", CLOSING)) for number in range(3)]


@pytest.mark.parametrize(
    ("count", "spared"),
    [
        pytest.param(1, 0, id="the-first-has-it-built"),
        pytest.param(2, 1, id="the-second-reads-it"),
        pytest.param(3, 2, id="and-so-does-every-other"),
    ],
)
def test_a_tail_is_spared_from_the_second_request_on(count: int, spared: int) -> None:
    """But for its last tokens."""
    assert spared * (tail_tokens() - LAST) == tallies(SUFFIX, *RULED[:count]).suffix_tokens


def test_the_prefix_is_reused_beside_the_tail() -> None:
    """Both stores add up, and never to more than the prompt."""
    tally = tallies(SUFFIX, *RULED)
    alone = tallies(None, *RULED)

    assert alone.prefix_tokens == tally.prefix_tokens > 0
    assert tally.reused_tokens == tally.prefix_tokens + tally.suffix_tokens < tally.prompt_tokens


def test_tenants_build_their_own_tails() -> None:
    """And share no prefix either."""
    assert 0 == tallies(SUFFIX, *RULED[:2], tenants="ab").reused_tokens
    assert tallies(SUFFIX, *RULED[:2], tenants="aa").reused_tokens > 0


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([body("a"), body("b")], id="no-tail"),
        pytest.param([body(word, message("system", "Be brief.")) for word in "ab"], id="too-short"),
        pytest.param(
            [body(word * 9000, message("system", CLOSING)) for word in "ab"], id="too-small-a-share"
        ),
        pytest.param([body(word, message("system", CLOSING * 10)) for word in "ab"], id="too-long"),
    ],
)
def test_not_every_tail_is_read(sent: list[bytes]) -> None:
    """As the engine does, or the gateway before it."""
    assert 0 == tallies(SUFFIX, *sent).suffix_tokens


def test_a_tail_in_front_is_in_the_prefix_cache() -> None:
    """Nothing of it is computed twice, and no plugin is asked."""
    tally = tallies(FIRST, *RULED)

    assert 0 == tally.suffix_tokens
    assert tally.prefix_tokens >= 2 * tail_tokens()


def test_the_same_request_again_is_all_but_its_last_block() -> None:
    """At least one token is computed, and blocks are reused whole."""
    tally = tallies(None, RULED[0], RULED[0])
    tokens = tally.prompt_tokens // 2

    assert (tokens - 1) // SHAPE.block_tokens * SHAPE.block_tokens == tally.prefix_tokens


class StrictPrompts(PlainPrompts):
    """A template that takes a system message in front only."""

    def tokens(self, document: Document) -> bytes:
        """Refuse what many templates refuse."""
        roles = [found["role"] for found in value(document, document.span)["messages"]]
        if "system" in roles[2:]:
            raise Unrenderable
        return super().tokens(document)


def test_a_request_without_text_reuses_nothing() -> None:
    """Such as one that holds an image alone: it takes nothing away from what others reuse."""
    silent = json.dumps({"messages": []}).encode()
    tally = tallies(None, *[silent] * 4)

    assert (4, 0, 0) == (tally.requests, tally.prompt_tokens, tally.reused_tokens)


def test_what_a_template_refuses_is_counted_apart() -> None:
    """A request that the engine refuses as it is counts nowhere else; one that only a fix spoils, there."""
    simulation = Simulation([None, SUFFIX, FIRST], StrictPrompts(EstimateEncoder()), SHAPE)
    simulation.observe(logged(RULED[0]))
    simulation.observe(logged(json.dumps(chat(message("system", "a"), message("system", "b"))).encode()))
    tallies = [scenario.tally for scenario in simulation.scenarios]

    assert [1, 0, 0] == [tally.refused for tally in tallies]
    assert [1, 1, 1] == [tally.requests for tally in tallies]
