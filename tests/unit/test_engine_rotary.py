"""Rotary positions of stored keys, against the definition of RoPE in float64."""

from functools import lru_cache
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sternpost_engine.rotary import Rotation, rotation_of
from sternpost_fakes.attention import FakeRotary, frequencies_of

CPU = torch.device("cpu")

POSITIONS = 1024

HEAD_DIM = 16

NEOX = FakeRotary(frequencies_of(HEAD_DIM), POSITIONS)
NEIGHBOURS = FakeRotary(frequencies_of(HEAD_DIM), POSITIONS, is_neox_style=False)
PARTIAL = FakeRotary(frequencies_of(8), POSITIONS)
PARTIAL_NEIGHBOURS = FakeRotary(frequencies_of(8), POSITIONS, is_neox_style=False)
# The slow dimensions are slowed further, as llama3's scaling does.
LLAMA3 = FakeRotary(tuple(f if f > 0.05 else f / 8 for f in frequencies_of(HEAD_DIM, 500_000.0)), POSITIONS)
YARN = FakeRotary(tuple(f / 4 for f in frequencies_of(HEAD_DIM)), POSITIONS, magnitude=1.1386)

MODULES = [
    pytest.param(NEOX, id="halves"),
    pytest.param(NEIGHBOURS, id="neighbours"),
    pytest.param(PARTIAL, id="partial-halves"),
    pytest.param(PARTIAL_NEIGHBOURS, id="partial-neighbours"),
    pytest.param(LLAMA3, id="llama3"),
    pytest.param(YARN, id="yarn"),
]


@lru_cache
def rotation(module: FakeRotary) -> Rotation:
    """Return the module's angles."""
    return rotation_of(module, CPU)


def random_keys(tokens: int, heads: int = 2, seed: int = 1) -> torch.Tensor:
    """Return keys of length about one per dimension, float32."""
    return torch.randn((tokens, heads, HEAD_DIM), generator=torch.Generator().manual_seed(seed))


def rotate(turning: Rotation, keys: torch.Tensor, position: int) -> torch.Tensor:
    """Return the keys rotated to their positions."""
    out = torch.empty_like(keys)
    turning.rotate(keys, position, out)
    return out


def unrotate(turning: Rotation, keys: torch.Tensor, position: int) -> torch.Tensor:
    """Return the keys with their rotation taken back."""
    out = torch.empty_like(keys)
    turning.unrotate(keys, position, out)
    return out


def error(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """Return the largest absolute difference."""
    return float((expected.double() - actual.double()).abs().max())


@pytest.mark.parametrize("position", [0, 1, 900])
@pytest.mark.parametrize(
    "module",
    [
        pytest.param(NEOX, id="halves"),
        pytest.param(NEIGHBOURS, id="neighbours"),
        pytest.param(PARTIAL, id="partial-halves"),
        pytest.param(PARTIAL_NEIGHBOURS, id="partial-neighbours"),
        pytest.param(LLAMA3, id="llama3"),
    ],
)
def test_rotating_is_the_textbook_formula(module: FakeRotary, position: int) -> None:
    """Whichever dimensions are paired, and however slowly they turn."""
    keys = random_keys(40)

    assert error(module.rotated(keys, position), rotate(rotation(module), keys, position)) < 2e-6


@pytest.mark.parametrize("module", MODULES)
@settings(max_examples=20, deadline=None)
@given(position=st.integers(0, POSITIONS - 40), tokens=st.integers(1, 40), seed=st.integers(0, 1000))
def test_taking_a_rotation_back_and_rotating_again_gives_the_key(
    module: FakeRotary, position: int, tokens: int, seed: int
) -> None:
    """Both ways, to float32's last digits."""
    turning, keys = rotation(module), random_keys(tokens, seed=seed)

    assert error(keys, rotate(turning, unrotate(turning, keys, position), position)) < 1e-6
    assert error(keys, unrotate(turning, rotate(turning, keys, position), position)) < 1e-6


@pytest.mark.parametrize("module", MODULES)
def test_key_moves_to_where_the_model_would_have_put_it(module: FakeRotary) -> None:
    """The magnitude that a scaled module gives its keys travels with them, once."""
    turning, keys = rotation(module), random_keys(40)

    stored = unrotate(turning, module.rotated(keys, 8).float(), 8)

    assert error(module.rotated(keys, 900), rotate(turning, stored, 900)) < 2e-6


@pytest.mark.parametrize("module", MODULES)
def test_turning_keeps_the_length(module: FakeRotary) -> None:
    """Angles are unit vectors, whatever the module's own table is scaled by."""
    keys = random_keys(40)

    assert error(keys.norm(dim=-1), rotate(rotation(module), keys, 100).norm(dim=-1)) < 2e-6


@pytest.mark.parametrize("module", [PARTIAL, PARTIAL_NEIGHBOURS], ids=["halves", "neighbours"])
def test_dimensions_past_the_rotary_ones_stay(module: FakeRotary) -> None:
    """To the bit."""
    keys = random_keys(5)

    assert torch.equal(keys[..., 8:], rotate(rotation(module), keys, 100)[..., 8:])


@pytest.mark.parametrize("module", MODULES)
def test_keys_are_left_as_they_were(module: FakeRotary) -> None:
    """A stored tail is read again and again."""
    keys = random_keys(5)
    before = keys.clone()

    rotate(rotation(module), keys, 100)

    assert torch.equal(before, keys)


def test_turn_of_a_run_fits_every_layer() -> None:
    """It is made once for a load and applied to each layer's keys."""
    turning = rotation(NEOX)
    turn = turning.turn(100, tokens=40, heads=2)
    for seed in range(3):
        keys, out = random_keys(40, seed=seed), torch.empty(40, 2, HEAD_DIM)
        turn.apply(keys, out)

        assert torch.equal(rotate(turning, keys, 100), out)


def test_position_past_the_models_length_is_refused() -> None:
    """There is no angle for it."""
    turning = rotation(NEOX)
    rotate(turning, random_keys(2), POSITIONS - 2)

    with pytest.raises(AssertionError, match="inside the model's length"):
        rotate(turning, random_keys(2), POSITIONS - 1)


def test_rotation_knows_its_size() -> None:
    """How many dimensions it turns, and for how many positions."""
    partial = rotation(PARTIAL)

    assert (8, POSITIONS, True) == (partial.rotary_dim, partial.positions, partial.neox)


def test_unknown_module_is_refused() -> None:
    """A module that computes its angles in another way has no table to read."""
    with pytest.raises(AttributeError, match="_compute_cos_sin_cache"):
        rotation_of(SimpleNamespace(is_neox_style=True), CPU)
