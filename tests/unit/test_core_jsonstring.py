"""Characters of a string and their bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.jsonstring import byte_offsets

TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20) | st.text(
    alphabet=st.sampled_from('\\"/\n\t\0éa😀u0'), max_size=20
)


@given(TEXTS, st.booleans(), st.data())
def test_offsets_cut_a_string_where_its_characters_are_cut(
    text: str, ascii_only: bool, data: st.DataObject
) -> None:
    """The bytes between two offsets decode to the characters between them, however they are written."""
    raw = json.dumps(text, ensure_ascii=ascii_only).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    offsets = byte_offsets(raw, cuts)

    pieces = [raw[start:end] for start, end in zip([1, *offsets], [*offsets, len(raw) - 1], strict=True)]
    expected = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert expected == [json.loads(b'"' + piece + b'"') for piece in pieces]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(b'"\\/a"', [1, 3, 4], id="slash"),
        pytest.param(b'"\\u000aa"', [1, 7, 8], id="line-break-by-number"),
        pytest.param(b'"\\ud83d\\ude00a"', [1, 13, 14], id="surrogates"),
        pytest.param('"😀a"'.encode(), [1, 5, 6], id="utf-8"),
        pytest.param(b'"\\\\a"', [1, 3, 4], id="backslash"),
    ],
)
def test_every_way_to_write_a_character_counts_once(raw: bytes, expected: list[int]) -> None:
    """Escapes that Python itself would not write are read, too."""
    assert expected == byte_offsets(raw, [0, 1, 2])
