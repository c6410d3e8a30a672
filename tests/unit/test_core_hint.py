"""Gateway and engine understand each other, and nothing else that is sent in their place."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.errors import HintError
from sternpost_core.hint import (
    SCAFFOLD_LENGTH_MAX,
    TOKENS_MAX,
    Hint,
    Mode,
    Operation,
    Reason,
    Report,
    parse_hint,
    parse_report,
)

counts = st.integers(0, TOKENS_MAX)
hints = st.builds(
    Hint,
    op=st.sampled_from(Operation),
    tail_tokens=counts,
    prefix_tokens=counts,
    epoch=counts,
    mode=st.sampled_from(Mode),
    anchor=counts,
    head=counts,
    last=counts,
    match=counts,
    kind=st.text(max_size=8),
    scaffold=st.text("0123456789abcdef", max_size=SCAFFOLD_LENGTH_MAX),
)
reports = st.builds(
    Report,
    prefix_tokens=counts,
    suffix_tokens=counts,
    computed_tokens=counts,
    reason=st.sampled_from(Reason),
    engine=st.text(max_size=8),
    owner=st.text("0123456789abcdef", max_size=16),
)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)

HINT: dict[str, Any] = {"v": 1, "op": "read", "tail_tokens": 1200, "epoch": 7}
REPORT: dict[str, Any] = {
    "v": 1,
    "prefix_tokens": 1,
    "suffix_tokens": 2,
    "computed_tokens": 3,
    "reason": "hit",
    "engine": "e",
    "owner": "0f",
}


@given(hints)
def test_hint_arrives_as_it_was_sent(hint: Hint) -> None:
    """Through JSON and back nothing changes."""
    assert hint == parse_hint(json.loads(json.dumps(hint.to_mapping())))


@given(reports)
def test_report_arrives_as_it_was_sent(report: Report) -> None:
    """Through JSON and back nothing changes."""
    assert report == parse_report(json.loads(json.dumps(report.to_mapping())))


def test_missing_keys_take_their_defaults_and_unknown_ones_are_ignored() -> None:
    """Neighbouring releases understand each other."""
    expected = Hint(op=Operation.READ, tail_tokens=1200, epoch=7)

    assert expected == parse_hint({**HINT, "colour": "red"})
    assert Report(prefix_tokens=1, suffix_tokens=2, computed_tokens=3, reason=Reason.HIT) == parse_report(
        {**{key: value for key, value in REPORT.items() if key not in ("engine", "owner")}, "colour": 1}
    )


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        pytest.param("v", 2, "2", id="other-version"),
        pytest.param("v", True, "true", id="version-as-boolean"),
        pytest.param("v", None, "null", id="no-version"),
        pytest.param("op", "write", "'write'", id="operation"),
        pytest.param("op", ["read"], "a list of 1", id="operation-of-wrong-type"),
        pytest.param("mode", "Rotate", "'Rotate'", id="mode"),
        pytest.param("tail_tokens", -1, "-1", id="negative"),
        pytest.param("tail_tokens", TOKENS_MAX + 1, str(TOKENS_MAX + 1), id="too-large"),
        pytest.param("tail_tokens", 10**5000, "a longer integer", id="too-large-to-print"),
        pytest.param("last", True, "true", id="boolean"),
        pytest.param("head", 1.0, "1.0", id="fraction"),
        pytest.param("scaffold", "0" * 65, "'" + "0" * 65 + "'", id="long-scaffold"),
        pytest.param("kind", 3, "3", id="kind-of-wrong-type"),
    ],
)
def test_wrong_hint_is_refused(key: str, value: object, found: str) -> None:
    """The one fault names the key and its value."""
    with pytest.raises(HintError) as caught:
        parse_hint({**HINT, key: value})

    assert [(f"sternpost.{key}", found)] == [(fault.path, fault.value) for fault in caught.value.faults]


def test_all_faults_of_a_hint_are_named() -> None:
    """An empty object lacks both version and operation."""
    with pytest.raises(HintError) as caught:
        parse_hint({})

    assert ["sternpost.v", "sternpost.op"] == [fault.path for fault in caught.value.faults]


@given(json_like)
def test_anything_is_a_hint_or_refused(mapping: object) -> None:
    """Nothing that a client can send makes the reader fail in another way."""
    try:
        hint = parse_hint(mapping)
    except HintError as error:
        assert error.faults
    else:
        assert hint == parse_hint(hint.to_mapping())


@given(st.sampled_from(sorted(HINT)), json_like)
def test_any_value_of_a_hint_is_read_or_refused(key: str, value: object) -> None:
    """So it is for each single key."""
    try:
        parse_hint({**HINT, key: value})
    except HintError as error:
        assert [f"sternpost.{key}"] == [fault.path for fault in error.faults]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("v", 2, id="other-version"),
        pytest.param("v", True, id="version-as-boolean"),
        pytest.param("reason", "bored", id="reason"),
        pytest.param("reason", ["hit"], id="reason-of-wrong-type"),
        pytest.param("prefix_tokens", -1, id="negative"),
        pytest.param("computed_tokens", "3", id="count-as-text"),
    ],
)
def test_report_that_is_not_understood_is_none(key: str, value: object) -> None:
    """The gateway goes on without it."""
    assert None is parse_report({**REPORT, key: value})


@given(json_like, st.sampled_from(sorted(REPORT)))
def test_any_report_is_read_or_none(value: object, key: str) -> None:
    """No answer of an engine makes the reader fail."""
    parse_report(value)
    parse_report({**REPORT, key: value})


@pytest.mark.parametrize("name", ["engine", "owner"])
def test_name_that_is_no_text_is_unknown(name: str) -> None:
    """The counts are believed all the same."""
    report = parse_report({**REPORT, name: 3})

    assert report is not None
    assert "" == getattr(report, name)
