"""The planner: how stored tails are calibrated, beside the requests and without being one of them."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.hint import Correction, Reason
from sternpost_engine.calibration import (
    AS_BUILT,
    ATTEMPTS_MAX,
    LENGTHS,
    SCAFFOLD,
    Calibrator,
    Mix,
    Sample,
    mix_for,
)
from sternpost_engine.index import Eviction, Found
from sternpost_engine.operations import Built, Capture, Operations, Span
from sternpost_engine.planner import CALIBRATED_COPIES, SAMPLE_PREFIX, TailPlanner
from sternpost_engine.rules import Facts, Limits
from sternpost_fakes.middles import TEXT_TOKENS, CountedTexts, make_calibrator
from sternpost_fakes.tail_requests import (
    MIDDLE,
    OTHER_TAIL,
    TAIL,
    WIDE,
    admit,
    block_table,
    build,
    build_facts,
    make_planner,
    read_facts,
)
from sternpost_fakes.tail_requests import SCAFFOLD as SCAFFOLD_TOKENS

BLOCKS = tuple(range(20))

SAMPLES = 2

CALIBRATED = {"correction": Correction.CALIBRATED, "insert": len(SCAFFOLD_TOKENS)}
"""What a hint of a calibrated tail says; a middle stands right before the tail."""


def calibrated_build(request_id: str, tail: Sequence[int] = TAIL, **hint: Any) -> Facts:
    """Return a request that builds a tail which is to be calibrated."""
    return build_facts(request_id, tail, **{**CALIBRATED, **hint})


def calibrated_read(request_id: str, tail: Sequence[int] = TAIL, **more: Any) -> Facts:
    """Return a request that reads a calibrated tail."""
    return read_facts(request_id, tail, **{"correction": Correction.CALIBRATED, **more})


def make_calibrating(
    *facts: Facts, budget_tokens: int = 1000, calibrator: Calibrator | None = None
) -> tuple[TailPlanner, Calibrator]:
    """Return a planner that has built these tails, and its calibrator."""
    calibrator = calibrator or make_calibrator(samples=SAMPLES)
    planner = make_planner(
        budget_tokens=budget_tokens,
        limits=Limits(tail_tokens_min=4, tail_tokens_max=32, tail_share_min=0.01),
        calibrator=calibrator,
    )
    for one in facts:
        build(planner, one)
    return planner, calibrator


def begin_sample(planner: TailPlanner) -> tuple[str, Sample]:
    """Take the next sample into the planner, as the scheduler does."""
    taken = planner.next_sample(idle=True)
    assert taken is not None, "there is a sample to compute"
    assert planner.add(Facts(request_id=taken[0], prompt=taken[1].prompt)), "it reads no prefix blocks"
    return taken


def compute_sample(planner: TailPlanner, *, fails: bool = False) -> tuple[Sample, Operations]:
    """Compute the next sample in one step."""
    request_id, sample = begin_sample(planner)
    operations = planner.close_step([(request_id, 0, len(sample.prompt))], block_table)
    built = Built(sample.entry, sample.variant)
    if fails:
        planner.failed(built)
    else:
        planner.completed(built)
    planner.finish(request_id)
    return sample, operations


# -- which tails are calibrated ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "pending"),
    [
        pytest.param(calibrated_build("build"), True, id="asked-for"),
        pytest.param(build_facts("build"), False, id="not-asked-for"),
    ],
)
def test_tail_is_calibrated_when_it_is_asked_for(facts: Facts, pending: bool) -> None:
    """A tail costs five times the room with its means, so nobody gets them unasked."""
    planner, calibrator = make_calibrating(facts)

    assert pending == (calibrator.pending > 0)
    assert pending == (planner.next_sample(idle=True) is not None)
    assert len(TAIL) * (CALIBRATED_COPIES if pending else 1) == planner.index.used_bytes


def test_without_a_calibrator_a_tail_stays_as_it_was_built() -> None:
    """It is read all the same."""
    planner = make_planner()
    build(planner, calibrated_build("build"))

    assert None is planner.next_sample(idle=True)
    assert len(TAIL) == planner.index.used_bytes
    assert AS_BUILT == admit(planner, calibrated_read("read"))[0].mix


def test_tail_without_room_for_means_is_better_than_none() -> None:
    """Where the budget has room for one copy, it is stored as it was built."""
    planner, calibrator = make_calibrating(
        calibrated_build("build"), budget_tokens=CALIBRATED_COPIES * len(TAIL) - 1
    )

    assert 0 == calibrator.pending
    assert len(TAIL) == planner.index.used_bytes
    assert AS_BUILT == admit(planner, calibrated_read("read"))[0].mix


def test_build_is_calibrated_when_it_is_whole() -> None:
    """Not before all workers hold the tail."""
    planner, calibrator = make_calibrating()
    planner.add(calibrated_build("build"))
    planner.close_step([("build", 0, 24)], block_table)
    assert 0 == calibrator.pending

    planner.completed(Built(1))

    assert SAMPLES * len(LENGTHS) == calibrator.pending


@pytest.mark.parametrize("fails", [True, False], ids=["failed", "given-up"])
def test_build_that_was_not_completed_is_not_calibrated(fails: bool) -> None:
    """Even when a worker's answer comes late."""
    planner, calibrator = make_calibrating()
    planner.add(calibrated_build("build"))
    if fails:
        planner.failed(Built(1))
    else:
        planner.finish("build")
    planner.completed(Built(1))

    assert 0 == calibrator.pending
    assert None is planner.next_sample(idle=True)


# -- a sample's way through the planner --------------------------------------------------------------------


def test_sample_is_a_request_of_the_planners_own() -> None:
    """Its whole prompt is computed, none of it is registered as a prefix, and it reads no tail."""
    planner, _ = make_calibrating(calibrated_build("build"))
    request_id, sample = begin_sample(planner)

    assert request_id.startswith(SAMPLE_PREFIX)
    assert 0 == planner.register_max(request_id)
    assert 0 == planner.match(request_id, 0, WIDE)
    assert 0 == planner.pending_middle(request_id, 99)
    assert Reason.NOT_ASKED is planner.reason(request_id)
    assert (1, 0, 0) == (sample.entry, sample.variant, sample.number)


@pytest.mark.parametrize("insert", [0, 3, 8, 99], ids=["in-front", "inside", "behind", "past-the-scaffold"])
def test_samples_middle_stands_where_the_hint_says(insert: int) -> None:
    """Between the scaffold's tokens, and never behind the tail's first."""
    planner, _ = make_calibrating(calibrated_build("build", insert=insert))
    _, sample = begin_sample(planner)

    middle = len(sample.prompt) - len(SCAFFOLD_TOKENS) - len(TAIL)
    before, behind = SCAFFOLD_TOKENS[:insert], SCAFFOLD_TOKENS[insert:]
    assert (*before, *TEXT_TOKENS[:middle], *behind, *TAIL) == sample.prompt


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        pytest.param([80], [(0, 16)], id="one-step"),
        pytest.param([30, 34, 16], [(0, 16)], id="cut-where-the-tail-begins"),
        pytest.param([70, 10], [(0, 6), (6, 10)], id="cut-inside-the-tail"),
        pytest.param([66, 13, 1], [(0, 2), (2, 13), (15, 1)], id="last-token-alone"),
    ],
)
def test_sample_is_captured_with_its_variant(chunks: list[int], expected: list[tuple[int, int]]) -> None:
    """The runs join exactly over the steps of its prefill, and the last one ends it."""
    planner, _ = make_calibrating(calibrated_build("build"))
    compute_sample(planner)
    request_id, sample = begin_sample(planner)
    assert sum(chunks) == len(sample.prompt)

    first, captures = 0, list[Capture]()
    for count in chunks:
        captures += planner.close_step([(request_id, first, count)], block_table).captures
        first += count

    assert [
        Capture(1, Span(BLOCKS, 64 + offset, offset, count), offset + count == 16, variant=0, number=1)
        for offset, count in expected
    ] == captures


def test_samples_are_no_requests() -> None:
    """Neither by their reason nor among the lookups: the figures are those of the engine's users."""
    planner, _ = make_calibrating(calibrated_build("build"))
    before = (dict(planner.requests), dict(planner.lookups), planner.index.inserts)

    for _ in range(SAMPLES):
        compute_sample(planner)

    assert before == (dict(planner.requests), dict(planner.lookups), planner.index.inserts)
    assert {Reason.BUILT: 1} == planner.requests


def test_sample_does_not_keep_its_tail() -> None:
    """A tail that is calibrated may be evicted like any other."""
    planner, calibrator = make_calibrating(
        calibrated_build("build"), budget_tokens=CALIBRATED_COPIES * len(TAIL)
    )
    request_id, sample = begin_sample(planner)

    build(planner, build_facts("evicting", OTHER_TAIL))
    planner.completed(Built(sample.entry, sample.variant))
    planner.finish(request_id)

    assert {Eviction.BUDGET: 1} == planner.index.evictions
    assert 0 == calibrator.pending
    assert None is planner.next_sample(idle=True)


@pytest.mark.parametrize("failed", [True, False], ids=["failed", "given-up"])
def test_sample_that_was_not_computed_is_taken_again(failed: bool) -> None:
    """Its tail stays live meanwhile."""
    planner, _ = make_calibrating(calibrated_build("build"))
    request_id, first = begin_sample(planner)
    if failed:
        planner.failed(Built(first.entry, first.variant))
    planner.finish(request_id)

    again, second = begin_sample(planner)

    assert (request_id, first) == (again, second)
    assert Found.LIVE is planner.index.look_up(next(planner.index.records()).key).found
    assert {} == planner.index.evictions


def test_sample_that_always_fails_ends_its_tails_calibration() -> None:
    """The next tail has its turn; the first one is read as far as it was calibrated."""
    planner, _ = make_calibrating(calibrated_build("build"), calibrated_build("other", OTHER_TAIL))
    for _ in range(SAMPLES):
        compute_sample(planner)
    failed = [compute_sample(planner, fails=True)[0] for _ in range(ATTEMPTS_MAX)]

    assert {(1, 1, 0)} == {(sample.entry, sample.variant, sample.number) for sample in failed}
    assert 2 == begin_sample(planner)[1].entry
    assert Mix(((0, 1.0),)) == admit(planner, calibrated_read("read"))[0].mix


def test_given_up_sample_ends_nothing_however_often() -> None:
    """Requests come first, and a sample can wait."""
    planner, _ = make_calibrating(calibrated_build("build"))
    for _ in range(3 * ATTEMPTS_MAX):
        request_id, sample = begin_sample(planner)
        planner.finish(request_id)

        assert (1, 0, 0) == (sample.entry, sample.variant, sample.number)


# -- what readers get --------------------------------------------------------------------------------------


def test_mean_is_read_after_its_last_sample_and_not_before() -> None:
    """It is finished in the next step, once, and that step's reads already have it."""
    planner, _ = make_calibrating(calibrated_build("build"))
    mixes, finished = [], []
    for number in range(SAMPLES + 1):
        splice, operations = admit(planner, calibrated_read(f"read-{number}"))
        mixes.append(splice.mix)
        finished.append(list(operations.finished))
        assert splice.mix == operations.loads[0].mix
        compute_sample(planner)

    assert [AS_BUILT] * SAMPLES + [Mix(((0, 1.0),))] == mixes
    assert [[]] * SAMPLES + [[Built(1, 0)]] == finished
    assert () == planner.close_step([], block_table).finished


@pytest.mark.parametrize("middle_tokens", [1, 48, 100, 136, 384, 900])
def test_read_mixes_the_means_by_its_middles_length(middle_tokens: int) -> None:
    """Of those that are ready: here the longest one does not fit the engine."""
    planner, calibrator = make_calibrating(calibrated_build("build"))
    while calibrator.pending > SAMPLES:
        compute_sample(planner)

    splice, _ = admit(planner, calibrated_read("read", middle=range(2000, 2000 + middle_tokens)))

    assert mix_for(middle_tokens, [0, 1]) == splice.mix


def test_tail_that_is_not_calibrated_is_read_as_it_was_built() -> None:
    """Though another tail of the same tokens has its means."""
    planner, calibrator = make_calibrating(calibrated_build("build"), build_facts("plain"))
    while calibrator.pending > SAMPLES:
        compute_sample(planner)

    assert AS_BUILT == admit(planner, read_facts("plain-read"))[0].mix
    assert AS_BUILT != admit(planner, calibrated_read("read"))[0].mix


def test_mean_of_a_tail_that_is_gone_is_not_finished() -> None:
    """A worker has nothing to round then."""
    planner, _ = make_calibrating(calibrated_build("build"))
    for _ in range(SAMPLES):
        compute_sample(planner)

    planner.reset()

    assert Operations(drops=(1,)) == planner.close_step([], block_table)


# -- the end of a tail -------------------------------------------------------------------------------------


def test_tail_that_is_retired_is_not_calibrated_any_more() -> None:
    """The one whose sample is out, and the one that waits."""
    planner, calibrator = make_calibrating(calibrated_build("build"), calibrated_build("other", OTHER_TAIL))
    request_id, sample = begin_sample(planner)

    planner.reset()
    planner.close_step([(request_id, 0, len(sample.prompt))], block_table)
    planner.failed(Built(sample.entry, sample.variant))
    planner.finish(request_id)

    assert 0 == calibrator.pending
    assert None is planner.next_sample(idle=True)
    assert Operations() == planner.close_step([], block_table)


def test_calibration_goes_on_with_the_tails_that_are_left() -> None:
    """A late answer for the one that went counts for nobody."""
    planner, _ = make_calibrating(
        calibrated_build("build"), calibrated_build("other", OTHER_TAIL), budget_tokens=10 * len(TAIL)
    )
    lost_id, lost = begin_sample(planner)
    planner.index.retire(lost.entry, Eviction.BUDGET)
    planner.close_step([], block_table)
    request_id, sample = begin_sample(planner)

    planner.completed(Built(lost.entry, lost.variant))
    planner.finish(lost_id)

    assert (2, 0, 0) == (sample.entry, sample.variant, sample.number)
    assert None is planner.next_sample(idle=True)
    planner.finish(request_id)
    assert (2, 0, 0) == (begin_sample(planner)[1].entry, sample.variant, sample.number)


def test_sample_under_an_adapter_says_so() -> None:
    """By the engine's own object, which the scheduler gives to the request."""
    adapter = object()
    planner, _ = make_calibrating()
    facts = calibrated_build("build")
    build(
        planner,
        Facts(request_id="build", prompt=facts.prompt, transfer=facts.transfer, lora="a:1", adapter=adapter),
    )

    assert adapter is begin_sample(planner)[1].lora


# -- nobody's text gets in ---------------------------------------------------------------------------------

PRIVATE = range(7000, 7040)
"""Tokens of clients' own texts."""

TEXTS = st.lists(st.sampled_from(PRIVATE), max_size=12).map(tuple)


@given(
    requests=st.lists(
        st.tuples(
            st.sampled_from(["read", "build", "build-with-a-middle"]),
            st.sampled_from([TAIL, OTHER_TAIL]),
            TEXTS,
            st.integers(0, 40),
        ),
        max_size=8,
    )
)
def test_prompts_of_samples_are_made_of_scaffold_texts_and_tail(
    requests: list[tuple[str, tuple[int, ...], tuple[int, ...], int]],
) -> None:
    """Whatever clients send: no text of theirs is ever in a sample, and so in another one's answer."""
    texts = CountedTexts()
    planner, calibrator = make_calibrating(calibrator=make_calibrator(samples=1, texts=texts))
    for number, (kind, tail, private, insert) in enumerate(requests):
        request_id = f"request-{number}"
        facts = calibrated_build(request_id, tail, insert=insert)
        if kind == "read":
            facts = calibrated_read(request_id, tail, middle=(*MIDDLE, *private), insert=insert)
        elif kind == "build-with-a-middle":
            prompt = (*SCAFFOLD_TOKENS, *MIDDLE, *private, *tail)
            facts = Facts(request_id=request_id, prompt=prompt, transfer=facts.transfer)
        if planner.add(facts):
            entry = planner.close_step([], block_table).begins[-1].entry
            planner.completed(Built(entry))
        planner.finish(request_id)
        while calibrator.pending and (taken := planner.next_sample(idle=True)) is not None:
            request_id, sample = taken
            assert {*sample.prompt} <= {*SCAFFOLD_TOKENS, *TEXT_TOKENS, *TAIL, *OTHER_TAIL}
            assert sample.prompt[-len(tail) :] in (TAIL, OTHER_TAIL)
            planner.completed(Built(sample.entry, sample.variant))
            planner.finish(request_id)


def test_sample_is_no_build_of_the_tail_as_it_was_built() -> None:
    """Its captures go to a mean, never to what is read meanwhile."""
    planner, _ = make_calibrating(calibrated_build("build"))

    _, operations = compute_sample(planner)

    assert SCAFFOLD not in {capture.variant for capture in operations.captures}
    assert () == operations.begins
