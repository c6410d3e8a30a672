"""Anchored tails' positions: which module is the model, and what its forward is given."""

import pytest
import torch
from torch import nn

from sternpost_engine.positions import PositionShifts, model_of


class Model(nn.Module):  # type: ignore[misc]
    """Says which positions it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Identity()), nn.Sequential(nn.Identity())])

    def forward(self, *, positions: torch.Tensor) -> torch.Tensor:
        """Return the positions."""
        return positions.clone()


def attention_of(model: Model) -> list[nn.Module]:
    """Return the model's innermost modules."""
    return [layer[0] for layer in model.layers if isinstance(layer, nn.Sequential)]


def test_model_is_what_all_layers_are_part_of() -> None:
    """However deep they lie, and whatever other models there are."""
    model, other = Model(), Model()

    assert model is model_of(attention_of(model), [*other.modules(), *model.modules()])


@pytest.mark.parametrize("count", [0, 2], ids=["none", "two"])
def test_without_one_model_nothing_can_be_shifted(count: int) -> None:
    """It cannot be told where positions come in."""
    models = [Model() for _ in range(count)]
    layers = [layer for model in models for layer in attention_of(model)]

    assert None is model_of(layers, [module for model in models for module in model.modules()])


def mask(*tokens: int, count: int = 6) -> torch.Tensor:
    """Return the mask of these tokens of a step."""
    return torch.isin(torch.arange(count), torch.tensor(tokens))


@pytest.mark.parametrize(
    ("shifts", "expected"),
    [
        pytest.param([(mask(2, 3), 100)], [0, 1, 102, 103, 0, 1], id="one-request"),
        pytest.param([(mask(3), 100), (mask(4, 5), 7)], [0, 1, 2, 103, 7, 8], id="two-requests"),
        pytest.param([(mask(1, count=4), 5)], [0, 6, 2, 3, 0, 1], id="padded-positions"),
        pytest.param([(mask(1, 7, count=8), 5)], [0, 6, 2, 3, 0, 1], id="padded-slots"),
    ],
)
def test_shifted_tokens_stand_further_on(shifts: list[tuple[torch.Tensor, int]], expected: list[int]) -> None:
    """In the forward that follows; and in the buffer, which a captured graph would read."""
    model = Model()
    positions = torch.tensor([0, 1, 2, 3, 0, 1])
    moved = PositionShifts(model)

    moved.begin(shifts)
    seen = model(positions=positions)

    assert expected == seen.tolist() == positions.tolist()


def test_next_step_is_not_shifted() -> None:
    """And nothing stays hooked to the model."""
    model = Model()
    moved = PositionShifts(model)
    moved.begin([(mask(0), 9)])
    model(positions=torch.zeros(6, dtype=torch.int64))

    moved.end()

    assert [0, 0] == model(positions=torch.zeros(2, dtype=torch.int64)).tolist()
    assert {} == dict(model._forward_pre_hooks)


def test_step_replaces_what_was_left_of_the_one_before() -> None:
    """A forward that was never run leaves nothing behind."""
    model = Model()
    moved = PositionShifts(model)
    moved.begin([(mask(0), 9)])
    moved.begin([(mask(1), 5)])

    assert [0, 5] == model(positions=torch.zeros(2, dtype=torch.int64)).tolist()
