"""The scenarios of the engine's benchmark, and the texts that they are made of."""

from itertools import chain
from random import Random

import pytest

from bench.engine.scenarios import AT_ONCE, TURNS, Scenario, Turn, make_scenarios
from sternpost_gateway.bench.texts import TOKENS_PER_WORD, rules, text

SCENARIOS = {scenario.name: scenario for scenario in make_scenarios(7)}


def turns_of(scenario: Scenario) -> list[Turn]:
    """Return all turns of a scenario."""
    sessions = chain.from_iterable(batch.sessions for batch in scenario.batches)
    return [turn for session in sessions for turn in session.turns]


def test_a_seed_decides_every_word() -> None:
    """The same seed gives the same requests, another seed others."""
    assert make_scenarios(7) == make_scenarios(7)
    assert make_scenarios(7) != make_scenarios(8)


@pytest.mark.parametrize("name", SCENARIOS)
def test_batches_are_of_one_session_or_of_all_at_once(name: str) -> None:
    """Every session and batch has a name of its own, for its record."""
    batches = SCENARIOS[name].batches
    sessions = [session.id for batch in batches for session in batch.sessions]

    assert {len(batch.sessions) for batch in batches} <= {1, AT_ONCE}
    assert len({batch.id for batch in batches}) == len(batches)
    assert len(set(sessions)) == len(sessions)


@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - {"regenerate"}))
def test_no_two_requests_are_alike(name: str) -> None:
    """An engine's prefix cache would know a request that it has seen."""
    middles = [str(turn.middle) for turn in turns_of(SCENARIOS[name])]

    assert len(set(middles)) == len(middles)


def test_a_regenerated_request_is_the_one_before() -> None:
    """Only the second of the two is measured."""
    for batch in SCENARIOS["regenerate"].batches:
        for session in batch.sessions:
            first, again = session.turns
            assert (first.middle, False, True) == (again.middle, first.measured, again.measured)


@pytest.mark.parametrize(("name", "turns"), [("tool_turns", TURNS), ("long_session", 3)])
def test_each_turn_continues_the_one_before(name: str, turns: int) -> None:
    """A session's requests grow by what was said, and end with the user's side."""
    for batch in SCENARIOS[name].batches:
        for session in batch.sessions:
            assert turns == len(session.turns)
            for turn, following in zip(session.turns, session.turns[1:], strict=False):
                assert list(turn.middle) == list(following.middle)[: len(turn.middle)]
                assert len(turn.middle) < len(following.middle)
            assert {"user"} == {turn.middle[-1]["role"] for turn in session.turns}


def test_only_what_may_be_reused_is_built_and_hinted() -> None:
    """Without reuse there is no hint; short tails are hinted, and never built."""
    assert ("", False, False) == (
        SCENARIOS["no_reuse"].tail,
        SCENARIOS["no_reuse"].hinted,
        SCENARIOS["no_reuse"].built,
    )
    assert (True, False) == (SCENARIOS["short_chat"].hinted, SCENARIOS["short_chat"].built)
    assert all(SCENARIOS[name].built for name in ("fixed_tail", "tool_turns", "regenerate", "long_session"))


@pytest.mark.parametrize("tokens", [50, 250, 1700])
def test_a_text_has_about_the_tokens_that_are_wanted(tokens: int) -> None:
    """It ends with the sentence that reaches the length."""
    words = len(text(Random(1), tokens).split())

    assert tokens <= words * TOKENS_PER_WORD + 1e-9
    assert words * TOKENS_PER_WORD < tokens + 20 * TOKENS_PER_WORD


def test_rules_are_numbered_and_end_with_what_to_do() -> None:
    """As an agent's rules do."""
    first, *numbered, last = rules(Random(1), 300).split("\n")

    assert first.endswith(":")
    assert [f"{number}." for number in range(1, len(numbered) + 1)] == [line.split()[0] for line in numbered]
    assert last.startswith("Answer")
