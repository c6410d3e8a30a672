"""The suffix store's figures, as they are gathered for the metrics."""

from sternpost_core.hint import Reason
from sternpost_engine.figures import counters_of, gauges_of
from sternpost_engine.keys import TailIdentity
from sternpost_fakes.tail_requests import (
    OTHER_TAIL,
    WIDE,
    admit,
    block_table,
    build,
    build_facts,
    fail,
    make_planner,
    read_facts,
)


def one_hash(identity: TailIdentity, tokens: bytes) -> int:
    """Hash every tail alike."""
    return 7


def test_counters_tell_what_became_of_lookups_requests_and_builds() -> None:
    """One build that holds, one that fails, one that is given up; a hit, and a false one."""
    planner = make_planner(hash_function=one_hash)
    build(planner, build_facts("whole"))
    for name, tail in (("failed", range(10)), ("aborted", range(20))):
        assert planner.add(build_facts(name, tail))
        entry = planner.close_step([(name, 0, 1)], block_table).begins[0].entry
        if name == "failed":
            fail(planner, entry)
        planner.finish(name)
    admit(planner, read_facts("hit"))
    planner.finish("hit")
    planner.add(read_facts("false", OTHER_TAIL))
    planner.match("false", 0, WIDE)

    counters = counters_of(planner, {"prefix": 1, "suffix": 2, "computed": 3})

    assert {"live": 1, "false_hit": 1} == counters["lookups"]
    assert {"": 1} == counters["false_hits"]
    assert {"": 0} == counters["isolation_violations"]
    assert {"begun": 3, "completed": 1, "failed": 1, "aborted": 1} == counters["builds"]
    assert {"": 1} == counters["inserts"]
    assert {"failed": 1, "aborted": 1} == counters["evictions"]
    assert {"prefix": 1, "suffix": 2, "computed": 3} == counters["tokens"]
    assert 1 == counters["requests"][Reason.HIT]


def test_gauges_tell_what_is_held() -> None:
    """In bytes, by bucket, and by state."""
    planner = make_planner(budget_tokens=100)
    build(planner, build_facts("build"))

    assert {
        "supported": {"": 1},
        "pool_bytes": {"": 16},
        "pool_budget_bytes": {"": 100},
        "bucket_bytes": {"8": 0, "16": 16, "32": 0},
        "tails": {"building": 0, "live": 1, "retired": 0},
        "means": {"": 0},
    } == gauges_of(planner.index, supported=planner.supported)


def test_refused_engine_shows_it() -> None:
    """So that an alert can tell it from one that nobody asks."""
    planner = make_planner()
    planner.refuse()

    assert {"": 0} == gauges_of(planner.index, supported=planner.supported)["supported"]
