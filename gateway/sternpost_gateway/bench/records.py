"""A run's file: JSON Lines, the first of which says what ran where, each other one unit when it is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sternpost_core.errors import OperatingError
from sternpost_gateway.bench.sample import Unit

UNITS: Final = "units.jsonl"
HEAD: Final = "head"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a file holds: what was run where, and the units."""

    head: Mapping[str, Any]
    units: tuple[Unit, ...]


def write_head(path: Path, head: Mapping[str, Any]) -> None:
    """
    Begin a file anew.

    Raises:
        OperatingError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({HEAD: head}) + "\n", encoding="utf-8")
    except OSError as error:
        raise OperatingError(f"{path} cannot be written: {error.strerror}") from error


def append_unit(path: Path, unit: Unit) -> None:
    """Add a unit."""
    with path.open("a", encoding="utf-8") as file:
        print(json.dumps(unit.to_record()), file=file, flush=True)


def read_records(path: Path) -> Recorded:
    """
    Read a file, or the one in a run's folder.

    Raises:
        OperatingError: it cannot be read, or is no file of a run.
    """
    file = path / UNITS if path.is_dir() else path
    try:
        first, *lines = file.read_text(encoding="utf-8").splitlines()
        units = tuple(Unit.from_record(json.loads(line)) for line in lines)
        return Recorded(json.loads(first)[HEAD], units)
    except OSError as error:
        raise OperatingError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise OperatingError(f"{file} is no file of `sternpost bench`: {error!r}") from error
