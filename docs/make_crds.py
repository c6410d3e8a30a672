"""Makes `crds.md`, the reference of the custom resources, from the schemas: `python -m docs.make_crds`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
CRDS: Final = ROOT / "crds"
REFERENCE: Final = ROOT / "docs" / "crds.md"

HEAD: Final = """\
# Custom resources

Made from `crds/` by `make docs`; do not edit it. `kubectl explain cachepolicy.spec` says the same.
A field with a default may be left out; a **bold** one may not.
"""

LIMITS: Final = (
    ("minimum", "from {}"),
    ("maximum", "to {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} elements"),
    ("maxItems", "at most {} elements"),
    ("maxProperties", "at most {} keys"),
)
"""How the limits of a schema are said."""

Node = Mapping[str, Any]


def render(crds: list[Node]) -> str:
    """Return the whole reference."""
    return "\n".join([HEAD, *(line for crd in crds for line in _kind(crd))])


def load() -> list[Node]:
    """Return the schemas, by name of the kind."""
    loaded = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in CRDS.glob("*.yaml")]
    return sorted(loaded, key=lambda crd: str(crd["spec"]["names"]["kind"]))


def _kind(crd: Node) -> Iterator[str]:
    names, (version,) = crd["spec"]["names"], crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    scope = crd["spec"]["scope"].lower()
    yield f"## {names['kind']}\n"
    yield f"`{crd['spec']['group']}/{version['name']}`, {scope}, short name `{names['shortNames'][0]}`. "
    yield f"{schema['description']}\n"
    for part in ("spec", "status"):
        yield f"### {names['kind']}: {part}\n"
        yield f"{schema['properties'][part]['description']}\n"
        yield "| field | type | what it is |"
        yield "|---|---|---|"
        yield from _rows(schema["properties"][part], "")
        yield ""
        yield from _rules(schema["properties"][part])


def _rows(schema: Node, path: str) -> Iterator[str]:
    for name, below in schema.get("properties", {}).items():
        at = f"{path}.{name}".lstrip(".")
        shown = f"**`{at}`**" if name in schema.get("required", []) else f"`{at}`"
        yield f"| {shown} | {_type(below)} | {_text(below)} |"
        yield from _rows(below, at)
        yield from _rows(below.get("items", {}), f"{at}[]")


def _type(schema: Node) -> str:
    if "x-kubernetes-int-or-string" in schema:
        return "quantity"
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}"
    return str(schema["type"])


def _text(schema: Node) -> str:
    words = [schema["description"]]
    choices = schema.get("enum") or schema.get("items", {}).get("enum")
    if choices:
        words.append(f"One of {', '.join(f'`{_scalar(choice)}`' for choice in choices)}.")
    limits = ", ".join(form.format(schema[key]) for key, form in LIMITS if key in schema)
    if limits:
        words.append(f"{limits[0].upper()}{limits[1:]}.")
    if "default" in schema and schema["default"] != {}:
        words.append(f"Default: `{_scalar(schema['default'])}`.")
    return " ".join(words).replace("|", "\\|")


def _scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _rules(schema: Node) -> Iterator[str]:
    found = list(_messages(schema, ""))
    if found:
        yield "Beyond types and limits:\n"
        yield from (f"- {f'`{path}`: ' if path else ''}{message}" for path, message in found)
        yield ""


def _messages(schema: Node, path: str) -> Iterator[tuple[str, str]]:
    yield from ((path, rule["message"]) for rule in schema.get("x-kubernetes-validations", []))
    for name, below in schema.get("properties", {}).items():
        yield from _messages(below, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from _messages(schema["items"], f"{path}[]")


if __name__ == "__main__":
    REFERENCE.write_text(render(load()), encoding="utf-8")
