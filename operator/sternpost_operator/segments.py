"""
Which version of a policy's prefix or tail is which, so that all gateways number alike.

Each gateway numbers what it sees by itself. The operator asks all of them, and writes the newest content ids
with one number each into the policy's status, which the gateways take over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sternpost_core.policy_status import SEGMENTS_MAX, SegmentVersion

SEGMENTS: Final = ("prefix", "tail")
KEPT: Final = SEGMENTS_MAX // len(SEGMENTS)
"""Versions of each segment that a status names, the newest ones."""

CONTENT_ID_DIGITS: Final = 16
SEEN_MAX: Final = 64
"""Versions of each segment that are read from one gateway, the newest ones."""

Seen = Mapping[str, tuple[SegmentVersion, ...]]
"""The versions that gateways have, by the policy's full name."""


def agree(before: Iterable[SegmentVersion], seen: Iterable[SegmentVersion]) -> tuple[SegmentVersion, ...]:
    """
    Return the versions from now on: those before, and after them what gateways have that is new.

    A number is given once. What has a lower number than all that are kept was named before, and is not again.
    """
    known, wanted = tuple(before), tuple(seen)
    return tuple(version for segment in SEGMENTS for version in _agree(segment, known, wanted))


def _agree(
    segment: str, before: tuple[SegmentVersion, ...], seen: tuple[SegmentVersion, ...]
) -> list[SegmentVersion]:
    known = sorted((one for one in before if one.segment == segment), key=lambda one: one.version)
    oldest = known[0].version if known else 0
    candidates = {one for one in seen if one.segment == segment and one.version >= oldest}
    for one in sorted(candidates, key=lambda one: (one.version, one.content_id)):
        content_id = one.content_id[:CONTENT_ID_DIGITS]
        if all(content_id != other.content_id[:CONTENT_ID_DIGITS] for other in known):
            newest = known[-1].version if known else 0
            known.append(SegmentVersion(segment, max(one.version, newest + 1), content_id))
    return known[-KEPT:]


def write_segments(versions: Iterable[SegmentVersion]) -> list[dict[str, Any]]:
    """Return versions as a status has them."""
    return [
        {"segment": one.segment, "version": f"v{one.version}", "contentId": one.content_id}
        for one in versions
    ]


def merge_seen(reports: Iterable[Seen]) -> dict[str, tuple[SegmentVersion, ...]]:
    """Return what any gateway has, by policy."""
    merged: dict[str, set[SegmentVersion]] = {}
    for report in reports:
        for policy, versions in report.items():
            merged.setdefault(policy, set()).update(versions)
    return {policy: tuple(sorted(found, key=_order)) for policy, found in merged.items()}


def _order(one: SegmentVersion) -> tuple[str, int, str]:
    return one.segment, one.version, one.content_id
