"""The tensors of a stored tail: sizes, completeness, and the check of the arithmetic."""

from collections.abc import Sequence

import pytest
import torch

from sternpost_engine.calibration import SCAFFOLD
from sternpost_engine.rotary import Rotation, rotation_of
from sternpost_engine.tensors import LayerShape, Mean, StoredTail, TailKV, allocate, bytes_per_token
from sternpost_fakes.attention import FakeRotary, frequencies_of

CPU = torch.device("cpu")

SHAPE = LayerShape(kv_heads=2, head_dim=8, value_dim=8, dtype=torch.float32)

TOKENS = (5, 6, 7, 5, 8, 6)
"""Two tokens occur twice."""


def tail_of(tokens: int = len(TOKENS), layers: int = 2) -> TailKV:
    """Make room for one copy of a tail."""
    return allocate(tokens, [SHAPE] * layers, CPU)


def filled(count: int, value: float = 1.0) -> torch.Tensor:
    """Return keys or values of `count` tokens, all alike."""
    return torch.full((count, 2, 8), value)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        pytest.param([LayerShape(3, 64, 64, torch.bfloat16)], 3 * (64 * 4 + 64 * 2), id="bf16-values"),
        pytest.param([LayerShape(3, 64, 64, torch.float32)] * 2, 2 * 3 * 64 * 8, id="every-layer"),
        pytest.param([LayerShape(1, 64, 32, torch.float16)], 64 * 4 + 32 * 2, id="smaller-values"),
    ],
)
def test_size_of_a_token_is_that_of_its_tensors(shapes: list[LayerShape], expected: int) -> None:
    """Keys are kept in float32, values in the model's dtype; the budget counts what is allocated."""
    tail = allocate(2, shapes, CPU)

    assert expected == bytes_per_token(shapes)
    assert 2 * expected == sum(tensor.nbytes for tensor in (*tail.keys, *tail.values))
    assert all(tensor.is_contiguous() for tensor in (*tail.keys, *tail.values))


@pytest.mark.parametrize(
    ("runs", "whole"),
    [
        pytest.param([], False, id="nothing"),
        pytest.param([(0, 6)], True, id="at-once"),
        pytest.param([(0, 2), (2, 3), (5, 1)], True, id="in-runs"),
        pytest.param([(0, 5)], False, id="one-missing"),
        pytest.param([(0, 2), (3, 3)], False, id="hole"),
        pytest.param([(1, 5)], False, id="first-missing"),
        pytest.param([(0, 4), (0, 6)], True, id="started-over"),
        pytest.param([(0, 4), (0, 2)], False, id="started-over-and-cut-short"),
        pytest.param([(0, 4), (0, 2), (2, 4)], True, id="started-over-in-runs"),
        pytest.param([(0, 4), (2, 4)], False, id="overlap"),
    ],
)
def test_tail_is_whole_when_every_token_was_written(runs: list[tuple[int, int]], whole: bool) -> None:
    """Runs come in order; a build that is preempted begins anew."""
    tail = tail_of()
    for offset, count in runs:
        for layer in range(2):
            tail.put(layer, offset, filled(count), filled(count))

    assert whole is tail.whole


def test_tail_is_whole_when_every_layer_is() -> None:
    """One layer that was not captured spoils it."""
    tail = tail_of()
    tail.put(0, 0, filled(6), filled(6))

    assert not tail.whole


def test_run_is_written_at_its_offset() -> None:
    """And nowhere else, in its own layer."""
    tail = tail_of()
    for tensor in (*tail.keys, *tail.values):
        tensor.fill_(9)

    tail.put(1, 2, filled(3, 1), filled(3, 2))

    assert [9, 9, 1, 1, 1, 9] == tail.keys[1][:, 0, 0].tolist()
    assert [9, 9, 2, 2, 2, 9] == tail.values[1][:, 0, 0].tolist()
    assert [9] * 6 == tail.keys[0][:, 0, 0].tolist()


def built(tokens: tuple[int, ...], model: FakeRotary, angles: Rotation, dtype: torch.dtype) -> StoredTail:
    """Build a tail as a worker does: the model rotates, rounds, and the angles are taken back."""
    table = torch.randn((100, 2, 8), generator=torch.Generator().manual_seed(1))
    scaffold = tail_of(len(tokens), layers=1)
    rotated = model.rotated(table[list(tokens)], 40).to(dtype).float()
    angles.unrotate(rotated, 40, scaffold.keys[0])
    return StoredTail(tokens, scaffold, means={})


MODEL = FakeRotary(frequencies_of(8), 200)

LONG = tuple(range(20)) * 3
"""Twenty tokens, three times over."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_right_angles_are_trusted(dtype: torch.dtype) -> None:
    """Rounding in the model's dtype is no reason to distrust them."""
    assert built(LONG, MODEL, rotation_of(MODEL, CPU), dtype).rotation_holds()


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(FakeRotary(frequencies_of(8, 500_000.0), 200), id="base"),
        pytest.param(FakeRotary(tuple(f / 2 for f in frequencies_of(8)), 200), id="scaling"),
        pytest.param(FakeRotary(frequencies_of(8), 200, is_neox_style=False), id="pairing"),
        pytest.param(FakeRotary(frequencies_of(4), 200), id="fewer-dimensions"),
    ],
)
def test_wrong_angles_are_found_out(wrong: FakeRotary) -> None:
    """A token that occurs twice has two different keys before rotation, where there must be one."""
    assert not built(LONG, MODEL, rotation_of(wrong, CPU), torch.float32).rotation_holds()


def test_unusable_keys_are_not_trusted() -> None:
    """What is not a number is not equal to itself."""
    tail = built(LONG, MODEL, rotation_of(MODEL, CPU), torch.float32)
    tail.scaffold.keys[0][5] = torch.nan

    assert not tail.rotation_holds()


def test_tail_without_a_repeated_token_cannot_be_checked() -> None:
    """It is taken as it is."""
    assert built((1, 2, 3), MODEL, rotation_of(MODEL, CPU), torch.float32).rotation_holds()


BF16 = LayerShape(kv_heads=2, head_dim=8, value_dim=8, dtype=torch.bfloat16)


def sample_of(seed: int, shape: LayerShape = SHAPE) -> TailKV:
    """Return a whole copy of a tail with keys and values of its own."""
    generator, sample = torch.Generator().manual_seed(seed), allocate(len(TOKENS), [shape] * 2, CPU)
    for layer in range(2):
        keys, values = torch.randn((2, len(TOKENS), 2, 8), generator=generator)
        sample.put(layer, 0, keys, values.to(shape.dtype))
    return sample


def mean_of(samples: Sequence[TailKV], shape: LayerShape = SHAPE) -> Mean:
    """Take the samples into a mean, in their order."""
    mean = Mean(allocate(len(TOKENS), [shape] * 2, CPU, precise=True))
    for number, sample in enumerate(samples):
        mean.add(number, sample)
    return mean


@pytest.mark.parametrize("shape", [SHAPE, BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("count", [1, 2, 16, 64])
def test_mean_is_the_arithmetic_mean(count: int, shape: LayerShape) -> None:
    """Of keys and values in each layer, with no rounding but that of float32."""
    samples = [sample_of(seed, shape) for seed in range(count)]

    mean = mean_of(samples, shape).kv

    for layer in range(2):
        keys = torch.stack([sample.keys[layer].double() for sample in samples]).mean(0)
        values = torch.stack([sample.values[layer].double() for sample in samples]).mean(0)
        assert float((keys - mean.keys[layer]).abs().max()) < 1e-6
        assert float((values - mean.values[layer]).abs().max()) < 1e-6


def test_sample_that_is_computed_twice_counts_once() -> None:
    """It is computed anew where it was given up in flight, or where another worker failed."""
    first, second = sample_of(1), sample_of(2)
    mean = mean_of([first, second])

    mean.add(1, sample_of(3))

    assert 2 == mean.samples
    assert torch.equal(mean_of([first, second]).kv.keys[0], mean.kv.keys[0])
    assert torch.equal(mean_of([first, second]).kv.values[1], mean.kv.values[1])


def test_mean_is_rounded_when_it_is_complete() -> None:
    """Once, and to the model's dtype: each sample rounded would add up to a larger error."""
    mean = mean_of([sample_of(seed, BF16) for seed in range(4)], BF16)
    precise = [values.clone() for values in mean.kv.values]

    mean.complete([BF16, BF16])

    assert {torch.float32} == {values.dtype for values in precise}
    assert [torch.bfloat16] * 2 == [values.dtype for values in mean.kv.values]
    assert [torch.float32] * 2 == [keys.dtype for keys in mean.kv.keys]
    assert all(
        torch.equal(before.to(torch.bfloat16), after)
        for before, after in zip(precise, mean.kv.values, strict=True)
    )


def test_cleared_sample_is_not_whole() -> None:
    """Until every token of the next one has been written over it."""
    sample = sample_of(1)

    sample.clear()
    assert not sample.whole
    for layer in range(2):
        sample.put(layer, 0, filled(6), filled(6))

    assert sample.whole


def test_variants_of_a_tail_are_told_apart() -> None:
    """As it was built, and a mean for each length that is there."""
    scaffold, mean = sample_of(1), mean_of([sample_of(2)])
    tail = StoredTail(TOKENS, scaffold, means={1: mean})

    assert scaffold is tail.variant(SCAFFOLD)
    assert mean.kv is tail.variant(1)
    with pytest.raises(KeyError):
        tail.variant(0)
