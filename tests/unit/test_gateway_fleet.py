"""What is believed about engines, and what changes it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_fakes.clock import FakeClock
from sternpost_gateway.fleet import FAILURES_MAX, Engine, Fleet, Flight, Health, Info, Plugin

ENGINE = Engine("http://engine")
OTHER = Engine("http://other")


def make_fleet() -> tuple[Fleet, list[Engine]]:
    """Return a fleet of two and the list of engines that turned out to have started anew."""
    restarted: list[Engine] = []
    return Fleet([ENGINE, OTHER], restarted.append), restarted


def info(batch: str = "b1", plugin: Plugin = Plugin.READY) -> Info:
    """Return what an engine says."""
    return Info(plugin=plugin, batch=batch)


def test_engine_is_not_ready_until_probed() -> None:
    """Nobody is believed to be ready without having said so."""
    fleet, _ = make_fleet()

    assert (True, [ENGINE]) == (
        fleet.probed(ENGINE, Health.UP),
        [view.engine for view in fleet.ready_views()],
    )


def test_probe_tells_changes_only() -> None:
    """A probe that finds what is known already is no news."""
    fleet, _ = make_fleet()

    assert [True, False, True, False] == [
        fleet.probed(ENGINE, health) for health in (Health.UP, Health.UP, Health.DOWN, Health.DOWN)
    ]


@pytest.mark.parametrize(
    ("found", "ready"),
    [
        pytest.param([Health.SILENT] * FAILURES_MAX, False, id="silent-for-too-long"),
        pytest.param([Health.SILENT] * (FAILURES_MAX - 1), True, id="silent-for-a-moment"),
        pytest.param([Health.SILENT, Health.UP] * FAILURES_MAX, True, id="silent-now-and-then"),
        pytest.param([Health.SILENT, Health.DOWN], False, id="silent-then-down"),
        pytest.param([Health.DOWN, Health.SILENT], False, id="down-then-silent"),
    ],
)
def test_a_moment_of_silence_ejects_nobody(found: list[Health], ready: bool) -> None:
    """One lost probe takes no engine away, not even the only one; several in a row do."""
    fleet, _ = make_fleet()
    fleet.probed(ENGINE, Health.UP)
    for health in found:
        fleet.probed(ENGINE, health)

    assert ready is fleet.is_ready(ENGINE)


def test_failures_in_a_row_eject() -> None:
    """So many failures in a row, without an answer between, make an engine not ready; a probe mends it."""
    fleet, _ = make_fleet()
    fleet.probed(ENGINE, Health.UP)
    fleet.failed(ENGINE)
    fleet.answered(ENGINE)
    ejected = [fleet.failed(ENGINE) for _ in range(FAILURES_MAX + 1)]

    assert [False] * (FAILURES_MAX - 1) + [True, False] == ejected
    assert not fleet.is_ready(ENGINE)
    assert fleet.probed(ENGINE, Health.UP) and fleet.is_ready(ENGINE)


def test_flights_are_counted() -> None:
    """A request counts on its engine while it lasts, however it ends."""
    fleet, _ = make_fleet()
    with pytest.raises(RuntimeError), fleet.flight(ENGINE):
        assert [1, 0] == [view.in_flight for view in fleet.views()]
        raise RuntimeError

    assert [0, 0] == [view.in_flight for view in fleet.views()]


def test_new_batch_is_told() -> None:
    """Another batch id means another start, whether the engine says it itself or in a report."""
    fleet, restarted = make_fleet()
    news = [fleet.learned(ENGINE, info()), fleet.learned(ENGINE, info()), fleet.learned(ENGINE, info("b2"))]
    reported = [fleet.reported(ENGINE, "b2"), fleet.reported(ENGINE, ""), fleet.reported(ENGINE, "b3")]

    assert ([True, False, True], [False, False, True]) == (news, reported)
    assert [ENGINE, ENGINE, ENGINE] == restarted
    assert "b3" == fleet.info(ENGINE).batch


def test_plugin_that_appears_is_news() -> None:
    """An engine that comes back with the plugin is worth a line in the log."""
    fleet, _ = make_fleet()
    fleet.learned(ENGINE, info("", Plugin.ABSENT))

    assert fleet.learned(ENGINE, info("b1"))


def test_uncached_tokens_count_until_they_are_computed() -> None:
    """A prompt loads its engine until the answer begins, or fails."""
    fleet, _ = make_fleet()
    with fleet.flight(ENGINE, 500.0) as first, fleet.flight(ENGINE, 300.0):
        both = fleet.views()[0].uncached_tokens
        first.computed()
        first.computed()
        assert (800.0, 300.0) == (both, fleet.views()[0].uncached_tokens)

    assert 0.0 == fleet.views()[0].uncached_tokens


@pytest.mark.parametrize(
    ("seconds", "ahead"),
    [
        pytest.param(0.0, 800.0, id="nothing-yet"),
        pytest.param(0.3, 500.0, id="as-far-as-the-rate-goes"),
        pytest.param(9.0, 300.0, id="no-further-than-the-first-prompt"),
    ],
)
def test_what_is_computed_of_the_first_prompt_is_no_longer_ahead(seconds: float, ahead: float) -> None:
    """While its answer has not begun, it is not over, and the one behind it has not begun either."""
    clock = FakeClock()
    fleet = Fleet([ENGINE], lambda engine: None, monotonic=clock.monotonic)
    with fleet.flight(ENGINE, 500.0) as first, fleet.flight(ENGINE, 300.0) as second:
        first.sent()
        second.sent()
        clock.advance(seconds)

        assert ahead == pytest.approx(fleet.views()[0].ahead_tokens(1000.0))


def test_what_waits_in_the_gateway_is_not_computed_meanwhile() -> None:
    """A prompt is ahead of the next one before it is sent, and begins when it is."""
    clock = FakeClock()
    fleet = Fleet([ENGINE], lambda engine: None, monotonic=clock.monotonic)
    with fleet.flight(ENGINE, 500.0) as waiting, fleet.flight(ENGINE, 300.0) as sent:
        sent.sent()
        clock.advance(0.2)
        before = fleet.views()[0].ahead_tokens(1000.0)
        behind = waiting.sent().ahead_tokens(1000.0)
        clock.advance(5.0)

        assert [600.0, 100.0, 500.0] == pytest.approx([before, behind, fleet.views()[0].ahead_tokens(1000.0)])


def test_the_next_prompt_begins_when_the_first_is_computed() -> None:
    """A prompt is computed from the moment at which it is the first; others are not before it."""
    clock = FakeClock()
    fleet = Fleet([ENGINE], lambda engine: None, monotonic=clock.monotonic)
    with (
        fleet.flight(ENGINE) as none,
        fleet.flight(ENGINE, 500.0) as first,
        fleet.flight(ENGINE, 300.0) as last,
    ):
        for flight in (none, first, last):
            flight.sent()
        clock.advance(5.0)
        first.computed()
        begun = fleet.views()[0].ahead_tokens(1000.0)
        clock.advance(0.2)
        going_on = fleet.views()[0].ahead_tokens(1000.0)
        last.computed()

        assert [300.0, 100.0, 0.0] == pytest.approx([begun, going_on, fleet.views()[0].ahead_tokens(1000.0)])


STEPS = st.lists(
    st.tuples(st.sampled_from(["open", "send", "compute", "close"]), st.integers(0, 5), st.floats(0, 1e5)),
    max_size=40,
)


@given(steps=STEPS)
def test_tokens_are_those_of_the_prompts_that_are_there(steps: list[tuple[str, int, float]]) -> None:
    """Whatever comes and goes in whatever order, what is kept is what adding up would find."""
    fleet, _ = make_fleet()
    with ExitStack() as stack:
        flights: dict[int, tuple[Flight, ExitStack]] = {}
        waiting: dict[int, float] = {}
        sent: dict[int, float] = {}
        for step, number, tokens in steps:
            if step == "open" and number not in flights:
                own = stack.enter_context(ExitStack())
                flights[number] = own.enter_context(fleet.flight(ENGINE, tokens)), own
                waiting[number] = tokens
            elif step == "send" and number in waiting:
                flights[number][0].sent()
                sent[number] = waiting.pop(number)
            elif step in ("compute", "close") and number in flights:
                if step == "compute":
                    flights[number][0].computed()
                else:
                    flights.pop(number)[1].close()
                for held in (waiting, sent):
                    held.pop(number, None)
        view = fleet.views()[0]

        found = view.in_flight, view.backlog.tokens, view.uncached_tokens
        summed = len(flights), sum(sent.values()), sum(sent.values()) + sum(waiting.values())
        assert pytest.approx(summed, abs=1e-6) == found


def test_pool_changes_while_requests_are_in_flight() -> None:
    """Who stays keeps what is known of it; what was in flight on an engine that is gone ends in peace."""
    gone: list[Engine] = []
    ready: list[Engine] = []
    fleet = Fleet([ENGINE, OTHER], lambda engine: None, on_ready=ready.append, on_gone=gone.append)
    third = Engine("http://third")
    for engine in fleet.engines:
        fleet.probed(engine, Health.UP)
    with fleet.flight(OTHER, 100.0), fleet.flight(ENGINE):
        changes = fleet.set_engines([third, ENGINE, third])
        fleet.failed(OTHER)
        assert [(ENGINE, True, 1), (third, False, 0)] == [
            (view.engine, view.ready, view.in_flight) for view in fleet.views()
        ]

    assert (((third,), (OTHER,)), [OTHER], [ENGINE, OTHER]) == (changes, gone, ready)
    assert not fleet.is_ready(OTHER)
