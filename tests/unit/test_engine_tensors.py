"""The tensors of a stored tail: sizes, completeness, and the check of the arithmetic."""

import pytest
import torch

from sternpost_engine.rotary import Rotation, rotation_of
from sternpost_engine.tensors import LayerShape, StoredTail, allocate, bytes_per_token
from sternpost_fakes.attention import FakeRotary, frequencies_of

CPU = torch.device("cpu")

SHAPE = LayerShape(kv_heads=2, head_dim=8, value_dim=8, dtype=torch.float32)

TOKENS = (5, 6, 7, 5, 8, 6)
"""Two tokens occur twice."""


def tail_of(tokens: tuple[int, ...] = TOKENS, layers: int = 2) -> StoredTail:
    """Make room for a tail."""
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
    tail = allocate((1, 2), shapes, CPU)

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
    tail = allocate(tokens, [SHAPE], CPU)
    rotated = model.rotated(table[list(tokens)], 40).to(dtype).float()
    angles.unrotate(rotated, 40, tail.keys[0])
    return tail


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
    tail.keys[0][5] = torch.nan

    assert not tail.rotation_holds()


def test_tail_without_a_repeated_token_cannot_be_checked() -> None:
    """It is taken as it is."""
    assert built((1, 2, 3), MODEL, rotation_of(MODEL, CPU), torch.float32).rotation_holds()
