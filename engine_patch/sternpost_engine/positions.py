"""
Tokens that the model sees at other positions than the prompt's: anchored tails.

vLLM derives positions from a request's token counts, and offers no way to set them. But it calls the model as
a torch module, so torch's own hook before a module's forward can add to the positions that are passed in.
Attention is not concerned: it finds keys by their slots in the KV cache, which stay contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn


def model_of(layers: Iterable[nn.Module], modules: Iterable[nn.Module]) -> nn.Module | None:
    """Return the module that all `layers` are parts of and that is part of none, or None without one."""
    parents = {id(child): module for module in modules for child in module.children()}
    roots = {id(root): root for root in (_root(layer, parents) for layer in layers)}
    return next(iter(roots.values())) if len(roots) == 1 else None


class PositionShifts:
    """Adds to the positions of some of a step's tokens; between steps nothing is hooked."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._hook: Any = None
        self._shifts: Sequence[tuple[torch.Tensor, int]] = ()

    def begin(self, shifts: Sequence[tuple[torch.Tensor, int]]) -> None:
        """Shift, in the next forward, the tokens that each mask names by as many positions."""
        self.end()
        self._shifts = shifts
        self._hook = self._model.register_forward_pre_hook(self._shift, with_kwargs=True)

    def end(self) -> None:
        """The forward is over."""
        if self._hook is not None:
            self._hook.remove()
        self._hook, self._shifts = None, ()

    def _shift(self, model: nn.Module, arguments: Any, named: dict[str, Any]) -> None:
        # In place: a compiled or captured part of the model reads the buffer that it was captured with. vLLM
        # fills it anew for each step, after it has derived the slots from it.
        positions: torch.Tensor = named["positions"]
        for mask, amount in self._shifts:
            # Either may be padded further than the other.
            count = min(mask.shape[0], positions.shape[0])
            positions[:count] += mask[:count].to(positions.dtype) * amount


def _root(module: nn.Module, parents: Mapping[int, nn.Module]) -> nn.Module:
    seen: set[int] = set()
    while id(module) in parents and id(module) not in seen:
        seen.add(id(module))
        module = parents[id(module)]
    return module
