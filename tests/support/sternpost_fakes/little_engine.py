"""A worker among fake layers, with a model whose keys and values can be written down."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sternpost_engine.calibration import AS_BUILT, SCAFFOLD, Mix
from sternpost_engine.operations import Begin, Built, Capture, Load, Operations, Outcome, Span
from sternpost_engine.rotary import Rotation, no_rotation, rotation_of
from sternpost_engine.tensors import LayerShape
from sternpost_engine.worker import Layer, SuffixWorker
from sternpost_fakes.attention import UNTOUCHED, FakeRotary, fake_layers, frequencies_of

CPU: Final = torch.device("cpu")
BLOCK_SIZE: Final = 4
SLOTS: Final = 200
LAYERS: Final = 3
ENTRY: Final = 1

MODEL: Final = FakeRotary(frequencies_of(8), 500, magnitude=1.1)

LOCAL: Final = FakeRotary(frequencies_of(8, 500.0), 500)
"""Other angles, as some models have them in layers of local attention."""

UNTURNED: Final = FakeRotary((), 500)
"""As some models have it in some of their layers."""

SCAFFOLD_TOKENS: Final = 6
TAIL: Final = (*range(10), *range(10), 3)
"""Twenty-one tokens; each occurs twice, so that the arithmetic can be checked."""

BUILD_BLOCKS: Final = (9, 2, 30, 7, 21, 4, 40)
READ_BLOCKS: Final = (11, 3, 28, 46, 13, 45, 8, 22, 5, 17)


class LittleEngine:
    """A worker, its layers, and a model whose keys and values depend on layer, token and position alone."""

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        *,
        angles: Sequence[FakeRotary] = (MODEL,),
        model: Sequence[FakeRotary] = (MODEL,),
        root: nn.Module | None = None,
    ) -> None:
        """
        `angles` are what the worker believes, layer by layer in turn, and `model` what the model does.

        `root` is the model as a module, where the worker knows it.
        """
        self.shape = LayerShape(kv_heads=2, head_dim=8, value_dim=8, dtype=dtype)
        self.layers = fake_layers(LAYERS, SLOTS, self.shape, [_rotation(each) for each in angles])
        self.model = model
        self.worker = SuffixWorker(
            self.layers,
            BLOCK_SIZE,
            CPU,
            itertools.count(0.0, 0.25).__next__,
            logging.getLogger("test"),
            root,
        )
        generator = torch.Generator().manual_seed(1)
        self.keys = torch.randn((LAYERS, 100, 2, 8), generator=generator)
        self.values = torch.randn((LAYERS, 100, 2, 8), generator=generator).to(dtype)

    def model_keys(self, layer: int, tokens: Sequence[int], position: int) -> torch.Tensor:
        """The keys that the model computes for these tokens from `position` on."""
        return (
            self.model[layer % len(self.model)]
            .rotated(self.keys[layer][list(tokens)], position)
            .to(self.shape.dtype)
        )

    def forward(
        self, rows: Sequence[tuple[Sequence[int], Sequence[int], int]], padding: int = 0, shift: int = 0
    ) -> None:
        """
        Compute a batch of rows: tokens, the request's blocks, and the first token's position.

        For the model all stand `shift` positions further on.
        """
        slots = torch.tensor(
            [slot for tokens, blocks, first in rows for slot in slots_of(blocks, first, len(tokens))]
            + [-1] * padding
        )
        for number, layer in enumerate(self.layers):
            keys = [self.model_keys(number, tokens, first + shift) for tokens, _, first in rows]
            values = [self.values[number][list(tokens)] for tokens, _, _ in rows]
            batch = torch.cat((*keys, torch.full((padding, 2, 8), 0.0, dtype=self.shape.dtype)))
            layer.module.impl.do_kv_cache_update(
                layer.module,
                batch,
                torch.cat((*values, torch.full((padding, 2, 8), 0.0, dtype=self.shape.dtype))),
                layer.pages,
                slots,
            )

    def build(self, tokens: tuple[int, ...] = TAIL, entry: int = ENTRY) -> Outcome:
        """Build a tail in one step."""
        self.worker.start(
            Operations(begins=(Begin(entry, tokens),), captures=(capture(0, len(tokens), entry, final=True),))
        )
        self.forward([(tokens, BUILD_BLOCKS, SCAFFOLD_TOKENS)])
        return self.worker.end()

    def sample(self, variant: int, number: int, entry: int = ENTRY, *, computed: int = len(TAIL)) -> Outcome:
        """Compute a sample of the tail in one step; `computed` tokens of it really."""
        self.worker.start(
            Operations(captures=(capture(0, len(TAIL), entry, final=True, variant=variant, number=number),))
        )
        if computed:
            self.forward([(sample_tokens(variant, number)[:computed], BUILD_BLOCKS, SCAFFOLD_TOKENS)])
        return self.worker.end()

    def clear(self) -> None:
        """Empty all pages, so that what is written afterwards can be told."""
        for layer in self.layers:
            layer.pages.fill_(UNTOUCHED)


def _rotation(angles: FakeRotary) -> Rotation:
    return rotation_of(angles, CPU) if angles.frequencies else no_rotation(CPU)


class NoMemory(TorchFunctionMode):  # type: ignore[misc]
    """While it is entered, the device has no memory left for new tensors; the first `spared` succeed."""

    def __init__(self, spared: int = 0) -> None:
        super().__init__()
        self._spared = spared

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse to allocate."""
        if func is torch.zeros:
            if self._spared == 0:
                raise RuntimeError("the device has no memory left")
            self._spared -= 1
        return func(*args, **(kwargs or {}))


def sample_tokens(variant: int, number: int) -> list[int]:
    """Tokens whose keys and values stand for those that the tail's have after this sample's middle."""
    return [token + 20 + 10 * number + 30 * variant for token in TAIL]


def slots_of(blocks: Sequence[int], position: int, count: int) -> list[int]:
    """The slots of a run of tokens."""
    return [
        blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for at in range(position, position + count)
    ]


def capture(
    offset: int,
    count: int,
    entry: int = ENTRY,
    *,
    final: bool = False,
    variant: int = SCAFFOLD,
    number: int = 0,
) -> Capture:
    """Capture a run of the tail that the build, or a sample, computes."""
    span = Span(BUILD_BLOCKS, SCAFFOLD_TOKENS + offset, offset, count)
    return Capture(entry, span, final, variant, number)


def load(
    request_id: str = "read", entry: int = ENTRY, *, offset: int = 2, count: int = 17, mix: Mix = AS_BUILT
) -> Load:
    """Load a run of the tail, which begins at position 13 of the reading request."""
    return Load(request_id, entry, Span(READ_BLOCKS, 13 + offset, offset, count), mix)


def outcome(*completed: int, failed: int | None = None, variant: int = SCAFFOLD) -> Outcome:
    """A step's outcome, by the entries."""
    return Outcome(
        tuple(Built(entry, variant) for entry in completed),
        () if failed is None else (Built(failed, variant),),
    )


def hooked(layers: Sequence[Layer]) -> bool:
    """Whether any layer's cache update is not the backend's own."""
    return any("do_kv_cache_update" in vars(layer.module.impl) for layer in layers)


def error(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The largest absolute difference."""
    return float((expected.double() - actual.double()).abs().max())
