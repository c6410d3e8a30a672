"""What is counted of an exchange: sessions by the arm that they are in, and tails that are another's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from sternpost_core.hint import Reason, Report
from sternpost_core.keys import cache_salt, owner_of
from sternpost_core.policy import Isolation
from sternpost_core.rollout import Arm, Rollout, arm_of, bucket_of
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway_scene import CHAT, ENGINE, Scene, policy
from sternpost_gateway.fleet import Fleet
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.record import Recorder, names_another
from sternpost_gateway.relay import Relayed
from sternpost_gateway.tails import Tails
from sternpost_gateway.trips import Trips

NAME = policy().full_name
SESSION = "mine"
WEIGHTS = (1, 25, 100)


def exchange(recorder: Recorder, weight: int) -> None:
    """Record a turn of the session at a weight of the rollout."""
    headers = ((b"x-tenant-id", b"acme"), (b"x-session-id", SESSION.encode()))
    scene = Scene(body=CHAT, headers=headers, rollouts={NAME: Rollout(weight, weight)})
    recorder.answered(scene.compose(), Relayed(status=200, is_stream=False))


def test_a_session_counts_once_in_each_arm_that_it_has_been_in() -> None:
    """A rollout that takes it over sees it among those of the canary; later turns count no more."""
    registry, clock = CollectorRegistry(), FakeClock()
    fleet = Fleet((ENGINE,), lambda engine: None)
    recorder = Recorder(Metrics(registry), Tails(clock), fleet, Trips(clock, None))
    for weight in WEIGHTS:
        exchange(recorder, weight)
        exchange(recorder, weight)

    bucket = bucket_of(NAME, f"{'acme'!r} {SESSION!r}".encode())
    arms = {arm_of(bucket, weight) for weight in WEIGHTS[:-1]} | {Arm.CANARY}
    counted = {
        sample.labels["arm"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "sternpost_gateway_sessions_total"
    }
    assert len(arms) > 1, "the session changes its arm"
    assert {arm.value: 1.0 for arm in arms} == counted


SALT = cache_salt(b"s" * 32, isolation=Isolation.TENANT, policy=NAME, tenant="acme")
OTHER_SALT = cache_salt(b"s" * 32, isolation=Isolation.TENANT, policy=NAME, tenant="globex")


@pytest.mark.parametrize(
    ("owner", "salt", "expected"),
    [
        pytest.param(owner_of(SALT), SALT, False, id="its-own"),
        pytest.param(owner_of(OTHER_SALT), SALT, True, id="anothers"),
        pytest.param("", SALT, False, id="nobodys"),
        pytest.param(owner_of(OTHER_SALT), None, False, id="a-clients-own-salt"),
    ],
)
def test_a_report_is_held_to_the_salt_that_was_sent(owner: str, salt: str | None, expected: bool) -> None:
    """An engine that read no tail names nobody, and without a salt of ours nobody knows."""
    planned = replace(Scene(body=CHAT).plan(), salt=salt)
    report = Report(prefix_tokens=0, suffix_tokens=9, computed_tokens=1, reason=Reason.HIT, owner=owner)

    assert expected is names_another(planned, report)


def test_an_engine_that_reports_nothing_names_nobody() -> None:
    """One without the plugin, for one."""
    assert not names_another(Scene(body=CHAT).plan(), None)
