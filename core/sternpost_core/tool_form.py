"""
When two tools, as JSON, are the same tool in another form.

Equal but for the order of an object's members or of `required`, they mean the same to every model and every
guided decoder. Everything else counts: the order of `properties` (arguments are generated in it), of every
other list, the spelling of numbers, and all of what stands where a schema holds data (`default`, `const`,
`enum`, `examples`) or a keyword that is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sternpost_core.content import ContentId, content_id

SCHEMAS: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Keywords of a schema whose value is a schema; that of `items` may be a list of them."""

SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Keywords whose value is a list of schemas, in an order that counts."""

ORDERED_SCHEMA_MAPS: Final = frozenset({"properties", "patternProperties"})
"""Keywords whose value maps names to schemas, in an order that counts."""

SCHEMA_MAPS: Final = frozenset({"$defs", "definitions", "dependentSchemas"})
"""Keywords whose value maps names to schemas, in an order that does not count."""

FUNCTION: Final = "function"
"""The type of a tool that is a function, and where chats keep what describes it."""

REQUIRED: Final = "required"
"""The keyword whose value is a set of names."""


class _Number(str):
    """A number as it is spelled."""

    __slots__ = ()


class Label(NamedTuple):
    """What a tool is called; empty where it does not say."""

    type: str
    name: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a request; `key` is equal for two tools if and only if they have the same form."""

    label: Label
    key: ContentId
    is_strict: bool


def read_tool(raw: bytes) -> Tool | None:
    """Return what counts about a tool, checked JSON; None if it is no object."""
    tool = json.loads(raw, parse_int=_Number, parse_float=_Number)
    if not isinstance(tool, dict):
        return None
    function = tool.get(FUNCTION)
    named = function if isinstance(function, dict) else tool
    return Tool(
        label=Label(_text(tool.get("type")), _text(named.get("name"))),
        key=content_id("tool", [("form", _tool(tool).encode())]),
        is_strict=named.get("strict") is True or tool.get("strict") is True,
    )


def _text(value: object) -> str:
    return value if type(value) is str else ""


def _tool(value: Any) -> str:
    if value.get("type") == FUNCTION and FUNCTION not in value:
        # A response's tool has the members of its function itself.
        return _function(value)
    return _object(value, lambda name: _function if name == FUNCTION else _data)


def _function(value: Any) -> str:
    return _object(value, lambda name: _schema if name == "parameters" else _data)


def _schema(value: Any) -> str:
    return _object(value, _keyword)


def _keyword(name: str) -> Callable[[Any], str]:
    """Return how the value of a schema's keyword is written."""
    if name in SCHEMAS or name in SCHEMA_LISTS:
        return _schemas
    if name in ORDERED_SCHEMA_MAPS:
        return _ordered_schema_map
    if name in SCHEMA_MAPS:
        return _schema_map
    return _names if name == REQUIRED else _data


def _schemas(value: Any) -> str:
    return _list(value, _schema) if isinstance(value, list) else _schema(value)


def _schema_map(value: Any) -> str:
    return _object(value, lambda _: _schema)


def _ordered_schema_map(value: Any) -> str:
    if not isinstance(value, dict):
        return _data(value)
    return _members(value, lambda _: _schema)


def _names(value: Any) -> str:
    is_set = isinstance(value, list) and all(type(name) is str for name in value)
    return _data(sorted(value) if is_set else value)


def _object(value: Any, write: Callable[[str], Callable[[Any], str]]) -> str:
    """Write an object with its members by name; anything else is data."""
    if not isinstance(value, dict):
        return _data(value)
    return _members({name: value[name] for name in sorted(value)}, write)


def _data(value: Any) -> str:
    """Write a value as it is; a number stays as it is spelled, so `1` and `1.0` differ."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return _members(value, lambda _: _data)
    return _list(value, _data) if isinstance(value, list) else json.dumps(value)


def _list(value: list[Any], write: Callable[[Any], str]) -> str:
    return "[" + ",".join(write(element) for element in value) + "]"


def _members(value: Mapping[str, Any], write: Callable[[str], Callable[[Any], str]]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{write(name)(inner)}" for name, inner in value.items()) + "}"
