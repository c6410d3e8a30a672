"""Which tools are the same tool in another form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.tool_form import Label, read_tool


def key(raw: str | bytes) -> str:
    """Return the key of a tool."""
    tool = read_tool(raw if isinstance(raw, bytes) else raw.encode())
    assert tool is not None
    return tool.key


def with_schema(schema: str) -> str:
    """Return a function with these parameters."""
    return f'{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}'


@pytest.mark.parametrize(
    ("one", "two"),
    [
        pytest.param('{"type":"x","name":"y"}', '{"name":"y", "type":"x"}', id="tool"),
        pytest.param(
            '{"function":{"name":"f","description":"d"}}',
            '{"function":{"description":"d","name":"f"}}',
            id="function",
        ),
        pytest.param(
            with_schema('{"type":"object","title":"t"}'),
            with_schema('{"title":"t","type":"object"}'),
            id="schema",
        ),
        pytest.param(
            with_schema('{"required":["a","b"]}'), with_schema('{"required":["b","a"]}'), id="required"
        ),
        pytest.param(
            with_schema('{"properties":{"a":{"type":"string","title":"t"}}}'),
            with_schema('{"properties":{"a":{"title":"t","type":"string"}}}'),
            id="property",
        ),
        pytest.param(
            with_schema('{"anyOf":[{"items":{"type":"string","title":"t"}}]}'),
            with_schema('{"anyOf":[{"items":{"title":"t","type":"string"}}]}'),
            id="nested",
        ),
        pytest.param(
            with_schema('{"$defs":{"a":{},"b":{}}}'),
            with_schema('{"$defs":{"b":{},"a":{}}}'),
            id="definitions",
        ),
        pytest.param('{"name":"\\u00e9"}', '{"name":"é"}', id="escape"),
    ],
)
def test_forms_of_one_tool_have_one_key(one: str, two: str) -> None:
    """The order of members and of `required`, white space and escapes mean nothing."""
    assert key(one) == key(two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        pytest.param('{"properties":{"a":{},"b":{}}}', '{"properties":{"b":{},"a":{}}}', id="properties"),
        pytest.param('{"enum":["a","b"]}', '{"enum":["b","a"]}', id="enum"),
        pytest.param('{"examples":["a","b"]}', '{"examples":["b","a"]}', id="examples"),
        pytest.param('{"oneOf":[{"type":"a"},{}]}', '{"oneOf":[{},{"type":"a"}]}', id="one-of"),
        pytest.param('{"anyOf":[{"type":"a"},{}]}', '{"anyOf":[{},{"type":"a"}]}', id="any-of"),
        pytest.param('{"allOf":[{"type":"a"},{}]}', '{"allOf":[{},{"type":"a"}]}', id="all-of"),
        pytest.param(
            '{"prefixItems":[{"type":"a"},{}]}', '{"prefixItems":[{},{"type":"a"}]}', id="prefix-items"
        ),
        pytest.param('{"default":{"a":1,"b":2}}', '{"default":{"b":2,"a":1}}', id="default"),
        pytest.param('{"const":{"required":["a","b"]}}', '{"const":{"required":["b","a"]}}', id="const"),
        pytest.param('{"x-note":{"a":1,"b":2}}', '{"x-note":{"b":2,"a":1}}', id="unknown-keyword"),
        pytest.param(
            '{"properties":{"required":{"enum":["a","b"]}}}',
            '{"properties":{"required":{"enum":["b","a"]}}}',
            id="property-named-required",
        ),
        pytest.param('{"const":1}', '{"const":1.0}', id="number-spelling"),
        pytest.param('{"const":1}', '{"const":"1"}', id="number-and-string"),
        pytest.param('{"const":2512292042121000001}', '{"const":2512292042121000002}', id="long-integer"),
        pytest.param('{"const":1e400}', '{"const":1e401}', id="beyond-floats"),
        pytest.param('{"required":["a"]}', '{"required":["a","a"]}', id="required-twice"),
        pytest.param('{"required":["a",1]}', '{"required":[1,"a"]}', id="required-with-number"),
        pytest.param('{"const":"é"}', '{"const":"e\\u0301"}', id="unicode-form"),
        pytest.param('{"const":null}', '{"const":false}', id="null"),
        pytest.param("{}", "null", id="nothing"),
    ],
)
def test_other_tools_have_other_keys(one: str, two: str) -> None:
    """Whatever a model or a guided decoder could tell apart counts."""
    assert key(with_schema(one)) != key(with_schema(two))


@pytest.mark.parametrize(
    ("raw", "label", "strict"),
    [
        pytest.param(
            b'{"type":"function","function":{"name":"f"}}', Label("function", "f"), False, id="chat"
        ),
        pytest.param(b'{"type":"function","name":"f"}', Label("function", "f"), False, id="flat"),
        pytest.param(b'{"function":{"name":"f","strict":true}}', Label("", "f"), True, id="strict"),
        pytest.param(b'{"type":"function","strict":true}', Label("function", ""), True, id="strict-flat"),
        pytest.param(b'{"type":1,"function":{"name":2,"strict":1}}', Label("", ""), False, id="odd"),
    ],
)
def test_tool_says_what_it_is(raw: bytes, label: Label, strict: bool) -> None:
    """Type and name are read from where clients put them."""
    tool = read_tool(raw)

    assert tool is not None and (label, strict) == (tool.label, tool.is_strict)


@pytest.mark.parametrize("raw", [b"[]", b"1", b'"x"', b"null"])
def test_what_is_no_object_is_no_tool(raw: bytes) -> None:
    """The engine says what is wrong with it."""
    assert read_tool(raw) is None


NAMES = st.sampled_from(["a", "b", "properties", "required", "enum", "items", "type", "default"])
SCALARS = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["a", "b"])
SCHEMAS = st.recursive(
    st.dictionaries(
        st.sampled_from(["type", "title", "enum", "const"]), SCALARS | st.lists(SCALARS, max_size=2)
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": SCALARS,
            "required": st.lists(NAMES, max_size=3),
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "items": inner,
            "anyOf": st.lists(inner, max_size=2),
            "default": st.dictionaries(NAMES, SCALARS, max_size=2),
        },
    ),
    max_leaves=6,
)
TOOLS = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries({"name": NAMES, "parameters": SCHEMAS})}
)


DATA = ("default", "const", "enum")
"""The generated keywords whose values are data."""


def shuffled(schema: Any, data: st.DataObject) -> Any:
    """Return an equivalent schema: members and `required` in another order, all the way down."""
    other: dict[str, Any] = {}
    for keyword in data.draw(st.permutations(list(schema))):
        value = schema[keyword]
        if keyword == "properties":
            value = {name: shuffled(value[name], data) for name in value}
        elif keyword == "items":
            value = shuffled(value, data)
        elif keyword == "anyOf":
            value = [shuffled(one, data) for one in value]
        elif keyword == "required":
            value = data.draw(st.permutations(value))
        other[keyword] = value
    return other


@given(TOOLS, st.data())
def test_shuffled_tool_has_the_same_key(tool: dict[str, Any], data: st.DataObject) -> None:
    """No order that means nothing reaches the key."""
    parameters = shuffled(tool["function"]["parameters"], data)
    other = {"function": {"parameters": parameters, "name": tool["function"]["name"]}, "type": "function"}

    assert key(json.dumps(tool)) == key(json.dumps(other))


def meaning(value: Any, keyword: str = "", is_data: bool = False) -> Any:
    """Return what a part of a tool means, found in another way than the key is."""
    if isinstance(value, list):
        is_set = keyword == "required" and not is_data
        found = [meaning(one, "", is_data) for one in value]
        return ("set", sorted(found)) if is_set else ("list", found)
    if not isinstance(value, dict):
        return type(value).__name__, value
    is_map = keyword == "properties"
    pairs = [
        (name, meaning(value[name], "" if is_map else name, is_data or (name in DATA and not is_map)))
        for name in value
    ]
    return "object", pairs if is_data or is_map else sorted(pairs, key=lambda pair: pair[0])


@given(TOOLS, TOOLS)
def test_keys_are_equal_only_for_equal_meanings(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Two tools have one key if and only if they mean the same."""
    assert (meaning(one) == meaning(two)) == (key(json.dumps(one)) == key(json.dumps(two)))
