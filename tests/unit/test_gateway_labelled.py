"""Metrics whose children are remembered count and show what the library's own do."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sternpost_gateway import labelled

Step = Callable[[prometheus_client.Gauge, prometheus_client.Counter, prometheus_client.Histogram], None]

STEPS: dict[str, list[Step]] = {
    "counting": [lambda g, c, h: c.labels("a", "b").inc(), lambda g, c, h: c.labels("a", "b").inc(2)],
    "two children": [lambda g, c, h: c.labels("a", "b").inc(), lambda g, c, h: c.labels("b", "a").inc()],
    "by keyword": [
        lambda g, c, h: c.labels("a", "b").inc(),
        lambda g, c, h: c.labels(one="a", two="b").inc(),
    ],
    "observing": [lambda g, c, h: h.labels("a").observe(0.5), lambda g, c, h: h.labels("a").observe(2)],
    "removed and set again": [
        lambda g, c, h: g.labels("a").set(1),
        lambda g, c, h: g.remove("a"),
        lambda g, c, h: g.labels("a").set(2),
    ],
    "cleared": [lambda g, c, h: g.labels("a").set(1), lambda g, c, h: g.clear()],
    "cleared and set again": [
        lambda g, c, h: g.labels("a").set(1),
        lambda g, c, h: g.clear(),
        lambda g, c, h: g.labels("a").inc(),
    ],
    "without labels": [],
}


def shown(module: ModuleType, steps: list[Step]) -> list[str]:
    """Return the page of metrics of a module after some steps, without times."""
    registry = CollectorRegistry()
    gauge = module.Gauge("g", "A gauge.", ["one"], registry=registry)
    counter = module.Counter("c_total", "A counter.", ["one", "two"], registry=registry)
    histogram = module.Histogram("h", "A histogram.", ["one"], buckets=(1.0,), registry=registry)
    module.Counter("plain_total", "A counter without labels.", registry=registry).inc()
    for step in steps:
        step(gauge, counter, histogram)
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_pages_are_the_librarys(steps: list[Step]) -> None:
    """Line by line, whatever is done."""
    assert shown(prometheus_client, steps) == shown(labelled, steps)


def test_a_child_is_looked_up_once() -> None:
    """The same one each time, until it is removed."""
    gauge = labelled.Gauge("g", "A gauge.", ["one"], registry=CollectorRegistry())
    first = gauge.labels("a")
    gauge.remove("a")

    assert first is not gauge.labels("a")
    assert gauge.labels("a") is gauge.labels("a")


def test_wrong_labels_are_refused_as_ever() -> None:
    """They are checked when they are new."""
    counter = labelled.Counter("c_total", "A counter.", ["one"], registry=CollectorRegistry())

    with pytest.raises(ValueError, match="Incorrect label count"):
        counter.labels("a", "b")
