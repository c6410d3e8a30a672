"""
What gateway and engine say to each other about one request.

The gateway sends a `Hint` in the body field `kv_transfer_params.sternpost`; the engine answers with a
`Report` in `usage.prompt_tokens_details.sternpost`. Both carry a version, so that a gateway and an engine
of neighbouring releases understand each other: unknown keys are ignored, a missing key takes its default,
another version is an error. The engine trusts no hint: it compares token ids before it reuses anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

from sternpost_core.errors import Fault, HintError
from sternpost_core.text import describe

HINT_VERSION: Final = 1
"""The version of hint and report that this release speaks."""

HINT_FIELD: Final = "sternpost"
"""The key below `kv_transfer_params` and below `usage.prompt_tokens_details`."""

TOKENS_MAX: Final = 2**31 - 1
"""The largest token count or epoch that a hint may carry."""

SCAFFOLD_LENGTH_MAX: Final = 64
"""A scaffold id is a SHA-256 in hexadecimal."""


class Operation(StrEnum):
    """What the engine is asked to do with its suffix store."""

    READ = "read"
    BUILD = "build"
    OFF = "off"


class Mode(StrEnum):
    """How a stored tail is put at its place: keys rotated to it, or always at one anchor."""

    ROTATE = "rotate"
    ANCHOR = "anchor"


class Correction(StrEnum):
    """What a stored tail's KV is: as it was after the scaffold, or the mean over representative middles."""

    NONE = "none"
    CALIBRATED = "calibrated"


class Reason(StrEnum):
    """Why a request did, or did not, reuse a tail. The values are metric labels."""

    HIT = "hit"
    BUILT = "built"
    NOT_ASKED = "not_asked"
    OFF = "off"
    BAD_HINT = "bad_hint"
    UNSUPPORTED = "unsupported"
    NOT_BUILT = "not_built"
    BUILDING = "building"
    TAIL_TOO_SHORT = "tail_too_short"
    TAIL_SHARE_TOO_SMALL = "tail_share_too_small"
    TAIL_TOO_LONG = "tail_too_long"
    FALSE_HIT = "false_hit"
    FOREIGN_TAIL = "foreign_tail"
    ANCHOR_UNSUPPORTED = "anchor_unsupported"
    MIDDLE_OVER_ANCHOR = "middle_over_anchor"
    MIDDLE_TOO_LONG = "middle_too_long"
    PREFIX_COVERS = "prefix_covers"
    PROMPT_LOGPROBS = "prompt_logprobs"
    POOLING = "pooling"
    MULTIMODAL = "multimodal"
    REMOTE_KV = "remote_kv"
    POOL_FULL = "pool_full"
    COPY_FAILED = "copy_failed"
    BUSY = "busy"


REASONS: Final = frozenset(Reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """
    What the gateway asks of the engine for one request.

    `prefix_tokens` and `tail_tokens` count the prompt's first and last tokens that the policy calls fixed;
    `head`, `last` and `match` count tail tokens to compute afresh; `scaffold` is the id of the tokens that
    the tail's KV is encoded after. A build's prompt is scaffold + tail and nothing else; `insert` says
    where in the scaffold a middle would stand, which a calibration needs to know.
    """

    op: Operation
    tail_tokens: int = 0
    prefix_tokens: int = 0
    epoch: int = 0
    mode: Mode = Mode.ROTATE
    anchor: int = 0
    head: int = 0
    last: int = 32
    match: int = 0
    kind: str = ""
    scaffold: str = ""
    correction: Correction = Correction.NONE
    insert: int = 0

    def to_mapping(self) -> dict[str, Any]:
        """Return the hint as the engine reads it, `v` first."""
        return {"v": HINT_VERSION, **_plain_fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """
    What the engine did for one request; the three counts add up to the prompt's tokens.

    `engine` is the model batch id: it changes with every start of the engine, so that a gateway notices
    when everything that it believed about the engine's store is void. `owner` names the scope whose stored
    tail was read, as `keys.owner_of` does; it is empty where none was, or where the tail has no salt.
    """

    prefix_tokens: int
    suffix_tokens: int
    computed_tokens: int
    reason: Reason
    engine: str = ""
    owner: str = ""

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as a client reads it, `v` first."""
        return {"v": HINT_VERSION, **_plain_fields(self)}


def parse_hint(mapping: object) -> Hint:
    """
    Read a hint.

    Raises:
        HintError: with every fault, when `mapping` is not an object, has another version, or a field has
            a wrong type or is out of range.
    """
    if not isinstance(mapping, Mapping):
        raise HintError("hint", [Fault(HINT_FIELD, describe(mapping), "an object")])
    faults: list[Fault] = []
    values = {
        field.name: _read_field(field.name, mapping[field.name], faults)
        for field in fields(Hint)
        if field.name in mapping
    }
    if not _speaks_our_version(mapping):
        faults.append(Fault(f"{HINT_FIELD}.v", describe(mapping.get("v")), str(HINT_VERSION)))
    if "op" not in mapping:
        faults.append(Fault(f"{HINT_FIELD}.op", "nothing", _choices(Operation)))
    if faults:
        raise HintError("hint", faults)
    return Hint(**values)


def parse_report(mapping: object) -> Report | None:
    """Read a report, or return None for anything that this release does not understand."""
    if not isinstance(mapping, Mapping) or not _speaks_our_version(mapping):
        return None
    counts = [mapping.get(key) for key in ("prefix_tokens", "suffix_tokens", "computed_tokens")]
    reason = mapping.get("reason")
    if not isinstance(reason, str) or reason not in REASONS:
        return None
    if not all(_is_count(count) for count in counts):
        return None
    prefix, suffix, computed = (int(count) for count in counts if count is not None)
    engine, owner = mapping.get("engine"), mapping.get("owner")
    return Report(
        prefix_tokens=prefix,
        suffix_tokens=suffix,
        computed_tokens=computed,
        reason=Reason(reason),
        engine=engine if isinstance(engine, str) else "",
        owner=owner if isinstance(owner, str) else "",
    )


def _speaks_our_version(mapping: Mapping[Any, Any]) -> bool:
    version = mapping.get("v")
    return _is_count(version) and version == HINT_VERSION


_ENUMERATED: Final[Mapping[str, type[StrEnum]]] = {
    "op": Operation,
    "mode": Mode,
    "correction": Correction,
}
"""The fields of a hint whose values are listed."""


def _plain_fields(value: Hint | Report) -> dict[str, Any]:
    # Not `asdict`, which copies deeply: this runs once per request.
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else value


def _choices(kind: type[StrEnum]) -> str:
    return ", ".join(member.value for member in kind)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= TOKENS_MAX


def _read_field(name: str, value: object, faults: list[Fault]) -> Any:
    path = f"{HINT_FIELD}.{name}"
    kind = _ENUMERATED.get(name)
    if kind is not None:
        if isinstance(value, str) and value in set(kind):
            return kind(value)
        faults.append(Fault(path, describe(value), _choices(kind)))
        return None
    if name in ("kind", "scaffold"):
        if isinstance(value, str) and len(value) <= SCAFFOLD_LENGTH_MAX:
            return value
        faults.append(Fault(path, describe(value), f"a string of at most {SCAFFOLD_LENGTH_MAX} characters"))
        return None
    if _is_count(value):
        return value
    faults.append(Fault(path, describe(value), f"an integer from 0 to {TOKENS_MAX}"))
    return None
