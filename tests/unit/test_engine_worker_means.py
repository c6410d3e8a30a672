"""The worker side of the suffix store: samples become means, and reads take their mix of them."""

import logging
from collections.abc import Mapping
from contextlib import nullcontext

import pytest
import torch

from sternpost_engine.calibration import AS_BUILT, SCAFFOLD, Mix
from sternpost_engine.operations import Built, Operations
from sternpost_fakes.little_engine import (
    BUILD_BLOCKS,
    ENTRY,
    LAYERS,
    MODEL,
    READ_BLOCKS,
    SCAFFOLD_TOKENS,
    TAIL,
    LittleEngine,
    NoMemory,
    capture,
    error,
    load,
    outcome,
    sample_tokens,
    slots_of,
)

SHORT, LONG = 0, 1
"""Two variants, by the length of their middles."""

NUMBERS = {SCAFFOLD: 0, SHORT: 2, LONG: 1}
"""How many samples each mean of the calibrated engine has."""

RUN = slice(2, 19)
"""The tail's tokens that a read copies."""

READ_SLOTS = slots_of(READ_BLOCKS, 15, 17)


def calibrated(dtype: torch.dtype = torch.float32, *, finished: bool = True) -> LittleEngine:
    """Return an engine that has built the tail and taken every sample of its means."""
    engine = LittleEngine(dtype)
    engine.build()
    for variant in (SHORT, LONG):
        for number in range(NUMBERS[variant]):
            assert outcome(ENTRY, variant=variant) == engine.sample(variant, number)
    if finished:
        engine.worker.start(Operations(finished=(Built(ENTRY, SHORT), Built(ENTRY, LONG))))
        engine.worker.end()
    engine.clear()
    return engine


def expected_mean(table: torch.Tensor, variant: int) -> torch.Tensor:
    """Average what the model computes for the tail after the middles of a variant, in float64."""
    if variant == SCAFFOLD:
        return table[list(TAIL)][RUN].double()
    samples = [table[sample_tokens(variant, number)][RUN].double() for number in range(NUMBERS[variant])]
    return torch.stack(samples).mean(0)


def expected_mix(table: torch.Tensor, shares: Mapping[int, float]) -> torch.Tensor:
    """Add the variants up by their shares."""
    return torch.stack([share * expected_mean(table, variant) for variant, share in shares.items()]).sum(0)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [pytest.param(torch.float32, 1e-5, id="float32"), pytest.param(torch.bfloat16, 2**-4, id="bfloat16")],
)
@pytest.mark.parametrize(
    "shares",
    [
        pytest.param({SCAFFOLD: 1.0}, id="as-built"),
        pytest.param({SHORT: 1.0}, id="one-mean"),
        pytest.param({LONG: 1.0}, id="other-mean"),
        pytest.param({SHORT: 0.5, LONG: 0.5}, id="half-and-half"),
        pytest.param({SHORT: 0.9, LONG: 0.1}, id="nearly-one"),
    ],
)
def test_read_takes_its_mix(shares: Mapping[int, float], dtype: torch.dtype, tolerance: float) -> None:
    """Keys are mixed before they are rotated, values as they are, in every layer."""
    engine = calibrated(dtype)

    copied = engine.worker.start(Operations(loads=(load(mix=Mix(tuple(shares.items()))),)))

    assert (17, frozenset()) == (copied.tokens, copied.failed)
    for number, layer in enumerate(engine.layers):
        keys = MODEL.rotated(expected_mix(engine.keys[number], shares), 15)
        values = expected_mix(engine.values[number], shares)
        assert error(keys, layer.pages[0, READ_SLOTS]) < tolerance
        assert error(values, layer.pages[1, READ_SLOTS]) < tolerance


def test_reading_leaves_the_means_as_they_are() -> None:
    """A mix is made anew for each request."""
    engine = calibrated()
    reads = [Mix(((SHORT, 0.5), (LONG, 0.5))), Mix(((SHORT, 1.0),)), Mix(((SHORT, 0.5), (LONG, 0.5)))]
    pages = []
    for mix in reads:
        engine.worker.start(Operations(loads=(load(mix=mix),)))
        pages.append(engine.layers[1].pages[0, READ_SLOTS].clone())

    assert torch.equal(pages[0], pages[2])
    assert not torch.equal(pages[0], pages[1])


def test_sample_in_chunks_counts_when_it_is_whole() -> None:
    """A sample is computed in as many steps as the scheduler likes."""
    engine = LittleEngine()
    engine.build()
    tokens = sample_tokens(SHORT, 0)

    outcomes = []
    for offset, count in ((0, 8), (8, 13)):
        final = offset + count == len(TAIL)
        engine.worker.start(
            Operations(captures=(capture(offset, count, final=final, variant=SHORT, number=0),))
        )
        engine.forward([(tokens[offset : offset + count], BUILD_BLOCKS, SCAFFOLD_TOKENS + offset)])
        outcomes.append(engine.worker.end())

    assert [outcome(), outcome(ENTRY, variant=SHORT)] == outcomes


@pytest.mark.parametrize(
    "computed", [pytest.param(0, id="nothing"), pytest.param(20, id="all-but-the-last-token")]
)
def test_sample_that_is_not_whole_fails_and_spoils_nothing(computed: int) -> None:
    """The mean stays as it was, and the sample's second try counts."""
    engine, untroubled = LittleEngine(), calibrated()
    engine.build()
    engine.sample(SHORT, 0)

    assert outcome(failed=ENTRY, variant=SHORT) == engine.sample(SHORT, 1, computed=computed)
    assert outcome(ENTRY, variant=SHORT) == engine.sample(SHORT, 1)

    for one in (engine, untroubled):
        one.worker.start(Operations(finished=(Built(ENTRY, SHORT),)))
        one.clear()
        one.worker.start(Operations(loads=(load(mix=Mix(((SHORT, 1.0),))),)))
    for layer, other in zip(engine.layers, untroubled.layers, strict=True):
        assert torch.equal(other.pages, layer.pages)


def test_sample_that_is_computed_twice_counts_once() -> None:
    """Its second outcome is as good as its first."""
    engine, untroubled = calibrated(finished=False), calibrated()

    assert outcome(ENTRY, variant=SHORT) == engine.sample(SHORT, 1)

    engine.worker.start(Operations(finished=(Built(ENTRY, SHORT),)))
    engine.clear()
    for one in (engine, untroubled):
        one.worker.start(Operations(loads=(load(mix=Mix(((SHORT, 1.0),))),)))
    for layer, other in zip(engine.layers, untroubled.layers, strict=True):
        assert torch.equal(other.pages, layer.pages)


def test_samples_change_nothing_of_the_tail_as_it_was_built() -> None:
    """Readers have it while the means are taken."""
    plain = LittleEngine()
    plain.build()
    plain.clear()
    engines = [plain, calibrated(finished=False), calibrated()]

    for engine in engines:
        engine.worker.start(Operations(loads=(load(mix=AS_BUILT),)))

    for number in range(LAYERS):
        assert torch.equal(plain.layers[number].pages, engines[1].layers[number].pages)
        assert torch.equal(plain.layers[number].pages, engines[2].layers[number].pages)


def test_mix_that_is_not_there_fails_the_copy() -> None:
    """vLLM computes the blocks anew; other reads go on."""
    engine = LittleEngine()
    engine.build()
    bad = load("bad", mix=Mix(((LONG, 1.0),)))

    copied = engine.worker.start(Operations(loads=(bad, load("good"))))

    assert (["bad"], 17) == (list(copied.failed), copied.tokens)


@pytest.mark.parametrize(
    ("spared", "free"),
    [
        pytest.param(0, False, id="for-the-sample"),
        # A sample takes keys and values of each layer; then the mean does.
        pytest.param(2 * LAYERS, False, id="for-the-mean"),
        pytest.param(2 * LAYERS + 1, False, id="for-all-of-the-mean"),
        pytest.param(0, True, id="enough"),
    ],
)
def test_sample_without_memory_fails_alone(spared: int, free: bool) -> None:
    """The tail is still read as it was built, and the sample is taken when there is memory again."""
    engine = LittleEngine()
    engine.build()

    with nullcontext() if free else NoMemory(spared):
        ended = engine.sample(SHORT, 0)

    assert ended == (outcome(ENTRY, variant=SHORT) if free else outcome(failed=ENTRY, variant=SHORT))
    assert frozenset() == engine.worker.start(Operations(loads=(load(),))).failed
    assert outcome(ENTRY, variant=SHORT) == engine.sample(SHORT, 0)


def test_build_without_memory_is_begun_anew_later() -> None:
    """The entry was not begun, so its captures are kept nowhere."""
    engine = LittleEngine()

    with NoMemory():
        assert outcome(failed=ENTRY) == engine.build()

    assert frozenset() == engine.worker.entries
    assert outcome(2) == engine.build(entry=2)


def test_sample_of_a_tail_that_is_gone_fails(caplog: pytest.LogCaptureFixture) -> None:
    """It was evicted while its sample was computed, as happens in every full store: nothing to warn of."""
    engine = LittleEngine()
    engine.build()
    engine.worker.start(Operations(drops=(ENTRY,)))

    assert outcome(failed=ENTRY, variant=SHORT) == engine.sample(SHORT, 0)
    assert [] == [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "built",
    [pytest.param(Built(9, SHORT), id="tail-is-gone"), pytest.param(Built(ENTRY, 2), id="no-such-mean")],
)
def test_mean_that_is_not_there_cannot_be_finished(built: Built) -> None:
    """Nothing happens, and the step goes on."""
    engine = calibrated()

    copied = engine.worker.start(Operations(finished=(built,), loads=(load(),)))

    assert frozenset() == copied.failed


def test_mean_is_finished_before_it_is_read() -> None:
    """In one step, when the scheduler says both at once."""
    engine = calibrated(torch.bfloat16, finished=False)
    both = Mix(((SHORT, 0.5), (LONG, 0.5)))

    copied = engine.worker.start(
        Operations(finished=(Built(ENTRY, SHORT), Built(ENTRY, LONG)), loads=(load(mix=both),))
    )

    assert frozenset() == copied.failed


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "not-finished"])
def test_finished_mean_gives_the_samples_room_back(finished: bool) -> None:
    """A sample under way keeps its room; the next one after a finished mean has to ask for it."""
    engine = calibrated(finished=finished)

    with NoMemory():
        ended = engine.sample(SHORT, 1)

    assert ended == (outcome(failed=ENTRY, variant=SHORT) if finished else outcome(ENTRY, variant=SHORT))


def test_means_are_those_of_their_tail() -> None:
    """Another tail, though of the same tokens, has none."""
    engine, mix = calibrated(), Mix(((SHORT, 1.0),))
    engine.build(entry=2)

    copied = engine.worker.start(Operations(loads=(load("one", mix=mix), load("two", 2, mix=mix))))

    assert ["two"] == list(copied.failed)
