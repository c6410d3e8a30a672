"""
The worker side of the suffix store: copies stored tails to KV blocks, and keeps what builds compute.

Blocks are written through the attention backend's own cache update, which knows its layout and quantises by
itself; pages are never indexed here. A build's keys and values are taken on their way into that update.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sternpost_engine.calibration import SCAFFOLD
from sternpost_engine.comparison import Comparison
from sternpost_engine.operations import Begin, Built, Capture, Load, Operations, Outcome, Span
from sternpost_engine.positions import PositionShifts
from sternpost_engine.rotary import Rotation
from sternpost_engine.self_test import COMPARED
from sternpost_engine.tensors import LayerShape, Mean, StoredTail, TailKV, allocate

CacheUpdate = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""The attention backend's cache update: layer, keys, values, the layer's pages, slots."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One attention layer: vLLM's module, its pages, its heads, and how its keys are turned."""

    name: str
    module: Any
    pages: torch.Tensor
    shape: LayerShape
    rotation: Rotation


@dataclass(frozen=True, slots=True)
class Copied:
    """What the loads of a step did: tokens and seconds, and the requests whose loads failed."""

    tokens: int
    seconds: float
    failed: frozenset[str]


class SuffixWorker:
    """Holds the tensors of this worker's tails; does what each step's operations say."""

    def __init__(
        self,
        layers: Sequence[Layer],
        block_size: int,
        device: torch.device,
        seconds: Callable[[], float],
        logger: logging.Logger,
        model: nn.Module | None = None,
    ) -> None:
        self._layers = tuple(layers)
        self._shapes = tuple(layer.shape for layer in self._layers)
        self._block_size = block_size
        self._device = device
        self._seconds = seconds
        self._logger = logger
        self._tails: dict[int, StoredTail] = {}
        self._scratch: dict[LayerShape, torch.Tensor] = {}
        self._captures: list[tuple[Capture, torch.Tensor]] = []
        self._lost: set[Built] = set()
        self._hooked: list[Any] = []
        self._comparison: Comparison | None = None
        self._positions = PositionShifts(model) if model is not None else None

    @property
    def shifts_positions(self) -> bool:
        """Whether tokens can be given other positions on their way into the model."""
        return self._positions is not None

    @property
    def entries(self) -> frozenset[int]:
        """The entries whose tensors are held."""
        return frozenset(self._tails)

    def start(self, operations: Operations) -> Copied:
        """Carry out what comes before the forward, and make ready to keep what the builds compute."""
        for entry in operations.drops:
            self._tails.pop(entry, None)
        begun = {capture.built for capture in operations.captures if capture.span.offset == 0}
        self._lost = {built for built in self._lost - begun if built.entry in self._tails}
        for begin in operations.begins:
            self._begin(begin)
        for built in operations.finished:
            self.finish_mean(built)
        copied = self._load_all(operations.loads)
        self._captures = [(capture, self._slots(capture.span)) for capture in operations.captures]
        if any(capture.variant == COMPARED for capture in operations.captures):
            self._comparison = Comparison(len(self._layers), self._layers[0].shape.dtype)
        if self._captures:
            self._hook()
        return copied

    def shift(self, spans: Sequence[Span], slot_mapping: Mapping[str, torch.Tensor]) -> None:
        """
        Let the forward compute these runs at their other positions.

        `slot_mapping` says, by layer name, to which slot of the KV cache each token of the forward goes.
        """
        assert self._positions is not None, "a worker that cannot shift positions is not asked to"
        slots = slot_mapping[self._layers[0].name]
        self._positions.begin([(torch.isin(slots, self._slots(span)), span.shift) for span in spans])

    def end(self) -> Outcome:
        """Close the step after the forward: say which builds are whole, and which failed."""
        captures, self._captures = self._captures, []
        self._unhook()
        if self._positions is not None:
            self._positions.end()
        settled = [(capture.built, self._settle(capture)) for capture, _ in captures if capture.final]
        return Outcome(
            completed=tuple(built for built, sound in settled if sound),
            failed=tuple(built for built, sound in settled if not sound),
        )

    def finish_mean(self, built: Built) -> None:
        """All samples of a mean are in: round it once, and give the sample's room back."""
        tail = self._tails.get(built.entry)
        if tail is not None and built.variant in tail.means:
            tail.means[built.variant].complete(self._shapes)
            tail.sample = None

    # -- loads --------------------------------------------------------------------------------------------

    def _load_all(self, loads: Sequence[Load]) -> Copied:
        began = self._seconds()
        failed: set[str] = set()
        tokens = 0
        for load in loads:
            try:
                self._load(load)
                tokens += load.span.count
            except (RuntimeError, KeyError, AssertionError) as error:
                # The engine goes on: the request is computed anew. The message holds no prompt text.
                self._logger.warning("copy of tail %d failed: %s", load.entry, type(error).__name__)
                failed.add(load.request_id)
        return Copied(tokens, self._seconds() - began, frozenset(failed))

    def _load(self, load: Load) -> None:
        tail, span = self._tails[load.entry], load.span
        assert tail.scaffold.whole, "a tail is read when it is whole"
        slots = self._slots(span)
        turns = {
            turned: turned[0].turn(span.position + span.shift, span.count, turned[1])
            for turned in {(layer.rotation, layer.shape.kv_heads) for layer in self._layers}
        }
        for index, layer in enumerate(self._layers):
            rotated = self._scratch_for(layer.shape, span.count)
            keys, values = tail.mixed(index, span.offset, span.count, load.mix)
            turns[layer.rotation, layer.shape.kv_heads].apply(keys, rotated)
            layer.module.impl.do_kv_cache_update(
                layer.module,
                rotated.to(layer.shape.dtype),
                values.to(layer.shape.dtype),
                layer.pages,
                slots,
            )

    def _scratch_for(self, shape: LayerShape, count: int) -> torch.Tensor:
        scratch = self._scratch.get(shape)
        if scratch is None or scratch.shape[0] < count:
            size = (count, shape.kv_heads, shape.head_dim)
            scratch = torch.empty(size, dtype=torch.float32, device=self._device)
            self._scratch[shape] = scratch
        return scratch[:count]

    def _slots(self, span: Span) -> torch.Tensor:
        positions = torch.arange(span.position, span.position + span.count)
        blocks = torch.tensor(span.blocks)[positions // self._block_size]
        return (blocks * self._block_size + positions % self._block_size).to(self._device)

    # -- builds -------------------------------------------------------------------------------------------

    def _begin(self, begin: Begin) -> None:
        scaffold = self._allocate(begin.entry, len(begin.tokens))
        if scaffold is not None:
            self._tails[begin.entry] = StoredTail(begin.tokens, scaffold, means={})

    def _allocate(self, entry: int, tokens: int, *, precise: bool = False) -> TailKV | None:
        try:
            return allocate(tokens, self._shapes, self._device, precise=precise)
        except RuntimeError as error:
            # The device has no memory left. The build is served like any other request and ends as not whole.
            self._logger.warning("no room for tail %d: %s", entry, type(error).__name__)
            return None

    def _hook(self) -> None:
        for index, layer in enumerate(self._layers):
            backend = layer.module.impl
            # The instance attribute shadows the class's method for this step only, so steps without a build
            # run the backend's own code with nothing in between.
            backend.do_kv_cache_update = self._keeping(index, backend.do_kv_cache_update)
            self._hooked.append(backend)

    def _unhook(self) -> None:
        for backend in self._hooked:
            del backend.do_kv_cache_update
        self._hooked = []

    def _keeping(self, index: int, update: CacheUpdate) -> CacheUpdate:
        def keep_and_update(
            module: Any, keys: torch.Tensor, values: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor
        ) -> None:
            update(module, keys, values, pages, slots)
            for capture, wanted in self._captures:
                if capture.built not in self._lost:
                    self._try_to_keep(index, capture, wanted, keys, values, slots)

        return keep_and_update

    def _try_to_keep(self, index: int, capture: Capture, *computed: torch.Tensor) -> None:
        try:
            self._keep(index, capture, *computed)
        except (RuntimeError, AssertionError) as error:
            # The device has no memory left. The forward is others' too, and goes on; the build will fail.
            self._logger.warning("tail %d cannot be kept: %s", capture.entry, type(error).__name__)
            self._lost.add(capture.built)

    def _keep(
        self,
        index: int,
        capture: Capture,
        wanted: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        rows = torch.isin(slots, wanted).nonzero().squeeze(-1)
        if capture.entry not in self._tails or rows.numel() != capture.span.count:
            return
        layer = self._layers[index]
        shape = layer.shape
        rotated = keys[rows].view(-1, shape.kv_heads, shape.head_dim).to(torch.float32)
        unrotated = torch.empty_like(rotated)
        layer.rotation.unrotate(rotated, capture.span.position + capture.span.shift, unrotated)
        taken = values[rows].view(-1, shape.kv_heads, shape.value_dim)
        if capture.variant == COMPARED:
            self._compare(index, capture, unrotated, taken)
            return
        target = self._target(capture)
        if target is not None:
            target.put(index, capture.span.offset, unrotated, taken)

    def _compare(self, index: int, capture: Capture, keys: torch.Tensor, values: torch.Tensor) -> None:
        tail = self._tails[capture.entry]
        if self._comparison is not None:
            run = slice(capture.span.offset, capture.span.offset + capture.span.count)
            self._comparison.add(index, tail.scaffold.keys[index][run], keys)
            self._comparison.add(index, tail.scaffold.values[index][run], values)

    def _target(self, capture: Capture) -> TailKV | None:
        tail = self._tails.get(capture.entry)
        if tail is None or capture.variant == SCAFFOLD:
            return tail.scaffold if tail is not None else None
        if tail.sample is None:
            tail.sample = self._allocate(capture.entry, len(tail.tokens))
        return tail.sample

    def _settle(self, capture: Capture) -> bool:
        tail = self._tails.get(capture.entry)
        if tail is None:
            # Evicted while its sample was computed, which is as it should be.
            self._logger.debug("tail %d is gone", capture.entry)
            return False
        if capture.built in self._lost:
            return False
        if capture.variant == COMPARED:
            return self._equal()
        if capture.variant == SCAFFOLD:
            return self._sound(capture.entry, tail)
        return self._add_sample(capture, tail)

    def _equal(self) -> bool:
        comparison, self._comparison = self._comparison, None
        if comparison is None:
            return False
        self._logger.info("self-test: a splice differs from full prefill by %.1e", comparison.largest)
        return comparison.holds

    def _sound(self, entry: int, tail: StoredTail) -> bool:
        if not tail.scaffold.whole:
            self._logger.warning("build of tail %d is not whole", entry)
            return False
        if not tail.rotation_holds():
            self._logger.warning("build of tail %d: keys do not turn as this model's do", entry)
            return False
        return True

    def _add_sample(self, capture: Capture, tail: StoredTail) -> bool:
        if tail.sample is None or not tail.sample.whole:
            return False
        mean = tail.means.get(capture.variant)
        if mean is None:
            kv = self._allocate(capture.entry, len(tail.tokens), precise=True)
            if kv is None:
                return False
            mean = tail.means[capture.variant] = Mean(kv)
        mean.add(capture.number, tail.sample)
        tail.sample.clear()
        return True
