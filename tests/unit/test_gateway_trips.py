"""The local trip: when an engine gets no suffix reads, for how long, and what counts as a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sternpost_core.hint import Operation, Reason
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway_scene import CHAT, ENGINE, Scene, body_of, learned
from sternpost_gateway.bypass import Bypass
from sternpost_gateway.compose import Composed
from sternpost_gateway.fleet import Engine, Fleet
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.record import Recorder
from sternpost_gateway.relay import Relayed
from sternpost_gateway.tails import Tails
from sternpost_gateway.trips import (
    CALM_SECONDS,
    FAILURES_MAX,
    TRIP_FILE,
    TRIP_SECONDS_MAX,
    TRIP_SECONDS_MIN,
    WINDOW_SECONDS,
    Trip,
    Trips,
    next_seconds,
)

OTHER = Engine("http://other")


def trips(clock: FakeClock, state: Path | None = None, told: list[Trip] | None = None) -> Trips:
    """Return the trips of two engines."""
    return Trips(clock, state, (told if told is not None else []).append)


def fail(tested: Trips, times: int = FAILURES_MAX, engine: Engine = ENGINE) -> None:
    """Let reads of one engine fail."""
    for _ in range(times):
        tested.failed(engine, "copy_failed")


def test_failures_trip_their_engine_only() -> None:
    """The last failure of the five turns reads off, at that engine and no other."""
    tested = trips(FakeClock())
    fail(tested, FAILURES_MAX - 1)
    before = tested.is_tripped(ENGINE)
    fail(tested, 1)

    assert (False, True, False) == (before, tested.is_tripped(ENGINE), tested.is_tripped(OTHER))


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        pytest.param(WINDOW_SECONDS / (FAILURES_MAX - 1), True, id="just-within"),
        pytest.param(WINDOW_SECONDS / (FAILURES_MAX - 1) + 0.01, False, id="just-too-far-apart"),
    ],
)
def test_failures_count_within_the_window(gap: float, expected: bool) -> None:
    """Five failures trip only when the first and the last are near enough."""
    clock = FakeClock()
    tested = trips(clock)
    for number in range(FAILURES_MAX):
        if number:
            clock.advance(gap)
        tested.failed(ENGINE, "copy_failed")

    assert expected is tested.is_tripped(ENGINE)


def test_trips_double_up_to_a_limit() -> None:
    """An engine that fails again right after its trip is left alone for twice as long."""
    clock, told = FakeClock(), list[Trip]()
    tested = trips(clock, told=told)
    for _ in range(6):
        fail(tested)
        clock.advance(told[-1].seconds)
        assert not tested.is_tripped(ENGINE)

    assert [60.0, 120.0, 240.0, 480.0, 600.0, 600.0] == [trip.seconds for trip in told]


def test_an_engine_is_tripped_at_once_and_not_twice() -> None:
    """What follows during the trip neither prolongs it nor is told."""
    clock, told = FakeClock(), list[Trip]()
    tested = trips(clock, told=told)
    for _ in range(3):
        tested.trip(ENGINE, "foreign_owner")

    assert ([TRIP_SECONDS_MIN], True) == ([trip.seconds for trip in told], tested.is_tripped(ENGINE))


def test_failures_during_a_trip_say_nothing_new() -> None:
    """What was in flight when the engine tripped neither prolongs the trip nor counts for the next."""
    clock, told = FakeClock(), list[Trip]()
    tested = trips(clock, told=told)
    fail(tested, 3 * FAILURES_MAX)
    clock.advance(TRIP_SECONDS_MIN)
    fail(tested, FAILURES_MAX - 1)

    assert (1, False) == (len(told), tested.is_tripped(ENGINE))


@pytest.mark.parametrize(
    ("calm", "expected"),
    [
        pytest.param(CALM_SECONDS - 0.01, 2 * TRIP_SECONDS_MIN, id="soon-after"),
        pytest.param(CALM_SECONDS, TRIP_SECONDS_MIN, id="long-after"),
    ],
)
def test_old_trips_are_forgotten(calm: float, expected: float) -> None:
    """After a calm time the next trip is a first one again."""
    before = Trip(ENGINE, until=100.0, seconds=TRIP_SECONDS_MIN, reason="5xx")

    assert expected == next_seconds(before, 100.0 + calm)


def test_trip_survives_a_restart(tmp_path: Path) -> None:
    """A restarted gateway waits for what is left of the trip, and doubles the next one."""
    clock, told = FakeClock(monotonic=1000.0), list[Trip]()
    fail(trips(clock, tmp_path))
    clock.advance(20.0)
    restarted_clock = FakeClock(monotonic=5.0, time=clock.time())
    restarted = trips(restarted_clock, tmp_path, told)
    remaining = [restarted.remaining_seconds(trip) for trip in restarted.active()]
    restarted_clock.advance(40.0)
    ended = not restarted.is_tripped(ENGINE)
    fail(restarted)

    assert ([40.0], True, 120.0) == (remaining, ended, told[0].seconds)


def test_trip_does_not_outlast_the_limit_when_the_clock_goes_back(tmp_path: Path) -> None:
    """A clock that was wrong when the trip was written cannot keep reads off for years."""
    fail(trips(FakeClock(time=2_000_000_000.0), tmp_path))
    restarted = trips(FakeClock(), tmp_path)

    assert [TRIP_SECONDS_MAX] == [restarted.remaining_seconds(trip) for trip in restarted.active()]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"{", id="no-json"),
        pytest.param(b'{"v": 2, "trips": []}', id="other-version"),
        pytest.param(b'{"v": 1, "trips": [{}]}', id="half-a-trip"),
        pytest.param(b'{"v": 1, "trips": 3}', id="no-list"),
    ],
)
def test_unreadable_trips_are_left_behind(tmp_path: Path, content: bytes) -> None:
    """Failures that matter come again; the gateway starts."""
    (tmp_path / TRIP_FILE).write_bytes(content)

    assert () == trips(FakeClock(), tmp_path).active()


def test_an_engine_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    """Another engine at the same address, later, begins without the trip."""
    kept = trips(FakeClock(), tmp_path)
    fail(kept)
    kept.forget(ENGINE)

    assert (False, ()) == (kept.is_tripped(ENGINE), kept.active())


def test_trip_counts_although_it_cannot_be_kept(tmp_path: Path) -> None:
    """A full disk does not keep reads on."""
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    tested = trips(FakeClock(), blocked / "state")
    fail(tested)

    assert tested.is_tripped(ENGINE)


def test_tripped_engine_is_told_to_leave_its_store_alone() -> None:
    """The prompt stays as it is; only the operation changes, and nothing is to be built."""
    scene = Scene(body=CHAT)
    planned = scene.plan()
    tails = learned(planned)
    usual, tripped = scene.compose(tails), scene.compose(tails, tripped=True)
    hints = [body_of(composed)["kv_transfer_params"]["sternpost"]["op"] for composed in (usual, tripped)]

    assert ["read", "off"] == hints
    assert (Bypass.TRIPPED, None, 0) == (
        tripped.outlook.bypass,
        tripped.outlook.wanted,
        tripped.outlook.reuse_tokens,
    )
    assert body_of(usual)["messages"] == body_of(tripped)["messages"]
    assert body_of(usual)["cache_salt"] == body_of(tripped)["cache_salt"]


def usage(reason: Reason) -> dict[str, Any]:
    """Return an answer's usage with a report."""
    report = {
        "v": 1,
        "prefix_tokens": 0,
        "suffix_tokens": 0,
        "computed_tokens": 9,
        "reason": reason.value,
        "engine": "b1",
    }
    return {"prompt_tokens": 9, "prompt_tokens_details": {"sternpost": report}}


def composed_with(operation: Operation | None) -> Composed:
    """Return a composed request whose hint asks for an operation, or that has no hint."""
    scene = Scene(body=CHAT)
    if operation is None:
        return scene.compose()
    return scene.compose(learned(scene.plan()), tripped=operation is Operation.OFF)


def relayed(status: int = 200, *, cut: bool = False, reason: Reason | None = None) -> Relayed:
    """Return the end of an answer."""
    return Relayed(
        status=status,
        is_stream=False,
        first_byte=1.0,
        cut=cut,
        usage=usage(reason) if reason else None,
    )


@pytest.mark.parametrize(
    ("operation", "answer", "expected"),
    [
        pytest.param(Operation.READ, relayed(reason=Reason.HIT), False, id="hit"),
        pytest.param(Operation.READ, relayed(reason=Reason.NOT_BUILT), False, id="not-built"),
        pytest.param(Operation.READ, relayed(reason=Reason.COPY_FAILED), True, id="copy-failed"),
        pytest.param(Operation.READ, relayed(reason=Reason.FALSE_HIT), True, id="false-hit"),
        pytest.param(Operation.READ, relayed(reason=Reason.FOREIGN_TAIL), True, id="foreign-tail"),
        pytest.param(Operation.READ, relayed(500), True, id="server-error"),
        pytest.param(Operation.READ, relayed(400), False, id="client-error"),
        pytest.param(Operation.READ, relayed(cut=True), True, id="cut"),
        pytest.param(Operation.OFF, relayed(500), False, id="server-error-without-a-read"),
        pytest.param(None, relayed(500), False, id="server-error-without-a-hint"),
    ],
)
def test_what_counts_as_a_failure(operation: Operation | None, answer: Relayed, expected: bool) -> None:
    """Only what a suffix read may have caused trips an engine."""
    tested = trips(FakeClock())
    recorder = Recorder(Metrics(CollectorRegistry()), Tails(FakeClock()), fleet(), tested)
    for _ in range(FAILURES_MAX):
        recorder.answered(composed_with(operation), answer)

    assert expected is tested.is_tripped(ENGINE)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [pytest.param(Operation.READ, True, id="read"), pytest.param(None, False, id="no-hint")],
)
def test_engine_that_dies_of_reads_is_tripped(operation: Operation | None, expected: bool) -> None:
    """An engine that hangs up on suffix reads gets none when it is back."""
    tested = trips(FakeClock())
    recorder = Recorder(Metrics(CollectorRegistry()), Tails(FakeClock()), fleet(), tested)
    for _ in range(FAILURES_MAX):
        recorder.disconnected(composed_with(operation))

    assert expected is tested.is_tripped(ENGINE)


def fleet() -> Fleet:
    """Return a fleet of the one engine."""
    return Fleet([ENGINE], lambda engine: None)
