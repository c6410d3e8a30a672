"""What engines and the operator show at /metrics, made from the inventory of metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from docs.make_metrics import Metric, inventory

VALUES: Final = {
    "result": ("live", "absent"),
    "reason": ("hit", "copy_failed", "budget"),
    "source": ("prefix", "suffix", "computed"),
    "outcome": ("begun", "completed", "compared"),
    "state": ("live", "building"),
    "bucket": ("256", "512"),
    "kind": ("CachePolicy",),
    "policy": ("agents/support",),
    "phase": ("Progressing",),
    "verb": ("get",),
    "resource": ("cachepolicies",),
}
"""Labels and some of the values that they have."""

BOUNDS: Final = ("0.1", "1.0", "+Inf")


class Exposition:
    """
    A collector of the metrics of some parts, and of those whose names begin with `also`.

    Each scrape finds all counters one higher.
    """

    def __init__(self, *parts: str, also: tuple[str, ...] = ()) -> None:
        self._metrics = [
            metric for metric in inventory() if metric.part in parts or metric.name.startswith(also)
        ]
        self._scrapes = 0

    def collect(self) -> Iterator[Any]:
        """Yield every metric."""
        self._scrapes += 1
        for metric in self._metrics:
            yield _family(metric, self._scrapes)


def _family(metric: Metric, count: int) -> Any:
    values = list(product(*(VALUES[label] for label in metric.labels)))
    if metric.kind == "counter":
        counter = CounterMetricFamily(metric.name, metric.text, labels=metric.labels)
        for labels in values:
            counter.add_metric(labels, count)
        return counter
    if metric.kind == "gauge":
        gauge = GaugeMetricFamily(metric.name, metric.text, labels=metric.labels)
        for labels in values:
            gauge.add_metric(labels, 1)
        return gauge
    histogram = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels in values:
        histogram.add_metric(labels, [(bound, count) for bound in BOUNDS], 0.05 * count)
    return histogram


@contextmanager
def running_exposition(*parts: str, also: tuple[str, ...] = ()) -> Iterator[str]:
    """Serve what `Exposition` collects for the length of a block; yield the address as HOST:PORT."""
    registry = CollectorRegistry()
    registry.register(Exposition(*parts, also=also))
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
