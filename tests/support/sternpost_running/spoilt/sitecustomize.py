"""
Spoils what an engine stores: the values of every tail that is built while a file exists.

Python itself imports this module at the start of each process that has its folder on `PYTHONPATH`, the
engine's own subprocesses included. `STERNPOST_TEST_SPOILT` names the file.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

SPOILT_MODULE = "sternpost_engine.tensors"
SPOILT_BY = -2.0


class SpoilingLoader(importlib.machinery.SourceFileLoader):
    """Loads the module of stored tensors, and has what is put into them pass through here."""

    def exec_module(self, module: ModuleType) -> None:
        """Load the module, then take over its one way of writing."""
        super().exec_module(module)
        marker, put = Path(os.environ["STERNPOST_TEST_SPOILT"]), module.TailKV.put

        def spoilt(kv: Any, layer: int, offset: int, keys: Any, values: Any) -> None:
            put(kv, layer, offset, keys, values * SPOILT_BY if marker.exists() else values)

        module.TailKV.put = spoilt


class SpoilingFinder(MetaPathFinder):
    """Finds that one module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own place with the other loader."""
        if fullname != SPOILT_MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = SpoilingLoader(fullname, spec.origin)
        return spec


sys.meta_path.insert(0, SpoilingFinder())
