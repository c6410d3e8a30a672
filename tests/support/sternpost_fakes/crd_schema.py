"""
What an API server with CEL does with an object: defaults, the schema, list types, CEL rules, strict fields.

It is for tests that hold the schemas in `crds/` against the parser. It is no stand-in for a server, which the
end-to-end tests have.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cel
import jsonschema
import yaml

CRDS: Final = Path(__file__).parents[3] / "crds"
"""The folder of the schemas."""

OLD: Final = "oldSelf"
"""What a rule calls the value that is replaced; a rule that names it is about changes only."""

Node = Mapping[str, Any]


def load_crds() -> dict[str, dict[str, Any]]:
    """Return every CustomResourceDefinition by its kind."""
    loaded = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(CRDS.glob("*.yaml"))]
    return {crd["spec"]["names"]["kind"]: crd for crd in loaded}


def nodes(schema: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Yield every schema below `schema`, itself included, with its path."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}".lstrip("."))
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from nodes(schema["additionalProperties"], f"{path}.*")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


@dataclass(frozen=True, slots=True)
class CrdSchema:
    """The schema of one kind's only version."""

    root: Node

    @classmethod
    def of(cls, kind: str) -> CrdSchema:
        """Return the schema of a kind in `crds/`."""
        return cls(load_crds()[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"])

    def defaulted(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of an object with every default filled in."""
        copied = copy.deepcopy(dict(value))
        _fill(copied, self.root)
        return copied

    def faults(self, value: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> list[str]:
        """Return what an API server would refuse the object for, as a new one or in the place of `old`."""
        whole = self.defaulted(value)
        validator = jsonschema.Draft4Validator(dict(self.root))
        wrong = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(whole)]
        # CEL rules are only looked at where the schema itself holds.
        replaced = None if old is None else self.defaulted(old)
        return wrong or [*_unknown(whole, self.root, ""), *_rules(whole, self.root, "", replaced)]


def _fill(value: Any, schema: Node) -> None:
    if isinstance(value, dict):
        for name, below in schema.get("properties", {}).items():
            if name not in value and "default" in below:
                value[name] = copy.deepcopy(below["default"])
            if name in value:
                _fill(value[name], below)
    elif isinstance(value, list) and "items" in schema:
        for element in value:
            _fill(element, schema["items"])


def _below(value: Any, schema: Node, path: str) -> Iterator[tuple[Any, Node, str]]:
    if isinstance(value, Mapping):
        for name, element in value.items():
            known = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if isinstance(known, Mapping):
                yield element, known, f"{path}.{name}"
    elif isinstance(value, list) and "items" in schema:
        for index, element in enumerate(value):
            yield element, schema["items"], f"{path}[{index}]"


def _unknown(value: Any, schema: Node, path: str) -> Iterator[str]:
    """Yield the fields that strict validation refuses, and list elements that are there twice."""
    # The metadata is Kubernetes' own, and checked by its own rules.
    if path == ".metadata":
        return
    if isinstance(value, Mapping) and "additionalProperties" not in schema:
        yield from (f"{path}.{name}: unknown field" for name in value if name not in schema["properties"])
    if isinstance(value, list):
        keys = schema.get("x-kubernetes-list-map-keys", [])
        kind = schema.get("x-kubernetes-list-type", "atomic")
        seen = [tuple(element[key] for key in keys) if kind == "map" else element for element in value]
        if kind != "atomic" and len(seen) != len({repr(one) for one in seen}):
            yield f"{path}: duplicates"
    for element, below, at in _below(value, schema, path):
        yield from _unknown(element, below, at)


def _rules(value: Any, schema: Node, path: str, old: Any = None) -> Iterator[str]:
    """Yield which rules are broken; those of a transition count where there was something before."""
    for validation in schema.get("x-kubernetes-validations", []):
        counts = old is not None or OLD not in validation["rule"]
        if counts and not evaluate(validation["rule"], value, old):
            yield f"{path}: {validation['message']}"
    for element, below, at in _below(value, schema, path):
        name = at.rpartition(".")[2]
        yield from _rules(element, below, at, old.get(name) if isinstance(old, Mapping) else None)


def evaluate(rule: str, value: Any, old: Any = None) -> bool:
    """Evaluate a CEL rule with Kubernetes' `isSorted` beside the language's own functions."""
    context = cel.Context()
    context.add_variable("self", value)
    context.add_variable(OLD, old)
    context.add_function("isSorted", lambda elements: list(elements) == sorted(elements))
    return bool(cel.evaluate(rule, context))
