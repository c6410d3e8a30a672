"""Durations are read as Kubernetes writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("0s", 0, id="zero"),
        pytest.param("90s", 90, id="seconds"),
        pytest.param("10m", 600, id="minutes"),
        pytest.param("1h30m", 5400, id="hours-and-minutes"),
        pytest.param("1h0m5s", 3605, id="all-three"),
        pytest.param("48h", 172_800, id="two-days"),
    ],
)
def test_durations_are_summed(text: str, seconds: int) -> None:
    """Each unit counts."""
    assert seconds == parse_duration(text)


@pytest.mark.parametrize(
    "text", ["", "10", "m", "10 m", "-1s", "1.5h", "5s10m", "1d", "10ms", "1m1m", "٣s", "1m\n", "9999999s"]
)
def test_other_forms_are_refused(text: str) -> None:
    """What is not whole hours, minutes and seconds in their order is an error that shows the form."""
    with pytest.raises(ValueError, match='such as "90s", "10m" or "1h30m"'):
        parse_duration(text)


@given(st.integers(0, 3_000_000_000))
def test_written_durations_read_the_same(seconds: int) -> None:
    """Writing and reading are inverse."""
    assert seconds == parse_duration(format_duration(seconds))


def test_shortest_form_is_written() -> None:
    """Units that are zero are left out."""
    assert ["0s", "1m30s", "1h", "1h5s"] == [format_duration(seconds) for seconds in (0, 90, 3600, 3605)]


def test_negative_duration_is_a_mistake() -> None:
    """No policy can hold one."""
    with pytest.raises(AssertionError, match="not negative"):
        format_duration(-1)
