"""Wrong values are shown in a few safe words."""

import datetime

import pytest

from sternpost_core.text import DESCRIPTION_LENGTH_MAX, describe, one_of, shorten


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, "null", id="null"),
        pytest.param(True, "true", id="true"),
        pytest.param("None", "'None'", id="string"),
        pytest.param("a\nb", "'a\\nb'", id="control-character"),
        pytest.param(3, "3", id="integer"),
        pytest.param(0.5, "0.5", id="number"),
        pytest.param(10**5000, "a longer integer", id="integer-that-cannot-be-printed"),
        pytest.param({"a": 1}, "an object", id="object"),
        pytest.param([1], "a list of 1", id="list"),
        pytest.param([], "an empty list", id="empty-list"),
        pytest.param(datetime.date(2026, 1, 2), "a value of type date", id="date"),
    ],
)
def test_values_are_described(value: object, expected: str) -> None:
    """Scalars are shown, everything else is named by its type."""
    assert expected == describe(value)


def test_long_text_is_cut() -> None:
    """At the limit it is whole, past it it ends in dots at the limit."""
    assert "x" * DESCRIPTION_LENGTH_MAX == shorten("x" * DESCRIPTION_LENGTH_MAX)
    assert "x" * (DESCRIPTION_LENGTH_MAX - 3) + "..." == shorten("x" * (DESCRIPTION_LENGTH_MAX + 1))


def test_choices_are_listed() -> None:
    """Whatever they are made of."""
    assert "a, 1" == one_of(["a", 1])
