"""Which tails are read no more, for how long, and what survives a restart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sternpost_core.content import ContentId
from sternpost_core.policy import Analysis, Policy, Recompute, Rollout, Shadow, SuffixCache
from sternpost_fakes.clock import FakeClock
from sternpost_gateway.shadow.comparison import Comparison
from sternpost_gateway.shadow.verdicts import DEMOTION_FILE, Demotion, TailVersion, Verdicts

POLICY = Policy(name="support", namespace="agents", pool="qwen", suffix_cache=SuffixCache())
TAIL = TailVersion(POLICY.full_name, "qwen", ContentId("a" * 64))
OTHER = TailVersion(POLICY.full_name, "qwen", ContentId("b" * 64))
EPOCH = 3

AGREES = Comparison(32, 32, 0.01)
DISAGREES = Comparison(32, 8, 0.01)
DIVERGES = Comparison(32, 32, 32 * 2.0)


def judged(state: Path | None, comparison: Comparison, replays: int = 20) -> tuple[Verdicts, list[Demotion]]:
    """Return verdicts that have seen so many equal replays of the tail, and what was demoted."""
    demotions: list[Demotion] = []
    verdicts = Verdicts(FakeClock(), state, demotions.append)
    for _ in range(replays):
        if not verdicts.is_demoted(TAIL, POLICY, EPOCH):
            verdicts.observe(TAIL, POLICY, EPOCH, comparison)
    return verdicts, demotions


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        pytest.param(AGREES, 0, id="agrees"),
        pytest.param(DISAGREES, 1, id="disagrees"),
        pytest.param(DIVERGES, 1, id="diverges"),
    ],
)
def test_tail_is_demoted_once_for_what_its_replays_say(comparison: Comparison, expected: int) -> None:
    """Either limit of the policy is enough; a tail that keeps to both stays."""
    verdicts, demotions = judged(None, comparison)

    assert expected == len(demotions) == verdicts.demoted(POLICY.full_name)
    assert bool(expected) is verdicts.is_demoted(TAIL, POLICY, EPOCH)


def test_other_tails_stay() -> None:
    """One tail's replays say nothing about another's."""
    verdicts, _ = judged(None, DISAGREES)

    assert not verdicts.is_demoted(OTHER, POLICY, EPOCH)


ANALYSIS = Rollout(analysis=Analysis(max_shadow_kl=1.0))


@pytest.mark.parametrize(
    ("policy", "epoch", "expected"),
    [
        pytest.param(POLICY, EPOCH, True, id="nothing"),
        pytest.param(replace(POLICY, shadow=Shadow(sample_rate=0.0)), EPOCH, True, id="replays-off"),
        pytest.param(replace(POLICY, warm=True), EPOCH, True, id="what-was-not-judged"),
        pytest.param(POLICY, EPOCH + 1, False, id="epoch"),
        pytest.param(replace(POLICY, rollout=ANALYSIS), EPOCH, False, id="limits"),
        pytest.param(
            replace(POLICY, suffix_cache=SuffixCache(recompute=Recompute(last=99))),
            EPOCH,
            False,
            id="suffix-cache",
        ),
    ],
)
def test_demotion_ends_with_what_was_judged(policy: Policy, epoch: int, expected: bool) -> None:
    """Another way to store or read tails, other limits or a new epoch deserve a new judgement."""
    verdicts, _ = judged(None, DISAGREES)

    assert expected is verdicts.is_demoted(TAIL, policy, epoch)
    assert expected is verdicts.is_demoted(TAIL, POLICY, EPOCH)


def test_replays_before_a_change_do_not_count_after_it() -> None:
    """A tail begins anew under a new epoch."""
    verdicts, _ = judged(None, DISAGREES, replays=2)
    verdicts.observe(TAIL, POLICY, EPOCH + 1, AGREES)

    assert [1] == [shown["replays"] for shown in verdicts.shown(POLICY.full_name)]


def test_demotion_survives_a_restart(tmp_path: Path) -> None:
    """With a state directory, the next process reads the tail no more, either."""
    before, _ = judged(tmp_path, DISAGREES)
    after = Verdicts(FakeClock(), tmp_path)

    assert after.is_demoted(TAIL, POLICY, EPOCH)
    assert before.shown(POLICY.full_name) == after.shown(POLICY.full_name)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="list"),
        pytest.param(json.dumps({"v": 9, "demotions": []}), id="version"),
        pytest.param(json.dumps({"v": 1, "demotions": [{"tail": None}]}), id="fields"),
    ],
)
def test_unreadable_file_is_said_and_begins_without(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A demotion is a judgement that can be made again: the gateway starts."""
    (tmp_path / DEMOTION_FILE).write_text(content)
    verdicts = Verdicts(FakeClock(), tmp_path)

    assert not verdicts.is_demoted(TAIL, POLICY, EPOCH)
    assert DEMOTION_FILE in caplog.text


def test_what_people_see_holds_the_figures() -> None:
    """Of a tail that is being tested, and of one that is demoted."""
    verdicts, _ = judged(None, DISAGREES)
    verdicts.observe(OTHER, POLICY, EPOCH, AGREES)
    tested, demoted = verdicts.shown(POLICY.full_name)

    assert (OTHER.tail_id, 1, 1.0, None) == (
        tested["tail"],
        tested["replays"],
        tested["agreement"],
        tested["demotedAt"],
    )
    assert (TAIL.tail_id, 0.25, FakeClock().time()) == (
        demoted["tail"],
        demoted["agreement"],
        demoted["demotedAt"],
    )
    assert (POLICY.full_name,) == verdicts.policies()
