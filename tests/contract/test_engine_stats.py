"""The suffix store's figures: collected per step, added up, and shown beside vLLM's own."""

import json
from collections.abc import Mapping
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sternpost_engine.figures import counters_of, gauges_of
from sternpost_fakes.tail_requests import make_planner
from sternpost_fakes.vllm_modules import import_object

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def stats() -> ModuleType:
    """The module, which imports vLLM."""
    module: ModuleType = import_object("sternpost_engine.stats")
    return module


def data_of(
    counters: Mapping[str, Any] | None = None,
    gauges: Mapping[str, Any] | None = None,
    observations: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what one step collected."""
    return {"counters": counters or {}, "gauges": gauges or {}, "observations": observations or {}}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param(data_of(), data_of(), data_of(), id="nothing"),
        pytest.param(
            data_of({"lookups": {"live": 1}}),
            data_of({"lookups": {"live": 2, "absent": 1}, "inserts": {"": 1}}),
            data_of({"lookups": {"live": 3, "absent": 1}, "inserts": {"": 1}}),
            id="counters-add-up",
        ),
        pytest.param(
            data_of(gauges={"tails": {"live": 1, "building": 2}}),
            data_of(gauges={"tails": {"live": 5}, "pool_bytes": {"": 9}}),
            data_of(gauges={"tails": {"live": 5, "building": 2}, "pool_bytes": {"": 9}}),
            id="gauges-take-the-latest",
        ),
        pytest.param(
            data_of(observations={"copy_seconds": [0.1]}),
            data_of(observations={"copy_seconds": [0.2], "match_seconds": [0.3]}),
            data_of(observations={"copy_seconds": [0.1, 0.2], "match_seconds": [0.3]}),
            id="observations-are-kept",
        ),
    ],
)
def test_stats_are_added_up(
    stats: ModuleType, first: dict[str, Any], second: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Of several workers, and of the scheduler side."""
    total = stats.SuffixStats(data=first).aggregate(stats.SuffixStats(data=second))

    assert expected == total.data


@pytest.mark.parametrize(
    ("data", "empty"),
    [
        pytest.param(data_of(), True, id="fresh"),
        pytest.param({}, True, id="without-parts"),
        pytest.param(data_of({"inserts": {"": 1}}), False, id="counter"),
        pytest.param(data_of(gauges={"pool_bytes": {"": 0}}), False, id="gauge"),
        pytest.param(data_of(observations={"copy_seconds": [0.1]}), False, id="observation"),
    ],
)
def test_empty_stats_are_told(stats: ModuleType, data: dict[str, Any], empty: bool) -> None:
    """vLLM sends what is not empty."""
    assert empty is stats.SuffixStats(data=data).is_empty()


def test_reset_forgets(stats: ModuleType) -> None:
    """The parts stay, empty."""
    collected = stats.SuffixStats(data=data_of({"inserts": {"": 1}}))

    collected.reset()

    assert data_of() == collected.data


def test_log_line_sums_up_labels(stats: ModuleType) -> None:
    """One figure per counter."""
    collected = stats.SuffixStats(data=data_of({"lookups": {"live": 3, "absent": 1}}))

    assert {"suffix lookups": 4} == collected.reduce()


def test_deltas_are_what_was_added_since(stats: ModuleType) -> None:
    """Nothing is sent twice, and nothing where nothing was added."""
    deltas = stats.CounterDeltas()

    taken = [
        deltas.take({"lookups": {"live": 2, "absent": 0}, "inserts": {"": 1}}),
        deltas.take({"lookups": {"live": 5, "absent": 1}, "inserts": {"": 1}}),
        deltas.take({"lookups": {"live": 5, "absent": 1}, "inserts": {"": 1}}),
    ]

    assert [
        {"lookups": {"live": 2}, "inserts": {"": 1}},
        {"lookups": {"live": 3, "absent": 1}},
        {},
    ] == taken


def make_metrics(stats: ModuleType, registry: CollectorRegistry) -> Any:
    """Register the metrics of two engines, as vLLM's process for /metrics does."""
    return stats.SuffixMetrics(
        SimpleNamespace(kv_transfer_config=None),
        {kind: partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)},
        ["model_name", "engine"],
        {0: ["m", "0"], 1: ["m", "1"]},
    )


def test_reports_arrive_in_the_metrics(stats: ModuleType) -> None:
    """Counters add up, gauges show the latest, seconds are counted in their buckets, each engine apart."""
    registry = CollectorRegistry()
    metrics = make_metrics(stats, registry)

    metrics.observe(data_of({"lookups": {"live": 2}, "inserts": {"": 1}}, {"pool_bytes": {"": 5}}), 0)
    metrics.observe(data_of({"lookups": {"live": 1}}, {"pool_bytes": {"": 7}}), 0)
    metrics.observe(data_of(observations={"copy_seconds": [0.002, 2.0]}), 1)

    first, second = {"model_name": "m", "engine": "0"}, {"model_name": "m", "engine": "1"}
    value = registry.get_sample_value
    assert 3 == value("sternpost_suffix_lookups_total", {**first, "result": "live"})
    assert 1 == value("sternpost_suffix_inserts_total", first)
    assert 7 == value("sternpost_suffix_pool_bytes", first)
    assert 1 == value("sternpost_suffix_copy_seconds_bucket", {**second, "le": "0.0025"})
    assert 2 == value("sternpost_suffix_copy_seconds_count", second)
    assert None is value("sternpost_suffix_copy_seconds_count", first)


def test_gauges_are_one_series_for_all_api_servers(stats: ModuleType) -> None:
    """As vLLM's own are: by default there is one per process, and all but one of them are out of date."""
    registry = CollectorRegistry()
    modes: list[str] = []

    def noted(*arguments: Any, **named: Any) -> Gauge:
        modes.append(named.get("multiprocess_mode", "all"))
        return Gauge(*arguments, **{**named, "registry": registry})

    others = {kind: partial(kind, registry=registry) for kind in (Counter, Histogram)}
    kinds: dict[Any, Any] = {Gauge: noted, **others}
    stats.SuffixMetrics(SimpleNamespace(kv_transfer_config=None), kinds, ["engine"], {0: ["0"]})

    assert {"mostrecent"} == set(modes)


def test_every_metric_has_the_products_prefix_and_a_help(stats: ModuleType) -> None:
    """Users find them by one word."""
    registry = CollectorRegistry()
    make_metrics(stats, registry)

    found = list(registry.collect())

    assert 18 == len(found)
    assert [] == [one.name for one in found if not one.name.startswith("sternpost_suffix_")]
    assert [] == [one.name for one in found if not one.documentation.endswith(".")]


def test_each_figure_of_the_store_has_its_metric(stats: ModuleType) -> None:
    """A figure that is gathered and not registered would end the process that serves /metrics."""
    planner, registry = make_planner(), CollectorRegistry()
    metrics = make_metrics(stats, registry)
    deltas = stats.CounterDeltas()

    counters = counters_of(planner, dict.fromkeys(("prefix", "suffix", "computed"), 1))
    gauges = gauges_of(planner.index, supported=True)
    metrics.observe(data_of(deltas.take(counters), gauges), 0)

    assert 1 == registry.get_sample_value("sternpost_suffix_supported", {"model_name": "m", "engine": "0"})
    assert set(counters) <= set(stats._COUNTERS)


def test_stats_survive_another_process(stats: ModuleType) -> None:
    """vLLM sends the plain data, and rebuilds the stats from it."""
    collected = stats.SuffixStats(data=data_of({"inserts": {"": 1}}, {"tails": {"live": 2}}))
    sent = json.loads(json.dumps(collected.to_dict()))
    rebuild = import_object("sternpost_engine.connector:SternpostConnector.build_kv_connector_stats")

    assert collected.data == rebuild(sent).data
    assert data_of() == rebuild(None).data
