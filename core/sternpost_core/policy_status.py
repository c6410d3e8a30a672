"""
What a CachePolicy's status says that gateways go by: the versions that its prefix and tail have.

Status is written by the operator, not by people, so that what cannot be understood is passed over: it must
never keep a good spec from going live.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SEGMENTS_MAX: Final = 8
"""Entries of a status that are read."""

_SEGMENTS: Final = frozenset({"prefix", "tail"})
_VERSION: Final = re.compile(r"v([1-9][0-9]{0,8})")
_CONTENT_ID: Final = re.compile(r"[0-9a-f]{12,64}")


@dataclass(frozen=True, slots=True)
class SegmentVersion:
    """The version, as a number, of a policy's prefix or tail whose content id begins with `content_id`."""

    segment: str
    version: int
    content_id: str


def segment_versions(mapping: object) -> tuple[SegmentVersion, ...]:
    """Return the versions that the status of an object, as JSON decodes it, names in `segments`."""
    status = mapping.get("status") if isinstance(mapping, Mapping) else None
    listed = status.get("segments") if isinstance(status, Mapping) else None
    if not isinstance(listed, list):
        return ()
    found = (segment_version(entry) for entry in listed[:SEGMENTS_MAX])
    return tuple(entry for entry in found if entry is not None)


def segment_version(entry: object) -> SegmentVersion | None:
    """Return what one entry of `segments` says, or None where it cannot be understood."""
    if not isinstance(entry, Mapping):
        return None
    segment, version, content_id = (entry.get(name) for name in ("segment", "version", "contentId"))
    if not (isinstance(segment, str) and isinstance(version, str) and isinstance(content_id, str)):
        return None
    number = _VERSION.fullmatch(version)
    if segment not in _SEGMENTS or number is None or _CONTENT_ID.fullmatch(content_id) is None:
        return None
    return SegmentVersion(segment, int(number[1]), content_id)
