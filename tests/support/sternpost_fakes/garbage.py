"""What a piece of work leaves to the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_to_the_collector(*packages: str) -> Iterator[set[str]]:
    """Yield a set that gets the names of these packages' types that only the collector could free."""
    left: set[str] = set()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield left
        gc.collect()
        found = [type(one) for one in gc.garbage]
        left |= {kind.__qualname__ for kind in found if kind.__module__.startswith(packages)}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
