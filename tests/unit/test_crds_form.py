"""The schemas in `crds/` are closed, bounded and explained, and are there for every kind that is parsed."""

import re
from typing import Any

import pytest

from sternpost_core.objects import PARSERS
from sternpost_core.reader import API_VERSION
from sternpost_fakes.crd_schema import CRDS, CrdSchema, load_crds, nodes

KINDS = sorted(PARSERS)
TOP = {"", "apiVersion", "kind", "metadata"}
"""The envelope, which Kubernetes explains itself."""


def schema_nodes(kind: str) -> list[tuple[str, Any]]:
    """Return the schemas of a kind, but for the envelope's."""
    return [(path, node) for path, node in nodes(CrdSchema.of(kind).root) if path not in TOP]


def test_every_parsed_kind_has_a_schema() -> None:
    """No kind is parsed that a cluster could not hold, and the other way round."""
    assert set(PARSERS) == set(load_crds())


@pytest.mark.parametrize("kind", KINDS)
def test_crd_names_itself_as_kubernetes_wants(kind: str) -> None:
    """File, object and group agree, and there is one version, served and stored, with a status."""
    crd = load_crds()[kind]
    (version,) = crd["spec"]["versions"]
    name = f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"

    assert name == crd["metadata"]["name"]
    assert (CRDS / f"{name}.yaml").is_file()
    assert f"{crd['spec']['group']}/{version['name']}" == API_VERSION
    assert (True, True, {}) == (version["served"], version["storage"], version["subresources"]["status"])
    assert ["sternpost"] == crd["spec"]["names"]["categories"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_described(kind: str) -> None:
    """`kubectl explain` has a sentence for each field."""
    named = [(path, node) for path, node in schema_nodes(kind) if not path.endswith(("[]", "*"))]

    assert [] == [path for path, node in named if not str(node.get("description", "")).endswith(".")]


@pytest.mark.parametrize("kind", KINDS)
def test_every_schema_is_closed(kind: str) -> None:
    """An object lists its fields or says how many of which form it may have; nothing unknown is kept."""
    objects = [(path, node) for path, node in schema_nodes(kind) if node.get("type") == "object"]
    everything = [node for _, node in nodes(CrdSchema.of(kind).root)]

    assert [] == [path for path, node in objects if ("properties" in node) == ("maxProperties" in node)]
    assert [] == [node for node in everything if "x-kubernetes-preserve-unknown-fields" in node]


@pytest.mark.parametrize("kind", KINDS)
def test_every_list_and_text_is_bounded(kind: str) -> None:
    """Nothing in an object grows without a limit."""
    bounds = {"array": ("maxItems",), "string": ("maxLength", "enum", "format", "pattern")}
    found = [
        path
        for path, node in schema_nodes(kind)
        if node.get("type") in bounds and not any(key in node for key in bounds[node["type"]])
    ]

    assert [] == found


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_has_a_message(kind: str) -> None:
    """A person who breaks a rule reads a sentence, not the rule."""
    validations = [
        rule for _, node in schema_nodes(kind) for rule in node.get("x-kubernetes-validations", [])
    ]

    assert [] == [rule for rule in validations if not rule.get("message")]


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_shows_a_field(kind: str) -> None:
    """A column's path leads to a field of the schema."""
    known = {path for path, _ in nodes(CrdSchema.of(kind).root)}
    (version,) = load_crds()[kind]["spec"]["versions"]
    paths = [
        re.sub(r"\[.*\]", "[]", column["jsonPath"])[1:] for column in version["additionalPrinterColumns"]
    ]

    assert [] == [path for path in paths if not path.startswith("metadata.") and path not in known]
