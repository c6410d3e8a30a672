"""Reading a file's objects of all kinds at once, so that a person gets all their faults in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from sternpost_core.errors import Fault, PolicyError
from sternpost_core.kill import KILL_SWITCH_KIND, CacheKillSwitch, parse_kill_switch
from sternpost_core.policy import POLICY_KIND, Policy
from sternpost_core.policy_parse import parse
from sternpost_core.pool import POOL_KIND, EnginePool, parse_pool
from sternpost_core.reader import subject_of
from sternpost_core.text import describe, one_of

PARSERS: Final[Mapping[str, Callable[[object], Policy | EnginePool | CacheKillSwitch]]] = {
    POLICY_KIND: parse,
    POOL_KIND: parse_pool,
    KILL_SWITCH_KIND: parse_kill_switch,
}
"""How each kind is read."""


def parse_objects(objects: Iterable[object]) -> list[Policy | EnginePool | CacheKillSwitch]:
    """
    Read objects as a YAML file holds them; empty documents (None) are passed over.

    Raises:
        PolicyError: with every fault of every object. The subject names the objects that have one, by their
            place from 0, kind and name; each path starts with its object's place.
    """
    read: list[Policy | EnginePool | CacheKillSwitch] = []
    subjects: list[str] = []
    faults: list[Fault] = []
    for index, value in enumerate(objects):
        if value is None:
            continue
        try:
            read.append(_parse_one(value))
        except PolicyError as error:
            subjects.append(f"object {index} ({error.subject})")
            faults += [replace(fault, path=f"[{index}].{fault.path}") for fault in error.faults]
    if faults:
        raise PolicyError(", ".join(subjects), faults)
    return read


def _parse_one(value: object) -> Policy | EnginePool | CacheKillSwitch:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    parser = PARSERS.get(kind) if isinstance(kind, str) else None
    if parser is not None:
        return parser(value)
    found = describe(kind) if isinstance(value, Mapping) else describe(value)
    raise PolicyError(subject_of(value), [Fault("kind", found, one_of(PARSERS))])
