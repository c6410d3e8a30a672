"""What a status says about requests, and what a missing one means."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.progress import Progress, read_progress

READ: dict[str, tuple[Any, Any, Progress]] = {
    "never-looked-at": ({}, None, Progress()),
    "canary": ({"status": {"weight": 5, "readWeight": 5, "epoch": 2}}, None, Progress(5, 5, 2)),
    "aborted": ({"status": {"weight": 25, "readWeight": 0}}, None, Progress(25, 0, 0)),
    "without-read-weight": ({"status": {"weight": 25}}, None, Progress(25, 25, 0)),
    "epochs-add-up": ({"status": {"epoch": 2}}, {"status": {"epoch": 3}}, Progress(0, 0, 5)),
    "of-wrong-types": ({"status": {"weight": "5", "epoch": True}}, {"status": 7}, Progress()),
    "out-of-range": ({"status": {"weight": 500, "readWeight": -1}}, None, Progress(100, 0, 0)),
}


@pytest.mark.parametrize(("policy", "pool", "expected"), READ.values(), ids=READ.keys())
def test_progress_is_read(policy: Any, pool: Any, expected: Progress) -> None:
    """What is missing or not in its form is nothing."""
    assert expected == read_progress(policy, pool)


@given(st.integers(0, 100), st.integers(0, 100))
def test_weights_are_shares_of_the_buckets(weight: int, read_weight: int) -> None:
    """Of 100 buckets so many are written, and none reads that is not written."""
    progress = Progress(weight, read_weight)

    assert weight == sum(progress.writes(bucket) for bucket in range(100))
    assert min(weight, read_weight) == sum(progress.reads(bucket) for bucket in range(100))
    assert all(progress.writes(bucket) for bucket in range(100) if progress.reads(bucket))
