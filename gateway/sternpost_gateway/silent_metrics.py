"""Metrics that record nothing: what a gateway costs without them, for benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from sternpost_gateway.metrics import Metrics


class Silent:
    """Stands in for any metric, with or without labels, and does nothing."""

    __slots__ = ()

    def labels(self, *values: str) -> Silent:
        """Return itself."""
        return self

    def inc(self, amount: float = 1.0) -> None:
        """Do nothing."""

    def set(self, value: float) -> None:
        """Do nothing."""

    def set_function(self, read: Callable[[], float]) -> None:
        """Do nothing."""

    def observe(self, amount: float, exemplar: Mapping[str, str] | None = None) -> None:
        """Do nothing."""

    def remove(self, *values: str) -> None:
        """Do nothing."""

    def clear(self) -> None:
        """Do nothing."""


class SilentMetrics(Metrics):
    """All metrics of one gateway, silent; the registry that is passed in stays as it is."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(CollectorRegistry())
        for name in vars(self):
            setattr(self, name, Silent())
