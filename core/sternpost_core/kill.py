"""The kill levels, and the CacheKillSwitch that sets one for many policies at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import total_ordering
from typing import Any, Final

from sternpost_core.reader import (
    Metadata,
    ObjectReader,
    any_text,
    is_dns_label,
    is_full_name,
    object_mapping,
    read_object,
)

KILL_SWITCH_KIND: Final = "CacheKillSwitch"

SELECTED_MAX: Final = 256
"""How many namespaces, and how many policies, one switch may name."""

REASON_LENGTH_MAX: Final = 1024
"""The longest reason, in characters."""


@total_ordering
class KillLevel(Enum):
    """How much is switched off; each level includes those before it."""

    NONE = "None"
    NO_SUFFIX_READS = "NoSuffixReads"
    NEW_EPOCH = "NewEpoch"
    NO_REWRITE = "NoRewrite"
    NO_AFFINITY = "NoAffinity"
    PLAIN_PROXY = "PlainProxy"

    @property
    def k(self) -> int:
        """The level's number, 0 to 5."""
        return _NUMBERS[self]

    def __lt__(self, other: KillLevel) -> bool:
        return self.k < other.k

    def __str__(self) -> str:
        return self.value


_NUMBERS: Final = {level: number for number, level in enumerate(KillLevel)}
"""Each level's number; looked up, because the gateway compares levels for every request."""


LEVEL_FORMS: Final = ", ".join([*(level.value for level in KillLevel), "or K0 to K5"])
"""What a person may write for a level."""

_LEVELS_BY_FORM: Final = {
    form.lower(): level for level in KillLevel for form in (level.value, f"K{_NUMBERS[level]}")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKillSwitch:
    """
    A kill level for every policy that is selected.

    A policy is selected by its namespace or by its full name; a switch that names neither selects all. One
    that is `forced` counts for every session at once, even where that makes prompts cold.
    """

    name: str
    level: KillLevel
    namespaces: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    reason: str = ""
    forced: bool = False

    def selects(self, namespace: str, name: str) -> bool:
        """Tell whether the switch is for the policy `name` in `namespace`."""
        if not self.namespaces and not self.policies:
            return True
        return namespace in self.namespaces or f"{namespace}/{name}" in self.policies


def level_named(text: str) -> KillLevel | None:
    """Return the level that a person means by its name or by K0 to K5, in any case; None if it is neither."""
    return _LEVELS_BY_FORM.get(text.strip().lower())


def effective_level(levels: Iterable[KillLevel]) -> KillLevel:
    """Return the highest level, or `KillLevel.NONE` when there is none."""
    return max(levels, default=KillLevel.NONE)


def parse_kill_switch(mapping: object) -> CacheKillSwitch:
    """
    Read a CacheKillSwitch object.

    Raises:
        PolicyError: with every fault.
    """
    return read_object(mapping, KILL_SWITCH_KIND, _read, namespaced=False)


def kill_switch_to_mapping(switch: CacheKillSwitch) -> dict[str, Any]:
    """Return the object that `parse_kill_switch` reads as `switch`."""
    selector: dict[str, Any] = {}
    if switch.namespaces:
        selector["namespaces"] = list(switch.namespaces)
    if switch.policies:
        selector["policies"] = list(switch.policies)
    spec: Mapping[str, Any] = {
        "level": switch.level.value,
        "selector": selector,
        "reason": switch.reason,
        "force": switch.forced,
    }
    return object_mapping(KILL_SWITCH_KIND, {"name": switch.name}, spec)


def _read(metadata: Metadata, spec: ObjectReader) -> CacheKillSwitch:
    level = spec.choice("level", KillLevel)
    selector = spec.child("selector")
    namespaces = selector.names(
        "namespaces", is_dns_label, "names of namespaces (DNS-1123 labels)", count_max=SELECTED_MAX
    )
    policies = selector.names("policies", is_full_name, "names as namespace/name", count_max=SELECTED_MAX)
    selector.close()
    reason = spec.text(
        "reason",
        "",
        length_max=REASON_LENGTH_MAX,
        accepts=any_text,
        allowed=f"a string of at most {REASON_LENGTH_MAX} characters",
    )
    return CacheKillSwitch(
        name=metadata.name,
        level=level,
        namespaces=namespaces,
        policies=policies,
        reason=reason,
        forced=spec.boolean("force", False),
    )
