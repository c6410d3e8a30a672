"""
Reading a custom resource so that every fault is found in one go.

An `ObjectReader` is asked for each key that an object may have, notes what is wrong and goes on with the
default; `close` then reports the keys that nobody asked for. So what is allowed is written once, where it
is read.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from sternpost_core.duration import DURATION_FORM, format_duration, parse_duration
from sternpost_core.errors import Fault, PolicyError
from sternpost_core.text import describe, one_of, shorten

API_VERSION: Final = "sternpost.dev/v1alpha1"
"""The only version that this release reads."""

NAMESPACE_DEFAULT: Final = "default"
"""Where an object without a namespace belongs, as in Kubernetes."""

LABEL_LENGTH_MAX: Final = 63
NAME_LENGTH_MAX: Final = 253

FAULTS_MAX: Final = 100
"""How many faults of one object are reported."""

METADATA_KEYS: Final = frozenset(
    [
        "annotations",
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "labels",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    ]
)
"""What Kubernetes keeps in `metadata` beside name and namespace; it means nothing here."""

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_LABEL: Final = re.compile(_LABEL)
_DNS_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_SUGGESTION_CUTOFF: Final = 0.6

E = TypeVar("E", bound=Enum)
T = TypeVar("T")


class Required(Enum):
    """Stands in for a default where there is none."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED


@dataclass(frozen=True, slots=True)
class Metadata:
    """What identifies an object."""

    name: str
    namespace: str


class ObjectReader:
    """
    Reads the keys of one object at `path` and adds what is wrong to `faults`.

    Every method returns a value of the right type; where there was a fault it is the default or a stand-in,
    and the caller drops the result once `faults` is not empty.
    """

    def __init__(self, value: object, path: str, faults: list[Fault]) -> None:
        self.path = path
        self.faults = faults
        self._asked: dict[str, None] = {}
        self.readable = isinstance(value, Mapping)
        self._mapping: Mapping[Any, Any] = value if isinstance(value, Mapping) else {}
        if not self.readable:
            faults.append(Fault(path, describe(value), "an object"))

    def has(self, key: str) -> bool:
        """Tell whether `key` is there, right or wrong."""
        return key in self._mapping

    def asked(self, key: str) -> bool:
        """Say that `key` is allowed, and tell whether it is there."""
        self._asked[key] = None
        return key in self._mapping

    def keys(self, count_max: int) -> list[str]:
        """Return the keys of an object that may have any; more than `count_max` are a fault."""
        self._asked.update((key, None) for key in self._mapping if isinstance(key, str))
        if len(self._mapping) > count_max:
            self.faults.append(Fault(self.path, f"{len(self._mapping)} keys", f"at most {count_max} keys"))
        return [key for key in list(self._mapping)[:count_max] if isinstance(key, str)]

    def value(self, key: str, read: Callable[[object], T | None], allowed: str) -> T | None:
        """Read a key that is there by `read`, which returns None for what is not allowed."""
        found = read(self._mapping[key])
        if found is None:
            self.fault(key, describe(self._mapping[key]), allowed)
        return found

    def fault(self, key: str, found: str, allowed: str) -> None:
        """Note a fault of `key`."""
        self.faults.append(Fault(self.at(key), found, allowed))

    def fault_at(self, path: str, found: object, allowed: str) -> None:
        """Note that the value at a path from `items` is not what is allowed."""
        self.faults.append(Fault(path, describe(found), allowed))

    def at(self, key: str) -> str:
        """Return the path of `key`."""
        return f"{self.path}.{key}" if self.path else key

    def close(self) -> None:
        """Note every key that was never asked for, with the nearest one that is known."""
        for key in self._mapping:
            if len(self.faults) >= FAULTS_MAX:
                return
            if not isinstance(key, str):
                self.fault(describe(key), "a key that is no string", "strings as keys")
            elif key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, n=1, cutoff=_SUGGESTION_CUTOFF)
                hint = f"; did you mean {near[0]}?" if near else ""
                self.fault(shorten(key), "an unknown key", one_of(self._asked) + hint)

    def text(
        self,
        key: str,
        default: str | Required = REQUIRED,
        *,
        length_max: int = NAME_LENGTH_MAX,
        accepts: Callable[[str], bool] = bool,
        allowed: str = "",
    ) -> str:
        """Read a string of at most `length_max` characters that `accepts`; by default not an empty one."""
        wanted = allowed or f"a string of 1 to {length_max} characters"
        return self._read(key, default, "", wanted, lambda found: _text(found, length_max, accepts))

    def boolean(self, key: str, default: bool) -> bool:
        """Read true or false."""
        return self._read(key, default, False, "true, false", _boolean)

    def integer(self, key: str, default: int | Required, low: int, high: int) -> int:
        """Read an integer from `low` to `high`."""
        return self._read(key, default, low, integers(low, high), lambda found: _integer(found, low, high))

    def number(self, key: str, default: float, low: float, high: float) -> float:
        """Read a number from `low` to `high`."""
        wanted = f"a number from {low:g} to {high:g}"
        return self._read(key, default, low, wanted, lambda found: _number(found, low, high))

    def duration(self, key: str, default_seconds: int, high_seconds: int) -> int:
        """Read a duration and return its seconds."""
        wanted = f"{DURATION_FORM}, at most {format_duration(high_seconds)}"
        return self._read(key, default_seconds, 0, wanted, lambda found: _duration(found, high_seconds))

    def choice(self, key: str, kind: type[E], default: E | Required = REQUIRED) -> E:
        """Read a value of an enumeration."""
        stand_in = next(iter(kind))
        wanted = one_of(member.value for member in kind)
        return self._read(key, default, stand_in, wanted, lambda found: _member(found, kind))

    def optional_choice(self, key: str, kind: type[E]) -> E | None:
        """Read a value of an enumeration, or None where there is no such key."""
        return self.choice(key, kind) if self.asked(key) else None

    def child(self, key: str, *, required: bool = False) -> ObjectReader:
        """Return the reader of the object below `key`, an empty one where there is none."""
        empty: Mapping[Any, Any] = {}
        found = self._read(key, REQUIRED if required else empty, empty, "an object", _mapping)
        reader = ObjectReader(found, self.at(key), self.faults)
        # What is missing or no object has been reported; its keys are not reported on top.
        fine = found is self._mapping[key] if self.has(key) else not required
        reader.readable = self.readable and fine
        return reader

    def items(self, key: str, count_max: int, *, count_min: int = 0) -> list[tuple[str, object]]:
        """Read a list of so many elements, or no key; return (path, element) pairs."""
        empty: list[object] = []
        wanted = f"a list of {count_min} to {count_max} elements"
        found = self._read(key, empty, empty, wanted, lambda value: _list(value, count_min, count_max))
        return [(f"{self.at(key)}[{index}]", element) for index, element in enumerate(found)]

    def names(
        self, key: str, accepts: Callable[[str], bool], allowed: str, *, count_max: int
    ) -> tuple[str, ...]:
        """Read a list, not empty, of different strings that `accepts`; () where there is no such key."""
        names: list[str] = []
        for path, element in self.items(key, count_max, count_min=1):
            if not isinstance(element, str) or not accepts(element):
                self.fault_at(path, element, allowed)
            elif element in names:
                self.faults.append(Fault(path, f"{describe(element)} again", "each value once"))
            else:
                names.append(element)
        return tuple(names)

    def integers(
        self, key: str, default: tuple[int, ...], low: int, high: int, *, count_max: int
    ) -> tuple[int, ...]:
        """Read a list, not empty, of strictly increasing integers; () where one of them is wrong."""
        if not self.asked(key):
            return default
        numbers: list[int] = []
        items = self.items(key, count_max, count_min=1)
        for path, element in items:
            number = _integer(element, low, high)
            if number is None:
                self.fault_at(path, element, integers(low, high))
            elif numbers and number <= numbers[-1]:
                self.faults.append(Fault(path, str(number), f"more than the {numbers[-1]} before it"))
            else:
                numbers.append(number)
        return tuple(numbers) if len(numbers) == len(items) else ()

    def strings(self, key: str, *, count_max: int, length_max: int) -> dict[str, str]:
        """Read an object of strings."""
        below = self.child(key)
        wanted = f"a string of at most {length_max} characters"
        read = {
            name: below.value(name, lambda found: _text(found, length_max, any_text), wanted)
            for name in below.keys(count_max)
        }
        below.close()
        return {name: found for name, found in read.items() if found is not None}

    def _read(
        self, key: str, default: T | Required, stand_in: T, allowed: str, read: Callable[[object], T | None]
    ) -> T:
        self._asked[key] = None
        if key in self._mapping:
            value = read(self._mapping[key])
            if value is not None:
                return value
            self.fault(key, describe(self._mapping[key]), allowed)
        elif isinstance(default, Required):
            if self.readable:
                self.fault(key, "nothing", allowed)
        else:
            return default
        return stand_in


def read_object(
    value: object,
    kind: str,
    read: Callable[[Metadata, ObjectReader], T],
    *,
    namespaced: bool = True,
) -> T:
    """
    Read the envelope that every custom resource has, and its spec by `read`.

    Raises:
        PolicyError: with every fault, the first `FAULTS_MAX` of them.
    """
    faults: list[Fault] = []
    top = ObjectReader(value, "", faults)
    if not isinstance(value, Mapping):
        raise PolicyError(kind, [Fault(kind, describe(value), "an object")])
    top.text("apiVersion", accepts=lambda found: found == API_VERSION, allowed=API_VERSION)
    top.text("kind", accepts=lambda found: found == kind, allowed=kind)
    metadata = _read_metadata(top, namespaced=namespaced)
    spec = top.child("spec", required=True)
    result = read(metadata, spec)
    spec.close()
    # The status is the operator's, which checks it when it writes.
    top.asked("status")
    top.close()
    if faults:
        raise PolicyError(subject_of(value, kind), faults[:FAULTS_MAX])
    return result


def object_mapping(kind: str, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of this release's version."""
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": dict(metadata), "spec": dict(spec)}


def subject_of(value: object, kind: str = "object") -> str:
    """Name an object, right or wrong, by its kind, namespace and name."""
    mapping = value if isinstance(value, Mapping) else {}
    metadata = mapping.get("metadata")
    named = metadata if isinstance(metadata, Mapping) else {}
    words = [named[key] for key in ("namespace", "name") if isinstance(named.get(key), str)]
    found = mapping.get("kind")
    return " ".join([shorten(found) if isinstance(found, str) else kind, shorten("/".join(words))]).strip()


def is_dns_label(text: str) -> bool:
    """Tell whether `text` is a DNS-1123 label, as namespaces are named."""
    return len(text) <= LABEL_LENGTH_MAX and _DNS_LABEL.fullmatch(text) is not None


def is_dns_name(text: str) -> bool:
    """Tell whether `text` is a DNS-1123 subdomain, as most objects are named."""
    return len(text) <= NAME_LENGTH_MAX and _DNS_NAME.fullmatch(text) is not None


def is_full_name(text: str) -> bool:
    """Tell whether `text` is "namespace/name"."""
    namespace, slash, name = text.partition("/")
    return slash == "/" and is_dns_label(namespace) and is_dns_name(name)


def any_text(_: str) -> bool:
    """Accept every string, the empty one too."""
    return True


def integers(low: int, high: int) -> str:
    """Say that integers from `low` to `high` are allowed."""
    return f"an integer from {low} to {high}"


DNS_NAME_FORM: Final = "a DNS-1123 name: lower-case letters, digits, '-' and '.', at most 253"
"""How an error describes the names of objects."""

DNS_LABEL_FORM: Final = "a DNS-1123 label: lower-case letters, digits and '-', at most 63"
"""How an error describes the names of namespaces and of rules."""


def _read_metadata(top: ObjectReader, *, namespaced: bool) -> Metadata:
    below = top.child("metadata", required=True)
    name = below.text("name", accepts=is_dns_name, allowed=DNS_NAME_FORM)
    namespace = NAMESPACE_DEFAULT
    if namespaced:
        namespace = below.text("namespace", NAMESPACE_DEFAULT, accepts=is_dns_label, allowed=DNS_LABEL_FORM)
    elif below.asked("namespace"):
        below.fault("namespace", "a namespace", "none, because the kind is cluster-scoped")
    for key in sorted(METADATA_KEYS):
        below.asked(key)
    below.close()
    return Metadata(name, namespace)


def _text(found: object, length_max: int, accepts: Callable[[str], bool]) -> str | None:
    return found if isinstance(found, str) and len(found) <= length_max and accepts(found) else None


def _boolean(found: object) -> bool | None:
    return found if isinstance(found, bool) else None


def _integer(found: object, low: int, high: int) -> int | None:
    fits = isinstance(found, int) and not isinstance(found, bool) and low <= found <= high
    return found if fits and isinstance(found, int) else None


def _number(found: object, low: float, high: float) -> float | None:
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return float(found) if math.isfinite(found) and low <= found <= high else None


def _duration(found: object, high_seconds: int) -> int | None:
    try:
        seconds = parse_duration(found) if isinstance(found, str) else high_seconds + 1
    except ValueError:
        return None
    return seconds if seconds <= high_seconds else None


def _member(found: object, kind: type[E]) -> E | None:
    return next((member for member in kind if member.value == found), None)


def _mapping(found: object) -> Mapping[Any, Any] | None:
    return found if isinstance(found, Mapping) else None


def _list(found: object, count_min: int, count_max: int) -> list[Any] | None:
    return found if isinstance(found, list) and count_min <= len(found) <= count_max else None
