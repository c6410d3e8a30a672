"""Edits change what they name and leave every other byte as it came."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.jsonspan import (
    Edit,
    apply,
    edit_members,
    edit_object,
    elements,
    in_order,
    members,
    move_element_before,
    move_element_to_end,
    remove_member,
    scan,
    set_member,
)

keys = st.sampled_from(["a", "b", "c", "d", "é", '"', "\\"])
small = st.integers(0, 9) | st.sampled_from(["", "x", ",", "}", 'q"'])
values = small | st.lists(small, max_size=2) | st.dictionaries(keys, small, max_size=2)
indents = st.sampled_from([None, 0, 2])


def edited(body: bytes, new: dict[str, bytes], remove: tuple[str, ...]) -> bytes:
    """Return the body after setting and removing top-level members."""
    return apply(body, edit_members(scan(body), new, remove))


EDITS: dict[str, tuple[bytes, dict[str, bytes], tuple[str, ...], bytes]] = {
    "nothing": (b'{ "a" : 1 }', {}, (), b'{ "a" : 1 }'),
    "replace": (b'{"a": 1.0 ,"b":2}', {"a": b"[]"}, (), b'{"a": [] ,"b":2}'),
    "append": (b'{"a":1}', {"b": b"2"}, (), b'{"a":1,"b":2}'),
    "append-before-white-space": (b'{"a":1\n}\n', {"b": b"2"}, (), b'{"a":1,"b":2\n}\n'),
    "append-two": (b'{"a":1}', {"b": b"2", "c": b"3"}, (), b'{"a":1,"b":2,"c":3}'),
    "append-to-empty": (b"{}", {"b": b"2"}, (), b'{"b":2}'),
    "append-to-blank": (b"{ \n}", {"b": b"2", "c": b"3"}, (), b'{"b":2,"c":3 \n}'),
    "append-a-key-that-needs-escapes": (b"{}", {'é"\n': b"2"}, (), '{"é\\"\\n":2}'.encode()),
    "remove-first": (b'{"a":1, "b":2,"c":3}', {}, ("a",), b'{"b":2,"c":3}'),
    "remove-middle": (b'{"a":1, "b":2,"c":3}', {}, ("b",), b'{"a":1,"c":3}'),
    "remove-last": (b'{"a":1, "b":2 ,"c":3 }', {}, ("c",), b'{"a":1, "b":2 }'),
    "remove-only": (b'{ "a":1 }', {}, ("a",), b"{  }"),
    "remove-all": (b'{"a":1,"b":2,"c":3}', {}, ("a", "b", "c"), b"{}"),
    "remove-first-two": (b'{"a":1,"b":2,"c":3}', {}, ("b", "a"), b'{"c":3}'),
    "remove-last-two": (b'{"a":1,"b":2,"c":3}', {}, ("b", "c"), b'{"a":1}'),
    "remove-what-is-not-there": (b'{"a":1}', {}, ("b",), b'{"a":1}'),
    "remove-last-and-append": (b'{"a":1,"b":2}', {"c": b"3"}, ("b",), b'{"a":1,"c":3}'),
    "remove-all-and-append": (b'{"a":1,"b":2}', {"c": b"3", "d": b"4"}, ("a", "b"), b'{"c":3,"d":4}'),
    "all-three": (b'{"a":1,"b":2,"c":3}', {"b": b"0", "d": b"4"}, ("a", "c"), b'{"b":0,"d":4}'),
}


@pytest.mark.parametrize(("body", "new", "remove", "expected"), EDITS.values(), ids=EDITS.keys())
def test_commas_and_white_space_are_right(
    body: bytes, new: dict[str, bytes], remove: tuple[str, ...], expected: bytes
) -> None:
    """Exactly one comma goes or comes with each member; everything else stays."""
    assert expected == edited(body, new, remove)


@given(st.dictionaries(keys, values), st.dictionaries(keys, values), st.sets(keys), indents)
def test_edited_body_has_the_intended_value(
    body: dict[str, Any], new: dict[str, Any], remove: set[str], indent: int | None
) -> None:
    """Setting and removing on bytes is what it is on a dictionary, in the same order."""
    remove -= new.keys()
    raw = json.dumps(body, indent=indent, ensure_ascii=False).encode()

    changed = edited(raw, {key: json.dumps(one).encode() for key, one in new.items()}, tuple(remove))

    expected = {key: one for key, one in {**body, **new}.items() if key not in remove}
    assert list(expected.items()) == list(json.loads(changed).items())
    scan(changed)


@given(st.dictionaries(keys, values, min_size=1), st.sets(keys), indents)
def test_untouched_members_keep_their_bytes(
    body: dict[str, Any], remove: set[str], indent: int | None
) -> None:
    """Each member that stays is found byte for byte afterwards."""
    before = scan(json.dumps(body, indent=indent).encode())
    after = scan(apply(before.body, edit_members(before, {}, remove)))

    for key, member in after.members.items():
        old = before.members[key]
        assert (
            before.body[old.key_span.start : old.value_span.end]
            == after.body[member.key_span.start : member.value_span.end]
        )


def test_one_member_is_set_or_removed_by_one_edit() -> None:
    """The helpers for one key are the general ones."""
    document = scan(b'{"a":1,"b":2}')

    assert b'{"a":3,"b":2}' == apply(document.body, [set_member(document, "a", b"3")])
    assert b'{"a":1,"b":2,"c":3}' == apply(document.body, [set_member(document, "c", b"3")])
    assert b'{"b":2}' == apply(document.body, [remove_member(document, "a")])


def test_nested_object_is_edited_in_place() -> None:
    """An object below the top level is edited like the top level."""
    document = scan(b'{"stream_options": {"x": 1}, "n": 1}')
    span = document.members["stream_options"].value_span

    edits = edit_object(document, span, members(document, span), {"include_usage": b"true"}, ["x"])

    assert b'{"stream_options": {"include_usage":true}, "n": 1}' == apply(document.body, edits)


def test_contradictions_are_mistakes() -> None:
    """A key is not set and removed at once, and only what is there can be removed alone."""
    document = scan(b'{"a":1}')

    with pytest.raises(AssertionError, match="not both"):
        edit_members(document, {"a": b"1"}, ["a"])
    with pytest.raises(AssertionError, match="that is there"):
        remove_member(document, "b")


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param([Edit(2, 3, b""), Edit(0, 1, b"")], id="out-of-order"),
        pytest.param([Edit(0, 2, b""), Edit(1, 3, b"")], id="overlapping"),
        pytest.param([Edit(2, 1, b"")], id="backwards"),
        pytest.param([Edit(0, 9, b"")], id="beyond-the-end"),
    ],
)
def test_edits_that_cannot_be_made_are_mistakes(edits: list[Edit]) -> None:
    """Applying them would lose bytes in silence."""
    with pytest.raises(AssertionError, match="in order and do not overlap"):
        apply(b"{ }", edits)


def test_no_edit_is_no_copy() -> None:
    """A body that is not changed is passed on as the very object that came."""
    body = b'{"a":1}'

    assert apply(body, []) is body


def test_edits_of_several_helpers_merge() -> None:
    """Edits at one place keep the order of their groups."""
    document = scan(b'{"m":[1,2],"x":3}')
    span = document.members["m"].value_span

    edits = in_order(edit_members(document, {"y": b"4"}, ["x"]), move_element_to_end(document, span, 0))

    assert b'{"m":[2,1],"y":4}' == apply(document.body, edits)
    assert [Edit(1, 1, b"a"), Edit(1, 1, b"b")] == in_order([Edit(1, 1, b"a")], [Edit(1, 1, b"b")])


@pytest.mark.parametrize(
    ("body", "index", "expected"),
    [
        pytest.param(b'{"m":[1, 2 ,3]}', 0, b'{"m":[2 ,3, 1]}', id="first"),
        pytest.param(b'{"m":[1, 2 ,3]}', 1, b'{"m":[1, 3 ,2]}', id="middle"),
        pytest.param(b'{"m":[1, 2 ,3]}', 2, b'{"m":[1, 2 ,3]}', id="last-already"),
        pytest.param(b'{"m":[ {"a": 1.0},\n  2\n]}', 0, b'{"m":[ 2,\n  {"a": 1.0}\n]}', id="verbatim"),
    ],
)
def test_element_moves_to_the_end(body: bytes, index: int, expected: bytes) -> None:
    """The element's bytes and its separator move; no byte comes or goes."""
    document = scan(body)

    assert expected == apply(body, move_element_to_end(document, document.members["m"].value_span, index))


@given(st.lists(values, min_size=1, max_size=5), st.data(), indents)
def test_moving_is_what_it_is_on_a_list(array: list[Any], data: st.DataObject, indent: int | None) -> None:
    """The moved element is last, the others keep their order and bytes, and the length stays."""
    index = data.draw(st.integers(0, len(array) - 1))
    body = json.dumps({"m": array}, indent=indent).encode()
    document = scan(body)
    spans = elements(document, document.members["m"].value_span)

    moved = scan(apply(body, move_element_to_end(document, document.members["m"].value_span, index)))

    pieces = [body[span.start : span.end] for span in spans]
    found = [moved.body[s.start : s.end] for s in elements(moved, moved.members["m"].value_span)]
    assert [*pieces[:index], *pieces[index + 1 :], pieces[index]] == found
    assert len(body) == len(moved.body)


def test_only_an_element_can_move() -> None:
    """An index that is not there is a mistake."""
    document = scan(b'{"m":[1]}')

    with pytest.raises(AssertionError, match="no such element"):
        move_element_to_end(document, document.members["m"].value_span, 1)


@pytest.mark.parametrize(
    ("body", "index", "target", "expected"),
    [
        pytest.param(b'{"m":[1, 2 ,3]}', 2, 0, b'{"m":[3 ,1, 2]}', id="last-to-first"),
        pytest.param(b'{"m":[1, 2 ,3]}', 2, 1, b'{"m":[1, 3 ,2]}', id="neighbours"),
        pytest.param(b'{"m":[1, 2 ,3, 4]}', 2, 1, b'{"m":[1, 3 ,2, 4]}', id="middle"),
        pytest.param(b'{"m":[1, 2 ,3]}', 1, 1, b'{"m":[1, 2 ,3]}', id="there-already"),
        pytest.param(b'{"m":[ 2,\n  {"a": 1.0}\n]}', 1, 0, b'{"m":[ {"a": 1.0},\n  2\n]}', id="verbatim"),
    ],
)
def test_element_moves_before_another(body: bytes, index: int, target: int, expected: bytes) -> None:
    """The element's bytes and its separator move; no byte comes or goes."""
    document = scan(body)
    span = document.members["m"].value_span

    assert expected == apply(body, move_element_before(document, span, index, target))


@given(st.lists(values, min_size=1, max_size=5), st.data(), indents)
def test_moving_before_is_what_it_is_on_a_list(
    array: list[Any], data: st.DataObject, indent: int | None
) -> None:
    """The moved element stands before the other, all keep their bytes, and the length stays."""
    index = data.draw(st.integers(0, len(array) - 1))
    target = data.draw(st.integers(0, index))
    body = json.dumps({"m": array}, indent=indent).encode()
    document = scan(body)
    span = document.members["m"].value_span

    moved = scan(apply(body, move_element_before(document, span, index, target)))

    pieces = [body[at.start : at.end] for at in elements(document, span)]
    pieces.insert(target, pieces.pop(index))
    assert pieces == [moved.body[s.start : s.end] for s in elements(moved, moved.members["m"].value_span)]
    assert len(body) == len(moved.body)


@pytest.mark.parametrize(("index", "target"), [(2, 0), (0, 1), (1, -1)])
def test_only_an_element_can_move_forward(index: int, target: int) -> None:
    """Indexes that are not there, or a target behind the element, are a mistake."""
    document = scan(b'{"m":[1,2]}')

    with pytest.raises(AssertionError, match="no such element"):
        move_element_before(document, document.members["m"].value_span, index, target)
