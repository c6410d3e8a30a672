"""Metrics that are plain numbers show, line by line, what the library's own would."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import DuplicateTimeseries
from prometheus_client.openmetrics import exposition as openmetrics

from sternpost_fakes.clock import FakeClock
from sternpost_gateway import collectors

Step = Callable[[prometheus_client.Gauge, prometheus_client.Counter, prometheus_client.Histogram], object]

BOUNDS: Final = (0.005, 0.5, 1.0, 80.0)


def observing(amount: float) -> Step:
    """Return the step that observes an amount."""
    return lambda g, c, h: h.labels("a").observe(amount)


STEPS: dict[str, list[Step]] = {
    "counting": [lambda g, c, h: c.labels("a", "b").inc(), lambda g, c, h: c.labels("a", "b").inc(2)],
    "two children": [lambda g, c, h: c.labels("a", "b").inc(), lambda g, c, h: c.labels("b", "a").inc()],
    "labels that need escaping": [lambda g, c, h: c.labels('a"\n', "\\").inc()],
    "observing": [lambda g, c, h: h.labels("a").observe(0.4), lambda g, c, h: h.labels("a").observe(2)],
    "observing a bound": [observing(bound) for bound in BOUNDS],
    "observing beyond all bounds": [lambda g, c, h: h.labels("a").observe(81)],
    "a child that has observed nothing": [lambda g, c, h: h.labels("a")],
    "with exemplars": [
        lambda g, c, h: h.labels("a").observe(0.4, {"trace_id": "1"}),
        lambda g, c, h: h.labels("a").observe(0.3, {"trace_id": "2"}),
        lambda g, c, h: h.labels("a").observe(0.2, None),
        lambda g, c, h: h.labels("a").observe(99, {"trace_id": "3"}),
    ],
    "read when scraped": [lambda g, c, h: g.labels("a").set_function(lambda: 7)],
    "true and false": [lambda g, c, h: g.labels("a").set(True), lambda g, c, h: g.labels("b").set(False)],
    "removed and set again": [
        lambda g, c, h: g.labels("a").set(1),
        lambda g, c, h: g.remove("a"),
        lambda g, c, h: g.labels("a").set(2),
    ],
    "removed though it is not there": [lambda g, c, h: g.remove("a")],
    "cleared": [lambda g, c, h: g.labels("a").set(1), lambda g, c, h: g.clear()],
    "cleared and set again": [
        lambda g, c, h: g.labels("a").set(1),
        lambda g, c, h: g.clear(),
        lambda g, c, h: g.labels("a").set(3),
    ],
    "without labels": [],
}


def registered(module: ModuleType) -> tuple[CollectorRegistry, tuple[Any, ...]]:
    """Return a registry with metrics of a module, and those that have labels."""
    registry = CollectorRegistry()
    gauge = module.Gauge("g", "A gauge.", ["one"], registry=registry)
    counter = module.Counter("c_total", "A counter.", ["one", "two"], registry=registry)
    histogram = module.Histogram("h", "A histogram.", ["one"], buckets=BOUNDS, registry=registry)
    module.Counter("plain_total", "A counter without labels.", registry=registry).inc()
    module.Gauge("plain_gauge", "A gauge without labels.", registry=registry).set(5)
    module.Histogram("plain_h", "One without labels.", buckets=BOUNDS, registry=registry).observe(0.7)
    return registry, (gauge, counter, histogram)


def shown(module: ModuleType, steps: list[Step], encode: Callable[[CollectorRegistry], bytes]) -> list[str]:
    """Return the page of metrics of a module after some steps, without times."""
    registry, metrics = registered(module)
    for step in steps:
        step(*metrics)
    lines = encode(registry).decode().splitlines()
    return [_without_times(line) for line in lines]


def _without_times(line: str) -> str:
    """Return a line without its last number, where that is a time: of a start, or of an exemplar."""
    has_time = "_created" in line or " # {" in line
    return line.rpartition(" ")[0] if has_time and not line.startswith("#") else line


@pytest.mark.parametrize(
    "encode", [generate_latest, openmetrics.generate_latest], ids=["prometheus", "openmetrics"]
)
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_pages_are_the_librarys(steps: list[Step], encode: Callable[[CollectorRegistry], bytes]) -> None:
    """Line by line, whatever is done, and in both formats."""
    assert shown(prometheus_client, steps, encode) == shown(collectors, steps, encode)


@given(amounts=st.lists(st.floats(0, 1e6) | st.sampled_from(BOUNDS)))
def test_observations_fall_into_the_buckets_of_the_library(amounts: list[float]) -> None:
    """Any number of them, those that are a bound included."""
    steps = [observing(amount) for amount in amounts]

    assert shown(prometheus_client, steps, generate_latest) == shown(collectors, steps, generate_latest)


def test_a_child_is_the_same_until_it_is_removed() -> None:
    """Whoever holds one counts where the next one who asks for it does."""
    gauge = collectors.Gauge("g", "A gauge.", ["one"], registry=CollectorRegistry())
    first = gauge.labels("a")
    is_same = gauge.labels("a") is first
    gauge.remove("a")

    assert (True, False) == (is_same, gauge.labels("a") is first)


def test_what_is_beyond_the_limit_is_counted_together() -> None:
    """Those that are there go on counting; of the others nothing is lost but their names."""
    registry = CollectorRegistry()
    counter = collectors.Counter("c_total", "A counter.", ["policy", "arm"], registry=registry)
    for number in range(collectors.CHILDREN_MAX + 3):
        counter.labels(f"p{number}", "all").inc()
    counter.labels("p0", "all").inc()

    (family,) = registry.collect()
    counts = {sample.labels["policy"]: sample for sample in family.samples if sample.name == "c_total"}
    assert collectors.CHILDREN_MAX + 1 == len(counts)
    assert (3, "other", 2) == (counts["other"].value, counts["other"].labels["arm"], counts["p0"].value)


def test_room_that_is_given_back_is_used_again() -> None:
    """A gauge forgets what is gone, and names what is new."""
    registry = CollectorRegistry()
    gauge = collectors.Gauge("g", "A gauge.", ["engine"], registry=registry)
    for number in range(collectors.CHILDREN_MAX):
        gauge.labels(f"e{number}").set(1)
    gauge.remove("e0")
    gauge.labels("new").set(1)

    assert (1, None) == tuple(registry.get_sample_value("g", {"engine": name}) for name in ("new", "other"))


def test_the_start_and_an_exemplar_carry_the_time_of_the_clock() -> None:
    """The start of a child, and each observation that has an exemplar."""
    registry, clock = CollectorRegistry(), FakeClock()
    histogram = collectors.Histogram(
        "h", "A histogram.", ["one"], buckets=BOUNDS, registry=registry, wall_clock=clock.time
    )
    child, started = histogram.labels("a"), clock.time()
    clock.advance(5)
    child.observe(0.4, {"trace_id": "1"})

    (metric,) = registry.collect()
    kept = [sample.exemplar.timestamp for sample in metric.samples if sample.exemplar is not None]
    assert [started + 5] == kept
    assert started == registry.get_sample_value("h_created", {"one": "a"})


REFUSED: dict[str, tuple[Callable[[collectors.Counter], object], str]] = {
    "too many values": (lambda counter: counter.labels("a", "b"), r"c_total has the labels \('one',\)"),
    "too few values": (lambda counter: counter.labels(), r"and got the values \(\)"),
    "a parent that is counted on": (lambda counter: counter.inc(), r"and got the values \(\)"),
    "a negative amount": (lambda counter: counter.labels("a").inc(-1), "-1 is negative"),
}


@pytest.mark.parametrize(("step", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_counted_is_refused(
    step: Callable[[collectors.Counter], object], message: str
) -> None:
    """And nothing is shown of it."""
    registry = CollectorRegistry()
    counter = collectors.Counter("c_total", "A counter.", ["one"], registry=registry)

    with pytest.raises(ValueError, match=message):
        step(counter)
    (family,) = registry.collect()
    assert [] == [sample for sample in family.samples if sample.name == "c_total" and sample.value]


def test_a_name_is_registered_once() -> None:
    """Two metrics of one name would be one page that nobody can read."""
    registry = CollectorRegistry()
    collectors.Counter("c_total", "A counter.", registry=registry)

    with pytest.raises(DuplicateTimeseries):
        collectors.Counter("c_total", "Another.", registry=registry)
