"""The worker side of the suffix store: builds are kept and copied to the right slots, exactly."""

import itertools
import logging

import pytest
import torch

from sternpost_engine.operations import Begin, Capture, Load, Operations, Span
from sternpost_engine.rotary import Rotation
from sternpost_engine.self_test import COMPARED
from sternpost_engine.tensors import LayerShape
from sternpost_engine.worker import Layer, SuffixWorker
from sternpost_fakes.attention import UNTOUCHED, FakeRotary
from sternpost_fakes.little_engine import (
    BLOCK_SIZE,
    BUILD_BLOCKS,
    CPU,
    ENTRY,
    LOCAL,
    MODEL,
    READ_BLOCKS,
    SCAFFOLD_TOKENS,
    SLOTS,
    TAIL,
    UNTURNED,
    LittleEngine,
    capture,
    error,
    hooked,
    load,
    outcome,
    slots_of,
)

HUGE = LayerShape(kv_heads=2**40, head_dim=8, value_dim=8, dtype=torch.float32)
"""No machine has room for it."""


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        pytest.param(torch.float32, 5e-6, id="float32"),
        # A key of up to 4 is rounded by the model, and once more by the copy, each time by 1/128 at most.
        pytest.param(torch.bfloat16, 2**-5, id="bfloat16"),
    ],
)
def test_tail_built_in_chunks_among_other_rows_is_read_at_another_position(
    dtype: torch.dtype, tolerance: float
) -> None:
    """Exactly the model's own keys and values, at exactly the right slots, and no other slot is touched."""
    engine = LittleEngine(dtype)
    other = ([50, 51, 52], (48, 49), 1)
    runs = [(0, 2), (2, 11), (13, 8)]
    for number, (offset, count) in enumerate(runs):
        begins = (Begin(ENTRY, TAIL),) if number == 0 else ()
        final = offset + count == len(TAIL)
        engine.worker.start(Operations(begins=begins, captures=(capture(offset, count, final=final),)))
        row = (TAIL[offset : offset + count], BUILD_BLOCKS, SCAFFOLD_TOKENS + offset)
        engine.forward([other, row, ([60], READ_BLOCKS, 0)], padding=3)
        ended = engine.worker.end()
    assert outcome(ENTRY) == ended
    engine.clear()

    copied = engine.worker.start(Operations(loads=(load(),)))
    engine.worker.end()

    slots = slots_of(READ_BLOCKS, 15, 17)
    untouched = [slot for slot in range(SLOTS) if slot not in slots]
    assert (17, frozenset()) == (copied.tokens, copied.failed)
    for number, layer in enumerate(engine.layers):
        assert error(engine.model_keys(number, TAIL[2:19], 15), layer.pages[0, slots]) < tolerance
        assert torch.equal(engine.values[number][list(TAIL[2:19])], layer.pages[1, slots])
        assert (layer.pages[:, untouched] == UNTOUCHED).all()


@pytest.mark.parametrize(
    "angles",
    [
        pytest.param((MODEL, LOCAL), id="global-and-local"),
        pytest.param((MODEL, MODEL, UNTURNED), id="one-layer-is-not-turned"),
        pytest.param((UNTURNED, LOCAL, MODEL), id="first-layer-is-not-turned"),
    ],
)
def test_each_layer_is_turned_as_the_model_turns_it(angles: tuple[FakeRotary, ...]) -> None:
    """A model may have other angles in some layers, or none."""
    engine = LittleEngine(angles=angles, model=angles)
    assert outcome(ENTRY) == engine.build()
    engine.clear()

    engine.worker.start(Operations(loads=(load(),)))
    engine.worker.end()

    slots = slots_of(READ_BLOCKS, 15, 17)
    for number, layer in enumerate(engine.layers):
        assert error(engine.model_keys(number, TAIL[2:19], 15), layer.pages[0, slots]) < 5e-6


def test_build_computes_as_ever() -> None:
    """Keeping a tail changes nothing of what the request itself has in its pages."""
    kept, plain = LittleEngine(), LittleEngine()

    kept.build()
    plain.forward([(TAIL, BUILD_BLOCKS, SCAFFOLD_TOKENS)])

    for with_store, without in zip(kept.layers, plain.layers, strict=True):
        assert torch.equal(without.pages, with_store.pages)


def test_two_builds_of_one_step_are_kept_apart() -> None:
    """Each takes the rows of its own slots."""
    engine, other = LittleEngine(), (*TAIL[5:], 3, 4)
    spans = (
        Span(BUILD_BLOCKS, SCAFFOLD_TOKENS, 0, len(TAIL)),
        Span(READ_BLOCKS, SCAFFOLD_TOKENS, 0, len(other)),
    )
    engine.worker.start(
        Operations(
            begins=(Begin(1, TAIL), Begin(2, other)),
            captures=(Capture(1, spans[0], final=True), Capture(2, spans[1], final=True)),
        )
    )
    engine.forward([(other, READ_BLOCKS, SCAFFOLD_TOKENS), (TAIL, BUILD_BLOCKS, SCAFFOLD_TOKENS)])
    assert outcome(1, 2) == engine.worker.end()
    engine.clear()

    engine.worker.start(Operations(loads=(load(entry=2, offset=0, count=16),)))

    slots = slots_of(READ_BLOCKS, 13, 16)
    for number, layer in enumerate(engine.layers):
        assert error(engine.model_keys(number, other[:16], 13), layer.pages[0, slots]) < 5e-6


def test_preempted_build_is_kept_from_its_beginning() -> None:
    """What was captured before counts no more."""
    engine = LittleEngine()
    engine.worker.start(Operations(begins=(Begin(ENTRY, TAIL),), captures=(capture(0, 15),)))
    engine.forward([(TAIL[:15], BUILD_BLOCKS, SCAFFOLD_TOKENS)])
    assert outcome() == engine.worker.end()

    engine.worker.start(Operations(captures=(capture(0, len(TAIL), final=True),)))
    engine.forward([(TAIL, BUILD_BLOCKS, SCAFFOLD_TOKENS)])

    assert outcome(ENTRY) == engine.worker.end()


@pytest.mark.parametrize("forward", [True, False], ids=["computed", "nothing-computed"])
def test_hooks_last_for_one_step(forward: bool) -> None:
    """A step without a build runs the backend's own code, with nothing in between."""
    engine = LittleEngine()
    engine.worker.start(Operations(begins=(Begin(ENTRY, TAIL),), captures=(capture(0, 5),)))
    assert hooked(engine.layers)

    if forward:
        engine.forward([(TAIL[:5], BUILD_BLOCKS, SCAFFOLD_TOKENS)])
    engine.worker.end()

    assert not hooked(engine.layers)


def test_step_without_a_build_hooks_nothing() -> None:
    """Neither does a load."""
    engine = LittleEngine()
    engine.build()

    engine.worker.start(Operations(loads=(load(),)))

    assert not hooked(engine.layers)
    assert outcome() == engine.worker.end()


@pytest.mark.parametrize(
    "computed",
    [pytest.param(0, id="nothing"), pytest.param(20, id="all-but-the-last-token")],
)
def test_build_that_is_not_whole_fails(computed: int) -> None:
    """A tail with a hole would put garbage into every answer after it."""
    engine = LittleEngine()
    engine.worker.start(
        Operations(begins=(Begin(ENTRY, TAIL),), captures=(capture(0, len(TAIL), final=True),))
    )
    if computed:
        engine.forward([(TAIL[:computed], BUILD_BLOCKS, SCAFFOLD_TOKENS)])

    assert outcome(failed=ENTRY) == engine.worker.end()


def test_build_with_wrong_angles_fails() -> None:
    """Its keys would be put at positions that the model knows nothing of."""
    assert outcome(failed=ENTRY) == LittleEngine(angles=(LOCAL,)).build()


def test_build_without_memory_fails_alone() -> None:
    """The engine goes on, and the request is served."""
    engine = LittleEngine()
    engine.worker = SuffixWorker(
        [Layer(layer.name, layer.module, layer.pages, HUGE, layer.rotation) for layer in engine.layers],
        BLOCK_SIZE,
        CPU,
        itertools.count(0.0).__next__,
        logging.getLogger("test"),
    )

    assert outcome(failed=ENTRY) == engine.build()
    assert frozenset() == engine.worker.entries


def no_memory(*arguments: object) -> None:
    """Fail as a device does."""
    raise torch.OutOfMemoryError("no memory for the keys before rotation")


def test_build_that_cannot_be_kept_fails_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The forward that computes it computes others' tokens, too: it goes on, and the log says why once."""
    engine, plain = LittleEngine(), LittleEngine()

    monkeypatch.setattr(Rotation, "unrotate", no_memory)

    assert outcome(failed=ENTRY) == engine.build()
    plain.forward([(TAIL, BUILD_BLOCKS, SCAFFOLD_TOKENS)])
    for with_store, without in zip(engine.layers, plain.layers, strict=True):
        assert torch.equal(without.pages, with_store.pages)
    told = [message for message in caplog.messages if "cannot be kept" in message]
    assert [f"tail {ENTRY} cannot be kept: OutOfMemoryError"] == told


def test_build_of_which_a_part_was_lost_is_kept_when_it_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the first attempt is of no use: what was lost stays as an earlier sample left it."""
    engine = LittleEngine()
    whole = capture(0, len(TAIL), final=True)
    row = (TAIL, BUILD_BLOCKS, SCAFFOLD_TOKENS)
    with monkeypatch.context() as patch:
        patch.setattr(Rotation, "unrotate", no_memory)
        engine.worker.start(Operations(begins=(Begin(ENTRY, TAIL),), captures=(capture(0, 10, final=False),)))
        engine.forward([(TAIL[:10], BUILD_BLOCKS, SCAFFOLD_TOKENS)])
        engine.worker.end()
    engine.worker.start(Operations(captures=(capture(10, len(TAIL) - 10, final=True),)))
    engine.forward([(TAIL[10:], BUILD_BLOCKS, SCAFFOLD_TOKENS + 10)])
    assert outcome(failed=ENTRY) == engine.worker.end()

    engine.worker.start(Operations(captures=(whole,)))
    engine.forward([row])
    assert outcome(ENTRY) == engine.worker.end()


def test_failed_copy_names_its_blocks_and_leaves_others_alone() -> None:
    """The blocks from the one that the copy begins in, to the prompt's end: vLLM computes them anew."""
    engine = LittleEngine()
    engine.build()

    copied = engine.worker.start(Operations(loads=(load("bad", entry=9), load("good"))))

    assert {"bad"} == copied.failed
    assert 17 == copied.tokens
    slots = slots_of(READ_BLOCKS, 15, 17)
    assert error(engine.model_keys(0, TAIL[2:19], 15), engine.layers[0].pages[0, slots]) < 5e-6


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(load("bad", entry=9), id="never-begun"),
        pytest.param(load("bad", entry=2), id="not-whole"),
        pytest.param(load("bad", entry=3), id="dropped"),
        pytest.param(
            Load("bad", ENTRY, Span(range(500), 490, 0, 17)),  # type: ignore[arg-type]
            id="past-the-models-length",
        ),
    ],
)
def test_copy_that_cannot_be_made_fails_by_itself(bad: Load) -> None:
    """Whatever is wrong with one request's tail, the step goes on."""
    engine = LittleEngine()
    engine.build()
    engine.build(entry=3)
    engine.worker.start(Operations(drops=(3,), begins=(Begin(2, TAIL),)))
    engine.worker.end()

    copied = engine.worker.start(Operations(loads=(bad,)))

    assert ["bad"] == list(copied.failed)
    assert 0 == copied.tokens


def test_backend_that_fails_fails_the_copy() -> None:
    """Even in a later layer, when part of the tail has been written."""
    engine = LittleEngine()
    engine.build()
    engine.layers[2].module.impl.failing = True

    copied = engine.worker.start(Operations(loads=(load(),)))

    assert {"read"} == copied.failed


def test_failure_is_logged_without_the_prompt(caplog: pytest.LogCaptureFixture) -> None:
    """The entry and the kind of error are enough."""
    LittleEngine().worker.start(Operations(loads=(load(entry=9),)))

    assert ["copy of tail 9 failed: KeyError"] == caplog.messages


def test_dropped_tails_are_let_go() -> None:
    """Their memory is the next tail's."""
    engine = LittleEngine()
    engine.build()
    assert frozenset({ENTRY}) == engine.worker.entries

    engine.worker.start(Operations(drops=(ENTRY, 99)))

    assert frozenset() == engine.worker.entries


def test_copy_is_timed() -> None:
    """By the clock that the worker was given, over all loads of the step."""
    engine = LittleEngine()
    engine.build()

    assert 0.25 == engine.worker.start(Operations(loads=(load("a"), load("b")))).seconds


@pytest.mark.parametrize(
    ("tokens", "equal"),
    [
        pytest.param(TAIL[-4:], True, id="the-builds-own"),
        pytest.param(TAIL[-5:-1], False, id="others"),
    ],
)
def test_self_test_compares_what_a_read_computes_with_what_the_build_left(
    tokens: tuple[int, ...], equal: bool
) -> None:
    """The read's own row, in every layer; nothing of the stored tail changes."""
    engine = LittleEngine()
    engine.build()
    span = Span(READ_BLOCKS, 13 + 17, 17, 4)

    engine.worker.start(Operations(captures=(Capture(ENTRY, span, final=True, variant=COMPARED),)))
    engine.forward([([50, 51], BUILD_BLOCKS, 0), (tokens, READ_BLOCKS, 13 + 17)])
    ended = engine.worker.end()

    assert (outcome(ENTRY, variant=COMPARED) if equal else outcome(failed=ENTRY, variant=COMPARED)) == ended
    engine.clear()
    engine.worker.start(Operations(loads=(load(),)))
    assert (
        error(engine.model_keys(0, TAIL[2:19], 15), engine.layers[0].pages[0, slots_of(READ_BLOCKS, 15, 17)])
        < 5e-6
    )


@pytest.mark.parametrize("entry", [ENTRY, 9], ids=["no-forward", "no-tail"])
def test_self_test_that_compares_nothing_fails(entry: int) -> None:
    """What was not seen is not known to be right."""
    engine = LittleEngine()
    engine.build()
    capture_of_read = Capture(entry, Span(READ_BLOCKS, 30, 17, 4), final=True, variant=COMPARED)

    engine.worker.start(Operations(captures=(capture_of_read,)))

    assert outcome(failed=entry, variant=COMPARED) == engine.worker.end()
