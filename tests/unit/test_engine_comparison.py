"""Comparing keys and values: rounding passes, another context does not."""

import math

import pytest
import torch

from sternpost_engine.comparison import Comparison


def tensors(noise: float, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys, and the same with noise of this share of their size."""
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn((16, 2, 8), generator=generator)
    other = torch.randn((16, 2, 8), generator=generator)
    return keys.to(dtype), (keys + noise * other).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "noise", "holds"),
    [
        pytest.param(torch.float32, 0.0, True, id="equal"),
        pytest.param(torch.float32, 1e-4, True, id="rounding"),
        pytest.param(torch.float32, 1e-2, False, id="more-than-rounding"),
        pytest.param(torch.bfloat16, 0.02, True, id="rounding-of-16-bits"),
        pytest.param(torch.bfloat16, 0.3, False, id="another-context-in-16-bits"),
        pytest.param(torch.float32, math.nan, False, id="not-a-number"),
    ],
)
def test_differences_up_to_rounding_hold(dtype: torch.dtype, noise: float, holds: bool) -> None:
    """By the dtype that the model computes in."""
    comparison = Comparison(1, dtype)
    comparison.add(0, *tensors(noise, dtype))

    assert holds is comparison.holds


def test_every_layer_must_be_compared() -> None:
    """A layer whose cache update was not seen is not known to be right."""
    comparison = Comparison(2, torch.float32)
    comparison.add(0, *tensors(0.0))

    assert not comparison.holds
    comparison.add(1, *tensors(0.0))
    assert comparison.holds


def test_worst_of_a_layers_keys_and_values_counts() -> None:
    """Right values do not make up for wrong keys."""
    keys, other = tensors(0.5)
    comparison = Comparison(1, torch.float32)
    comparison.add(0, keys, other)
    comparison.add(0, *tensors(0.0))

    token_errors = [float((one - two).norm() / one.norm()) for one, two in zip(keys, other, strict=True)]
    assert not comparison.holds
    assert pytest.approx(max(token_errors)) == comparison.largest


def test_what_is_not_a_number_is_infinitely_far() -> None:
    """And stays so, whatever else of the layer is compared."""
    comparison = Comparison(1, torch.float32)
    comparison.add(0, *tensors(math.nan))
    comparison.add(0, *tensors(0.0))

    assert math.inf == comparison.largest


def test_zeros_are_compared_with_zeros() -> None:
    """A layer of a model without weights yet has keys of no length."""
    comparison = Comparison(1, torch.float32)
    comparison.add(0, torch.zeros(2, 2, 2), torch.zeros(2, 2, 2))

    assert comparison.holds


@pytest.mark.parametrize(
    ("dtype", "wrong", "holds"),
    [
        pytest.param(torch.float32, 1, False, id="one-token-of-32-bits"),
        pytest.param(torch.bfloat16, 3, True, id="few-tokens-of-16-bits"),
        pytest.param(torch.bfloat16, 8, False, id="half-of-the-tokens"),
    ],
)
def test_rounding_may_send_a_few_tokens_to_other_experts(dtype: torch.dtype, wrong: int, holds: bool) -> None:
    """In 16 bits alone; a splice that is wrong is wrong for all of them."""
    keys, _ = tensors(0.0, dtype)
    other = keys.clone()
    other[:wrong] = -other[:wrong]
    comparison = Comparison(1, dtype)
    comparison.add(0, keys, other)

    assert holds is comparison.holds
