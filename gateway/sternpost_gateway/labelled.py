"""
Prometheus' metrics, with children that are found quickly.

For each request a dozen children are looked up, which costs the library twice what counting does: it checks
and converts the labels anew each time, under a lock.
"""

from __future__ import annotations

from typing import Any, Self

import prometheus_client
from prometheus_client.metrics import MetricWrapperBase


class _Labelled(MetricWrapperBase):
    """Remembers its children by their labels; there are as many as the library itself keeps."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._children: dict[tuple[object, ...], Self] = {}
        super().__init__(*arguments, **more)

    def labels(self, *labelvalues: object, **labelkwargs: object) -> Self:
        """Return the child of these labels."""
        child = self._children.get(labelvalues)
        if child is None or labelkwargs:
            child = super().labels(*labelvalues, **labelkwargs)
            if not labelkwargs:
                self._children[labelvalues] = child
        return child

    def remove(self, *labelvalues: object) -> None:
        """Forget the child of these labels."""
        self._children.pop(labelvalues, None)
        super().remove(*labelvalues)

    def clear(self) -> None:
        """Forget all children."""
        self._children.clear()
        super().clear()


class Counter(_Labelled, prometheus_client.Counter):
    """A counter."""


class Gauge(_Labelled, prometheus_client.Gauge):
    """A gauge."""


class Histogram(_Labelled, prometheus_client.Histogram):
    """A histogram."""
