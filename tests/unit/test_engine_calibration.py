"""Calibration: which sample is computed when, what its prompt is, and which means a request reads."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_engine.calibration import (
    AS_BUILT,
    ATTEMPTS_MAX,
    BUSY_SECONDS_MAX,
    LENGTHS,
    ROOM_SHARE_MIN,
    Calibrator,
    Job,
    Mix,
    Sample,
    mix_for,
)
from sternpost_fakes.middles import TEXT_TOKENS, CountedTexts, make_calibrator

SCAFFOLD = tuple(range(100, 108))
TAIL = tuple(range(500, 516))

LONG_PROMPTS = 8192
"""An engine's limit under which every length fits."""


def job_of(entry: int = 1, *, insert: int = 3, kind: str = "", lora: object = None) -> Job:
    """Return a tail to calibrate."""
    return Job(entry, SCAFFOLD, insert, TAIL, kind, lora)


def calibrator_of(*jobs: Job, samples: int = 2, prompt_tokens_max: int = LONG_PROMPTS) -> Calibrator:
    """Return a calibrator to which these tails are given."""
    calibrator = make_calibrator(samples=samples, prompt_tokens_max=prompt_tokens_max)
    for job in jobs:
        calibrator.want(job)
    return calibrator


def take(calibrator: Calibrator) -> Sample:
    """Take the next sample of an idle engine, which there is."""
    sample = calibrator.next_sample(0.0, idle=True)
    assert sample is not None, "there is a sample to compute"
    return sample


def compute_all(calibrator: Calibrator) -> list[Sample]:
    """Compute every sample that there is, in an idle engine."""
    samples: list[Sample] = []
    while (sample := calibrator.next_sample(0.0, idle=True)) is not None:
        samples.append(sample)
        calibrator.done(sample, 0.0, computed=True)
    return samples


def names(samples: list[Sample]) -> list[tuple[int, int, int]]:
    """Name each sample by its tail, its variant and its number."""
    return [(sample.entry, sample.variant, sample.number) for sample in samples]


# -- the order of samples --------------------------------------------------------------------------------


def test_samples_come_tail_by_tail_and_length_by_length() -> None:
    """A short length is ready while a long one is computed, and one tail while the next one waits."""
    samples = compute_all(calibrator_of(job_of(1), job_of(2)))

    assert [(entry, v, n) for entry in (1, 2) for v in range(len(LENGTHS)) for n in range(2)] == names(
        samples
    )


def test_last_sample_of_a_length_completes_its_mean() -> None:
    """The planner lets it be read from then on."""
    samples = compute_all(calibrator_of(job_of(), samples=3))

    assert [False, False, True] * len(LENGTHS) == [sample.final for sample in samples]


def test_one_sample_is_out_at_a_time() -> None:
    """An engine that calibrates two tails at once would have time for nobody."""
    calibrator = calibrator_of(job_of(1), job_of(2))
    sample = take(calibrator)

    assert None is calibrator.next_sample(10**6, idle=True)
    calibrator.done(sample, 0.0, computed=True)
    assert (1, 0, 1) == names([take(calibrator)])[0]


def test_pending_counts_what_is_left() -> None:
    """Over all tails, the one that is out included."""
    calibrator = calibrator_of(job_of(1), job_of(2))
    counts = [calibrator.pending]
    sample = take(calibrator)
    counts.append(calibrator.pending)
    calibrator.done(sample, 0.0, computed=True)
    counts.append(calibrator.pending)
    compute_all(calibrator)
    counts.append(calibrator.pending)

    assert [12, 12, 11, 0] == counts


# -- when ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waited", "idle", "handed_out"),
    [
        pytest.param(0.0, True, True, id="idle-at-once"),
        pytest.param(0.0, False, False, id="busy-at-once"),
        pytest.param(BUSY_SECONDS_MAX, False, False, id="busy-until-the-limit"),
        pytest.param(BUSY_SECONDS_MAX + 0.1, False, True, id="busy-past-the-limit"),
    ],
)
def test_busy_engine_calibrates_seldom(waited: float, idle: bool, handed_out: bool) -> None:
    """The seconds count from the end of the sample before, however long it took."""
    calibrator = calibrator_of(job_of())
    first = calibrator.next_sample(1000.0, idle=False)
    assert first is not None, "the first sample waits for nothing"
    calibrator.done(first, 5000.0, computed=True)

    assert handed_out == (calibrator.next_sample(5000.0 + waited, idle=idle) is not None)


def test_sample_that_was_given_up_makes_the_next_one_wait_too() -> None:
    """It was given up because others want the engine."""
    calibrator = calibrator_of(job_of())
    calibrator.done(take(calibrator), 5000.0, computed=False)

    assert None is calibrator.next_sample(5000.0 + BUSY_SECONDS_MAX, idle=False)
    assert (1, 0, 0) == names([take(calibrator)])[0]


# -- what can go wrong -----------------------------------------------------------------------------------


def test_sample_that_failed_is_tried_so_often_and_no_more() -> None:
    """Then the tail stays as far calibrated as it is, and the next one has its turn."""
    calibrator = calibrator_of(job_of(1), job_of(2))
    calibrator.done(take(calibrator), 0.0, computed=True)
    tried = []
    for _ in range(ATTEMPTS_MAX):
        tried.append(take(calibrator))
        calibrator.done(tried[-1], 0.0, computed=False, failed=True)

    assert [(1, 0, 1)] * ATTEMPTS_MAX == names(tried)
    assert (2, 0, 0) == names([take(calibrator)])[0]


def test_failures_in_between_are_forgiven() -> None:
    """Only those of one sample count, one right after another."""
    calibrator, samples = calibrator_of(job_of(1), job_of(2)), []
    for _ in range(len(LENGTHS) * 2):
        for computed in (*[False] * (ATTEMPTS_MAX - 1), True):
            sample = take(calibrator)
            samples.append(sample)
            calibrator.done(sample, 0.0, computed=computed, failed=not computed)

    assert {1} == {sample.entry for sample in samples}
    assert (2, 0, 0) == names([take(calibrator)])[0]


def test_sample_that_is_given_up_is_handed_out_again() -> None:
    """However often: whoever asks the engine comes first, and that is nobody's failure."""
    calibrator = calibrator_of(job_of())
    for _ in range(10 * ATTEMPTS_MAX):
        sample = take(calibrator)
        calibrator.done(sample, 0.0, computed=False)

        assert (1, 0, 0) == names([sample])[0]


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        pytest.param(1, (2, 0, 0), id="the-one-in-work"),
        pytest.param(2, (1, 0, 1), id="one-that-waits"),
        pytest.param(9, (1, 0, 1), id="an-unknown-one"),
    ],
)
def test_tail_that_is_gone_is_not_calibrated(gone: int, expected: tuple[int, int, int]) -> None:
    """The others are, as if it had not been there."""
    calibrator = calibrator_of(job_of(1), job_of(2), job_of(3))
    calibrator.done(take(calibrator), 0.0, computed=True)

    calibrator.forget(gone)

    rest = names(compute_all(calibrator))
    assert expected == rest[0]
    assert gone not in {entry for entry, _, _ in rest}
    assert 3 in {entry for entry, _, _ in rest}


def test_answer_for_a_tail_that_is_gone_changes_nothing() -> None:
    """Its sample was out when it went; the next tail's own samples are counted alone."""
    calibrator = calibrator_of(job_of(1), job_of(2))
    lost = take(calibrator)
    calibrator.forget(1)
    sample = take(calibrator)

    calibrator.done(lost, 0.0, computed=True)

    assert None is calibrator.next_sample(0.0, idle=True)
    calibrator.done(sample, 0.0, computed=True)
    assert (2, 0, 1) == names([take(calibrator)])[0]


def test_failures_of_a_tail_that_is_gone_are_not_the_next_ones() -> None:
    """Each tail has all its attempts."""
    calibrator = calibrator_of(job_of(1), job_of(2))
    for _ in range(ATTEMPTS_MAX - 1):
        calibrator.done(take(calibrator), 0.0, computed=False, failed=True)
    calibrator.forget(1)

    calibrator.done(take(calibrator), 0.0, computed=False, failed=True)

    assert (2, 0, 0) == names([take(calibrator)])[0]


def test_calibrator_without_work_has_nothing_to_do() -> None:
    """Before the first tail, and after the last one."""
    calibrator = calibrator_of()
    assert None is calibrator.next_sample(0.0, idle=True)

    calibrator.want(job_of())
    compute_all(calibrator)

    assert None is calibrator.next_sample(0.0, idle=True)
    assert 0 == calibrator.pending


# -- the prompt of a sample ------------------------------------------------------------------------------


@given(
    scaffold=st.lists(st.integers(0, 99), max_size=30).map(tuple),
    insert=st.integers(0, 30),
    tail=st.lists(st.integers(100, 199), min_size=1, max_size=30).map(tuple),
    prompt_tokens_max=st.integers(0, 6000),
    text_tokens=st.integers(0, 4000),
    samples=st.integers(1, 9),
)
def test_prompt_is_scaffold_middle_and_tail(
    scaffold: tuple[int, ...],
    insert: int,
    tail: tuple[int, ...],
    prompt_tokens_max: int,
    text_tokens: int,
    samples: int,
) -> None:
    """Nothing else is in it, the middle stands where a request's would, and the engine takes it."""
    insert = min(insert, len(scaffold))
    texts = CountedTexts(text_tokens)
    calibrator = make_calibrator(samples=samples, prompt_tokens_max=prompt_tokens_max, texts=texts)
    calibrator.want(Job(1, scaffold, insert, tail, ""))

    for sample in compute_all(calibrator):
        middle = len(sample.prompt) - len(scaffold) - len(tail)
        assert 0 < middle <= text_tokens
        assert (*scaffold[:insert], *TEXT_TOKENS[:middle], *scaffold[insert:], *tail) == sample.prompt
        assert len(tail) == sample.tail_tokens
        assert len(sample.prompt) <= prompt_tokens_max


@pytest.mark.parametrize(
    ("room", "variants"),
    [
        pytest.param(LENGTHS[0] * ROOM_SHARE_MIN - 1, set(), id="none-fits"),
        pytest.param(LENGTHS[0] * ROOM_SHARE_MIN, {0}, id="half-of-the-shortest"),
        pytest.param(LENGTHS[1] * ROOM_SHARE_MIN - 1, {0}, id="not-quite-the-second"),
        pytest.param(LENGTHS[1] * ROOM_SHARE_MIN, {0, 1}, id="half-of-the-second"),
        pytest.param(LENGTHS[2] * ROOM_SHARE_MIN, {0, 1, 2}, id="half-of-the-longest"),
    ],
)
def test_lengths_that_do_not_fit_are_left_out(room: float, variants: set[int]) -> None:
    """A mean of shorter middles would stand for longer ones."""
    limit = len(SCAFFOLD) + len(TAIL) + int(room)

    samples = compute_all(calibrator_of(job_of(), prompt_tokens_max=limit))

    assert variants == {sample.variant for sample in samples}


def test_tail_that_cannot_be_calibrated_makes_way_at_once() -> None:
    """An idle engine is not called again until somebody asks it something."""
    scaffold = tuple(range(LONG_PROMPTS))
    calibrator = calibrator_of(Job(1, scaffold, 0, TAIL, ""), job_of(2))

    assert (2, 0, 0) == names([take(calibrator)])[0]


def test_engine_without_texts_calibrates_nothing() -> None:
    """Its tails stay as they were built."""
    calibrator = make_calibrator(texts=CountedTexts(0))
    calibrator.want(job_of(1))
    calibrator.want(job_of(2))

    assert None is calibrator.next_sample(0.0, idle=True)
    assert 0 == calibrator.pending


def test_middles_are_of_the_tails_kind_and_about_as_long_as_the_variant() -> None:
    """Real middles vary too: by a factor of 1.43 up and down, and the middle one is the variant's length."""
    texts = CountedTexts()
    calibrator = make_calibrator(samples=8, prompt_tokens_max=LONG_PROMPTS, texts=texts)
    calibrator.want(job_of(kind="code"))
    compute_all(calibrator)

    assert {"code"} == {kind for kind, _, _ in texts.asked}
    assert [*range(8)] * len(LENGTHS) == [number for _, number, _ in texts.asked]
    for variant, length in enumerate(LENGTHS):
        asked = [tokens for _, _, tokens in texts.asked[8 * variant : 8 * variant + 8]]
        assert (round(length / 1.43), round(length * 1.43)) == (min(asked), max(asked))
        assert math.exp(sum(map(math.log, asked)) / 8) == pytest.approx(length, rel=0.02)


def test_sample_is_computed_under_the_tails_adapter() -> None:
    """Keys and values of another model would be no mean of this one's."""
    adapter = object()

    assert adapter is take(calibrator_of(job_of(lora=adapter))).lora


# -- what a request reads --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("middle_tokens", "ready", "expected"),
    [
        pytest.param(48, [], AS_BUILT, id="none-ready"),
        pytest.param(0, [0, 1, 2], Mix(((0, 1.0),)), id="no-middle"),
        pytest.param(-3, [0, 1, 2], Mix(((0, 1.0),)), id="less-than-no-middle"),
        pytest.param(10, [0, 1, 2], Mix(((0, 1.0),)), id="shorter-than-all"),
        pytest.param(48, [0, 1, 2], Mix(((0, 1.0),)), id="the-shortest"),
        pytest.param(384, [0, 1, 2], Mix(((1, 1.0),)), id="the-second"),
        pytest.param(3000, [0, 1, 2], Mix(((2, 1.0),)), id="the-longest"),
        pytest.param(9000, [0, 1, 2], Mix(((2, 1.0),)), id="longer-than-all"),
        pytest.param(48, [1, 2], Mix(((1, 1.0),)), id="shortest-not-ready"),
        pytest.param(3000, [0], Mix(((0, 1.0),)), id="only-one-ready"),
        pytest.param(384, [1], Mix(((1, 1.0),)), id="only-the-right-one-ready"),
        pytest.param(3000, [1, 0], Mix(((1, 1.0),)), id="ready-in-any-order"),
    ],
)
def test_whole_variants(middle_tokens: int, ready: list[int], expected: Mix) -> None:
    """At a mean's own length, and outside of all lengths, one is read whole."""
    assert expected == mix_for(middle_tokens, ready)


@pytest.mark.parametrize(
    ("middle_tokens", "ready", "low", "high", "share"),
    [
        pytest.param(136, [0, 1, 2], 0, 1, 0.5, id="half-way-by-the-logarithm"),
        pytest.param(96, [0, 1, 2], 0, 1, 1 / 3, id="twice-the-shortest"),
        pytest.param(192, [0, 1, 2], 0, 1, 2 / 3, id="half-the-second"),
        pytest.param(1073, [0, 1, 2], 1, 2, 0.5, id="half-way-to-the-longest"),
        pytest.param(379, [0, 2], 0, 2, 0.5, id="second-not-ready"),
    ],
)
def test_lengths_between_two_means_mix_them(
    middle_tokens: int, ready: list[int], low: int, high: int, share: float
) -> None:
    """By the logarithm of the length."""
    mix = mix_for(middle_tokens, ready)

    assert [low, high] == [variant for variant, _ in mix.shares]
    assert [1 - share, share] == [pytest.approx(part, abs=0.005) for _, part in mix.shares]


READY = st.sets(st.sampled_from(range(len(LENGTHS))))


@given(middle_tokens=st.integers(-10, 100_000), ready=READY)
def test_shares_are_parts_of_one_whole(middle_tokens: int, ready: set[int]) -> None:
    """Of variants that are ready, two at most, each with a part."""
    mix = mix_for(middle_tokens, sorted(ready))

    assert sum(share for _, share in mix.shares) == pytest.approx(1.0)
    assert all(0 < share <= 1 for _, share in mix.shares)
    assert {variant for variant, _ in mix.shares} <= (ready or {-1})
    assert len(mix.shares) <= 2


@given(lengths=st.tuples(st.integers(0, 5000), st.integers(0, 5000)), ready=READY.filter(bool))
def test_longer_middles_lean_to_longer_means(lengths: tuple[int, int], ready: set[int]) -> None:
    """There is no length at which the mix turns back."""
    shorter, longer = (
        sum(share * math.log(LENGTHS[variant]) for variant, share in mix_for(length, sorted(ready)).shares)
        for length in sorted(lengths)
    )

    assert shorter <= longer + 1e-9


@given(length=st.integers(48, 3000))
def test_mix_has_the_length_of_the_middle(length: int) -> None:
    """Between the shortest and the longest mean, lengths that are mixed add up to the middle's own."""
    mixed = sum(share * math.log(LENGTHS[variant]) for variant, share in mix_for(length, [0, 1, 2]).shares)

    assert mixed == pytest.approx(math.log(length))
