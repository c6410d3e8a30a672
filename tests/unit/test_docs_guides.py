"""What the guides have people apply is accepted, by the schemas and by the parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from sternpost_core.kill import parse_kill_switch
from sternpost_core.policy_parse import parse
from sternpost_core.pool import parse_pool
from sternpost_fakes.crd_schema import CrdSchema
from sternpost_operator.policy_decide import COMMAND_ANNOTATION
from sternpost_operator.rollout import order_of

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md")))
OBJECT: Final = re.compile(r"^( *)apiVersion: sternpost\.dev/.*\n(?:\1(?!EOF|---).*\n|\n)+", re.MULTILINE)
"""An object, up to the end of its here-document or of its block."""

ORDER: Final = re.compile(rf"{re.escape(COMMAND_ANNOTATION)}=(\S+)")
PARSERS: Final[Mapping[str, Callable[[Mapping[str, Any]], object]]] = {
    "CachePolicy": parse,
    "EnginePool": parse_pool,
    "CacheKillSwitch": parse_kill_switch,
}


def objects() -> list[Any]:
    """Return every custom resource of every page, under the page's name."""
    return [
        pytest.param(yaml.safe_load(found[0]), id=f"{page.stem}-{number}")
        for page in PAGES
        for number, found in enumerate(OBJECT.finditer(page.read_text(encoding="utf-8")))
    ]


def test_objects_of_every_kind_are_found() -> None:
    """Otherwise the next test would hold for want of anything to hold for."""
    assert {*PARSERS} == {found.values[0]["kind"] for found in objects()}


@pytest.mark.parametrize("value", objects())
def test_every_object_is_accepted(value: dict[str, Any]) -> None:
    """Whoever follows a guide is not refused."""
    assert [] == CrdSchema.of(value["kind"]).faults(value)
    assert PARSERS[value["kind"]](value)


def test_every_order_to_a_rollout_is_one_that_is_understood() -> None:
    """The annotation's value is a word that the operator knows."""
    orders = [order for page in PAGES for order in ORDER.findall(page.read_text(encoding="utf-8"))]

    assert orders
    assert [] == [order for order in orders if order_of(order) is None]
