"""Forcing an answer's tokens."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.quality.teacher import forcing

torch = pytest.importorskip("torch")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_each_step_leaves_the_next_token_alone(tokens: list[int]) -> None:
    """Greedy decoding then gives just these tokens, and the last one for as long as it is asked."""
    force = forcing(tokens)
    output: list[int] = []

    for _ in range(len(tokens) + 1):
        output.append(int(force(output, torch.arange(10.0)).argmax()))

    assert [*tokens, tokens[-1]] == output


def test_the_forced_tokens_logit_stays_as_it_was() -> None:
    """Only the others are ruled out."""
    forced = forcing([2])([], torch.tensor([0.5, 0.25, -4.0]))

    assert [-math.inf, -math.inf, -4.0] == forced.tolist()
