"""The numbers that flags take: what is read, and how anything else is refused."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.flag_numbers import (
    PORT_MAX,
    above_zero,
    busy_percent,
    integer,
    percent,
    port_number,
    port_or_zero,
    positive,
    scale,
    seconds,
    share,
    zero_or_more,
)

Read = Callable[[str], float]


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        pytest.param(integer(2, 4), "2", 2, id="least"),
        pytest.param(integer(-4, 4), "-4", -4, id="below-zero"),
        pytest.param(positive, "1", 1, id="positive"),
        pytest.param(port_number, str(PORT_MAX), PORT_MAX, id="last-port"),
        pytest.param(port_or_zero, "0", 0, id="no-port"),
        pytest.param(seconds, "0.5", 0.5, id="seconds"),
        pytest.param(share, "1", 1.0, id="share"),
        pytest.param(scale, "0.25", 0.25, id="scale"),
        pytest.param(percent, "100", 100.0, id="percent"),
    ],
)
def test_a_number_within_its_bounds_is_read(read: Read, text: str, expected: float) -> None:
    """Bounds belong to what is allowed."""
    assert expected == read(text)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        pytest.param(integer(2, 4), "5", "5 is not allowed; allowed: an integer from 2 to 4", id="over"),
        pytest.param(
            integer(2, 4), "", "nothing is not allowed; allowed: an integer from 2 to 4", id="empty"
        ),
        pytest.param(integer(2, 4), "3.0", "3.0 is not allowed; allowed: an integer from 2 to 4", id="point"),
        pytest.param(
            integer(0, 4), "\u0663", "allowed: an integer from 0 to 4", id="digits-of-another-script"
        ),
        pytest.param(integer(0, 4), "0_3", "0_3 is not allowed", id="underscore"),
        pytest.param(integer(0, 4), " 3", " 3 is not allowed", id="space"),
        pytest.param(positive, "0", "0 is not allowed; allowed: an integer, 1 or more", id="zero"),
        pytest.param(positive, "9" * 5000, "allowed: an integer, 1 or more", id="more-digits-than-are-read"),
        pytest.param(
            port_number, "0", "0 is not allowed; allowed: an integer from 1 to 65535", id="port-zero"
        ),
        pytest.param(port_or_zero, "-1", "-1 is not allowed; allowed: an integer from 0 to 65535", id="port"),
        pytest.param(seconds, "inf", "inf is not allowed; allowed: 0 or more seconds", id="forever"),
        pytest.param(seconds, "nan", "nan is not allowed; allowed: 0 or more seconds", id="no-number"),
        pytest.param(zero_or_more, "-1", "-1 is not allowed; allowed: 0 or more", id="negative"),
        pytest.param(above_zero, "0", "0 is not allowed; allowed: above 0", id="nothing"),
        pytest.param(
            busy_percent, "100", "100 is not allowed; allowed: above 0, under 100", id="always-busy"
        ),
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(read: Read, text: str, message: str) -> None:
    """In the words that argparse puts behind the flag."""
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(message)):
        read(text)


@given(st.text(max_size=8))
def test_whatever_stands_there_is_read_or_refused(text: str) -> None:
    """Nothing else is raised, which argparse would show as a trace or in other words."""
    for read in (positive, port_or_zero, seconds, share):
        try:
            assert read(text) >= 0
        except argparse.ArgumentTypeError as error:
            assert "is not allowed; allowed: " in str(error)
