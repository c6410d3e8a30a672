"""
Counters, gauges and histograms as plain numbers, which the library turns into samples when somebody scrapes.

A request counts a dozen times, and a scrape comes once in many seconds. The library's own metrics take a
lock, check their arguments and walk their buckets each time they count. A gateway counts on the thread of its
event loop alone, and is scraped on it, too: it needs none of that.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    Sample,
)
from prometheus_client.registry import Collector

WallClock = Callable[[], float]
"""Returns seconds since the Unix epoch."""

CHILDREN_MAX: Final = 4096
"""Sets of labels of one metric; of requests, which have most, a policy has one for each arm and outcome."""

OTHER: Final = "other"
"""What stands for all labels of what is counted beyond that."""

INFINITY: Final = "+Inf"
"""The name of a histogram's last bucket, in which everything is that is in no other."""

Bucket = tuple[str, float] | tuple[str, float, Exemplar]
"""A bucket's name, the observations in it and in those below, and its last exemplar where it has one."""


class Count:
    """A counter's number for one set of labels."""

    __slots__ = ("created", "value")

    def __init__(self, created: float) -> None:
        self.created = created
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """
        Add to the number.

        Raises:
            ValueError: the amount is negative.
        """
        if amount < 0:
            raise ValueError(f"a counter never goes down, and {amount} is negative")
        self.value += amount


class Level:
    """A gauge's number for one set of labels."""

    __slots__ = ("_read", "_value")

    def __init__(self) -> None:
        self._value = 0.0
        self._read: Callable[[], float] | None = None

    @property
    def value(self) -> float:
        """Return the number as it is now."""
        return self._value if self._read is None else float(self._read())

    def set(self, value: float) -> None:
        """Set the number."""
        self._value = float(value)

    def set_function(self, read: Callable[[], float]) -> None:
        """Have the number read when somebody scrapes."""
        self._read = read


class Distribution:
    """A histogram's numbers for one set of labels; `counts` has one more than there are bounds."""

    __slots__ = ("_bounds", "_wall_clock", "counts", "created", "exemplars", "total")

    def __init__(self, bounds: Sequence[float], wall_clock: WallClock) -> None:
        self._bounds = bounds
        self._wall_clock = wall_clock
        self.created = wall_clock()
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, amount: float, exemplar: Mapping[str, str] | None = None) -> None:
        """Count an observation, and keep the labels of its exemplar in place of its bucket's last."""
        bucket = bisect_left(self._bounds, amount)
        self.counts[bucket] += 1
        self.total += amount
        if exemplar:
            self.exemplars[bucket] = Exemplar(dict(exemplar), amount, self._wall_clock())


Child = TypeVar("Child", Count, Level, Distribution)


class _Family(Collector, ABC, Generic[Child]):
    """
    One metric with all its children; without labels it has one, which is there from the start.

    Policies come and go, and what is counted stays: beyond `CHILDREN_MAX` all is counted as `OTHER`, so that
    a scrape has a limit.
    """

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._children: dict[tuple[str, ...], Child] = {}
        if not labels:
            self._add(())
        registry.register(self)

    def labels(self, *values: str) -> Child:
        """
        Return the child of these values.

        Raises:
            ValueError: there are not as many values as labels.
        """
        child = self._children.get(values)
        return child if child is not None else self._add(values)

    def remove(self, *values: str) -> None:
        """Forget the child of these values, if there is one."""
        self._children.pop(values, None)

    def clear(self) -> None:
        """Forget all children."""
        self._children.clear()

    def describe(self) -> Iterable[Metric]:
        """Return the metric without its samples, whose names the registry keeps for it."""
        return [self._family()]

    @abstractmethod
    def collect(self) -> Iterable[Metric]:
        """Return the metric with its samples."""

    @abstractmethod
    def _family(self) -> Metric:
        """Return the metric without its samples."""

    @abstractmethod
    def _child(self) -> Child:
        """Return a child that has counted nothing."""

    def _add(self, values: tuple[str, ...]) -> Child:
        if len(values) != len(self._labels):
            raise ValueError(f"{self._name} has the labels {self._labels}, and got the values {values}")
        if len(self._children) >= CHILDREN_MAX:
            values = (OTHER,) * len(values)
        return self._children.setdefault(values, self._child())


class Counter(_Family[Count]):
    """A number that only grows."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        *,
        registry: CollectorRegistry,
        wall_clock: WallClock = time.time,
    ) -> None:
        self._wall_clock = wall_clock
        super().__init__(name, text, labels, registry=registry)

    def inc(self, amount: float = 1.0) -> None:
        """Add to the number of a counter without labels."""
        self.labels().inc(amount)

    def collect(self) -> Iterable[Metric]:
        """Return the metric with its samples."""
        family = self._family()
        for values, child in self._children.items():
            family.add_metric(values, child.value, child.created)
        return [family]

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self._name, self._text, labels=self._labels)

    def _child(self) -> Count:
        return Count(self._wall_clock())


class Gauge(_Family[Level]):
    """A number that goes up and down."""

    def set(self, value: float) -> None:
        """Set the number of a gauge without labels."""
        self.labels().set(value)

    def set_function(self, read: Callable[[], float]) -> None:
        """Have the number of a gauge without labels read when somebody scrapes."""
        self.labels().set_function(read)

    def collect(self) -> Iterable[Metric]:
        """Return the metric with its samples."""
        family = self._family()
        for values, child in self._children.items():
            family.add_metric(values, child.value)
        return [family]

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self._name, self._text, labels=self._labels)

    def _child(self) -> Level:
        return Level()


class Histogram(_Family[Distribution]):
    """Observations by the buckets that they fall into; `buckets` are upper bounds, the last is infinity."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
        wall_clock: WallClock = time.time,
    ) -> None:
        self._bounds = tuple(buckets)
        self._bucket_names = (*(repr(float(bound)) for bound in buckets), INFINITY)
        self._wall_clock = wall_clock
        super().__init__(name, text, labels, registry=registry)

    def observe(self, amount: float, exemplar: Mapping[str, str] | None = None) -> None:
        """Count an observation of a histogram without labels."""
        self.labels().observe(amount, exemplar)

    def collect(self) -> Iterable[Metric]:
        """Return the metric with its samples."""
        family = self._family()
        for values, child in self._children.items():
            family.add_metric(values, self._buckets_of(child), child.total)
            family.samples.append(
                Sample(f"{self._name}_created", dict(zip(self._labels, values, strict=True)), child.created)
            )
        return [family]

    def _buckets_of(self, child: Distribution) -> list[Bucket]:
        counts = zip(self._bucket_names, accumulate(child.counts), strict=True)
        return [_bucket(name, count, child.exemplars.get(at)) for at, (name, count) in enumerate(counts)]

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._text, labels=self._labels)

    def _child(self) -> Distribution:
        return Distribution(self._bounds, self._wall_clock)


def _bucket(name: str, count: int, exemplar: Exemplar | None) -> Bucket:
    return (name, float(count)) if exemplar is None else (name, float(count), exemplar)
