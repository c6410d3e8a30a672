"""The worker side: tails that the model sees at other positions than their slots'."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from sternpost_engine.operations import Begin, Operations, Span
from sternpost_fakes.attention import UNTOUCHED
from sternpost_fakes.little_engine import (
    BUILD_BLOCKS,
    ENTRY,
    READ_BLOCKS,
    SCAFFOLD_TOKENS,
    TAIL,
    LittleEngine,
    capture,
    error,
    load,
    outcome,
    slots_of,
)

ANCHOR = 300


class Root(nn.Module):  # type: ignore[misc]
    """Says which positions it was called with."""

    def forward(self, *, positions: torch.Tensor) -> list[int]:
        """Return the positions."""
        seen: list[int] = positions.tolist()
        return seen


def test_anchored_tail_is_kept_and_copied_at_its_anchor() -> None:
    """Keys are those of the anchor in both, slots those of the prompt."""
    engine, shift = LittleEngine(), ANCHOR - SCAFFOLD_TOKENS
    kept = capture(0, len(TAIL), final=True)
    engine.worker.start(
        Operations(
            begins=(Begin(ENTRY, TAIL),),
            captures=(replace(kept, span=replace(kept.span, shift=shift)),),
        )
    )
    engine.forward([(TAIL, BUILD_BLOCKS, SCAFFOLD_TOKENS)], shift=shift)
    assert outcome(ENTRY) == engine.worker.end()
    engine.clear()

    plain = load()
    further = ANCHOR + plain.span.offset - plain.span.position
    engine.worker.start(Operations(loads=(replace(plain, span=replace(plain.span, shift=further)),)))
    engine.worker.end()

    slots = slots_of(READ_BLOCKS, 15, 17)
    for number, layer in enumerate(engine.layers):
        assert error(engine.model_keys(number, TAIL[2:19], ANCHOR + 2), layer.pages[0, slots]) < 1e-5
        assert (layer.pages[0, slots] != UNTOUCHED).all()


def test_shifted_runs_are_found_by_their_slots() -> None:
    """Wherever their rows stand in the batch, and whatever stands between them."""
    root = Root()
    engine = LittleEngine(root=root)
    spans = [Span(READ_BLOCKS, 5, 0, 2, 100), Span(BUILD_BLOCKS, 0, 0, 1, 7)]
    batch = [*slots_of(READ_BLOCKS, 4, 3), *slots_of(BUILD_BLOCKS, 0, 2), -1]

    engine.worker.shift(spans, {"layer-0": torch.tensor(batch)})
    seen = root(positions=torch.tensor([4, 5, 6, 0, 1, 0]))
    engine.worker.end()
    after = root(positions=torch.tensor([4, 5, 6, 0, 1, 0]))

    assert [4, 105, 106, 7, 1, 0] == seen
    assert [4, 5, 6, 0, 1, 0] == after


@pytest.mark.parametrize(("root", "can"), [(Root(), True), (None, False)], ids=["model-known", "unknown"])
def test_worker_says_whether_it_can_shift(root: nn.Module | None, can: bool) -> None:
    """Without the model there is nothing to hook."""
    assert can == LittleEngine(root=root).worker.shifts_positions
