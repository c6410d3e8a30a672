"""The self-test of the rotation: it passes what turns as the model does, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from sternpost_engine.rotary import Rotation, no_rotation, rotation_of
from sternpost_engine.rotary_check import moves_like
from sternpost_fakes.attention import FakeRotary, frequencies_of

CPU = torch.device("cpu")
HEADS, HEAD_DIM = 2, 16
POSITIONS = 1000


@dataclass(frozen=True, slots=True)
class Turning:
    """A rotary module that is called as vLLM's are, and writes in place as they do."""

    angles: FakeRotary

    def __call__(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Turn the keys, which stand at neighbouring positions."""
        heads = key.view(len(positions), HEADS, HEAD_DIM)
        heads.copy_(self.angles.rotated(heads, int(positions[0])).to(key.dtype))
        return query, key


PLAIN = FakeRotary(frequencies_of(16), POSITIONS)

FAMILIES = [
    pytest.param(PLAIN, id="halves"),
    pytest.param(FakeRotary(frequencies_of(16), POSITIONS, is_neox_style=False), id="neighbours"),
    pytest.param(FakeRotary(frequencies_of(4), POSITIONS), id="a-quarter-is-turned"),
    pytest.param(FakeRotary(frequencies_of(16), POSITIONS, magnitude=1.2), id="scaled-as-in-yarn"),
    pytest.param(FakeRotary(frequencies_of(16, 1e6), POSITIONS), id="slow"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("angles", FAMILIES)
def test_models_own_angles_pass(angles: FakeRotary, dtype: torch.dtype) -> None:
    """Moved from one position to another, keys are those that the model computes there."""
    rotation = rotation_of(angles, CPU)

    assert moves_like(Turning(angles), rotation, heads=HEADS, head_dim=HEAD_DIM, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "believed",
    [
        pytest.param(FakeRotary(frequencies_of(16, 9_500.0), POSITIONS), id="another-base"),
        pytest.param(FakeRotary(frequencies_of(16), POSITIONS, is_neox_style=False), id="another-pairing"),
        pytest.param(FakeRotary(frequencies_of(8), POSITIONS), id="too-few-dimensions"),
        pytest.param(
            FakeRotary((*frequencies_of(16)[:-1], frequencies_of(16)[-1] * 4), POSITIONS),
            id="one-scaled-frequency",
        ),
    ],
)
def test_other_angles_fail(believed: FakeRotary, dtype: torch.dtype) -> None:
    """Every one of them would spoil an answer without a sound."""
    rotation = rotation_of(believed, CPU)

    assert not moves_like(Turning(PLAIN), rotation, heads=HEADS, head_dim=HEAD_DIM, dtype=dtype)


def test_rotation_that_turns_nothing_fails_where_the_model_turns() -> None:
    """As any other wrong one."""
    still = no_rotation(CPU)
    short = Rotation(still.cos[:POSITIONS], still.sin[:POSITIONS], neox=False)

    assert not moves_like(Turning(PLAIN), short, heads=HEADS, head_dim=HEAD_DIM, dtype=torch.float32)
