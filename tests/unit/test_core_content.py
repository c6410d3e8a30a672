"""Content ids are the same everywhere, and different for different content."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.content import ContentId, content_id, short

Fields = list[tuple[str, bytes]]

GOLDEN = {
    "nothing": ("tail", [], "31ef529c67f779440ccdbfba88c72af89d1af33dd19006bb32e1d306046cb44f"),
    "one-field": (
        "tail",
        [("role", b"system")],
        "717617b12692f9ad9a69191e591a694cbb6754098e0a8f22886f50f9e96b6189",
    ),
    "bytes": (
        "prefix",
        [("tools", b"\x00\xff"), ("system", "für".encode())],
        "63e36e9366989e2e5c5faba4c4eaf3a3cfd39dd70433775f934e8601c0f4786b",
    ),
}

fields = st.lists(
    st.tuples(st.text(st.characters(codec="utf-8"), max_size=8), st.binary(max_size=8)), max_size=4
)


@pytest.mark.parametrize(("kind", "content", "expected"), GOLDEN.values(), ids=GOLDEN.keys())
def test_ids_never_change(kind: str, content: Fields, expected: str) -> None:
    """The golden ids hold for this encoding's version, whatever is changed around it."""
    assert expected == content_id(kind, content)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param([("a", b"bc")], [("ab", b"c")], id="tag-and-value"),
        pytest.param([("a", b"b"), ("c", b"d")], [("a", b"bcd")], id="fields-run-together"),
        pytest.param([("a", b"")], [], id="empty-and-missing"),
        pytest.param([("a", b"1"), ("b", b"2")], [("b", b"2"), ("a", b"1")], id="order"),
        pytest.param([("a", b"\0")], [("a", b"")], id="nul"),
    ],
)
def test_different_fields_have_different_ids(first: Fields, second: Fields) -> None:
    """No two lists of fields feed the hash the same bytes."""
    assert content_id("tail", first) != content_id("tail", second)


def test_kinds_have_different_ids() -> None:
    """A prefix and a tail of the same bytes are two segments."""
    assert content_id("prefix", [("a", b"b")]) != content_id("tail", [("a", b"b")])


@given(fields, fields)
def test_ids_are_equal_only_for_equal_fields(first: Fields, second: Fields) -> None:
    """Equal content, equal id, and the other way round."""
    assert (first == second) == (content_id("tail", first) == content_id("tail", second))


@pytest.mark.parametrize("seed", ["0", "1", "4242", "random"])
def test_ids_do_not_depend_on_the_hash_seed(seed: str) -> None:
    """Another process with another seed finds the same id."""
    program = (
        "from sternpost_core.content import content_id;"
        "print(content_id('tail', [('role', b'system'), ('content', b'be brief')]))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}

    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()

    assert content_id("tail", [("role", b"system"), ("content", b"be brief")]) == found


def test_short_is_for_people() -> None:
    """Twelve digits, the first ones."""
    assert "0123456789ab" == short(ContentId("0123456789ab" + "f" * 52))
