"""Buckets of sessions: who gets a policy's behaviour while it is rolled out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.rollout import (
    BUCKETS,
    FOR_ALL,
    NOT_BEGUN,
    Arm,
    Rollout,
    arm_of,
    bucket_of,
    reads,
    rollout_of,
)

WEIGHTS = st.integers(0, 100)
PLACES = st.integers(0, BUCKETS - 1)


def test_a_sessions_bucket_never_changes() -> None:
    """These values are what every gateway of every release must find."""
    assert [9138, 3656, 7364] == [
        bucket_of("agents/support", b"one"),
        bucket_of("agents/support", b"two"),
        bucket_of("agents/other", b"one"),
    ]


def test_buckets_are_of_equal_size() -> None:
    """A tenth of the sessions is a tenth of the buckets, within what chance allows."""
    found = sum(bucket_of("p", str(n).encode()) < BUCKETS // 10 for n in range(20_000))

    assert 1_800 < found < 2_200


@pytest.mark.parametrize(
    ("bucket", "weight", "expected"),
    [
        (0, 0, Arm.REST),
        (0, 1, Arm.CANARY),
        (99, 1, Arm.CANARY),
        (100, 1, Arm.REST),
        (9_899, 1, Arm.REST),
        (9_900, 1, Arm.CONTROL),
        (4_999, 50, Arm.CANARY),
        (5_000, 50, Arm.CONTROL),
        (6_000, 60, Arm.CONTROL),
        (9_999, 100, Arm.CANARY),
    ],
)
def test_the_canary_grows_from_one_end_and_the_control_from_the_other(
    bucket: int, weight: int, expected: Arm
) -> None:
    """Both are of the weight's size until they meet."""
    assert expected is arm_of(bucket, weight)


@given(bucket=PLACES, weights=st.tuples(WEIGHTS, WEIGHTS))
def test_nobody_leaves_the_canary_while_it_grows(bucket: int, weights: tuple[int, int]) -> None:
    """A session that got the behaviour keeps it at every larger weight."""
    smaller, larger = sorted(weights)

    assert arm_of(bucket, smaller) is not Arm.CANARY or arm_of(bucket, larger) is Arm.CANARY


@given(bucket=PLACES, weight=WEIGHTS, read_weight=WEIGHTS)
def test_only_the_canary_reads(bucket: int, weight: int, read_weight: int) -> None:
    """Who keeps its bytes has no tail to read."""
    assert not reads(bucket, Rollout(weight, read_weight)) or arm_of(bucket, weight) is Arm.CANARY


@pytest.mark.parametrize(
    ("status", "missing", "expected"),
    [
        pytest.param(None, FOR_ALL, FOR_ALL, id="no status, nobody decides"),
        pytest.param(None, NOT_BEGUN, NOT_BEGUN, id="no status yet"),
        pytest.param({"epoch": 3}, FOR_ALL, Rollout(100, 100, 3), id="epoch alone"),
        pytest.param({"weight": 10, "readWeight": 5, "epoch": 2}, FOR_ALL, Rollout(10, 5, 2), id="all"),
        pytest.param({"weight": 10}, FOR_ALL, Rollout(10, 10), id="one weight"),
        pytest.param({"weight": 10, "readWeight": 50}, FOR_ALL, Rollout(10, 10), id="too many reads"),
        pytest.param({"weight": 101}, FOR_ALL, Rollout(0, 0), id="out of range"),
        pytest.param({"weight": "10"}, FOR_ALL, Rollout(0, 0), id="text"),
        pytest.param({"weight": True}, FOR_ALL, Rollout(0, 0), id="boolean"),
        pytest.param({"weight": 10, "epoch": -1}, FOR_ALL, Rollout(10, 10), id="epoch below 0"),
        pytest.param("10", NOT_BEGUN, NOT_BEGUN, id="no object"),
    ],
)
def test_what_a_status_does_not_say_clearly_is_not_done(
    status: Any, missing: Rollout, expected: Rollout
) -> None:
    """A weight that cannot be understood is none."""
    assert expected == rollout_of(status, missing)
