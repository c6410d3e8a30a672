"""
Versions: `v1`, `v2`, ... of a policy's prefix or tail, in order of first use.

They are for people's eyes. A number is given once; what has not been used for long is forgotten, and would
come back under a new number. Gateways number by themselves; where a policy's status names versions, all take
those over, so that they agree.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sternpost_core.content import ContentId
from sternpost_core.errors import OperatingError
from sternpost_core.policy import Policy
from sternpost_core.policy_status import SegmentVersion
from sternpost_gateway.bounded import Bounded
from sternpost_gateway.segment_tokens import TokenCount
from sternpost_gateway.state_files import read_json, write_file

logger = logging.getLogger(__name__)

VERSIONS_FILE: Final = "versions.json"
VERSIONS_MAX: Final = 256
"""Content ids that are remembered for each policy's prefix, and for its tail."""

SEGMENTS: Final = ("prefix", "tail")
"""What has versions."""

SERIES_MAX: Final = 2048
"""Policies, times two, whose versions are remembered."""

SAVE_SECONDS: Final = 5.0
"""Between two looks at whether anything is to be written."""

CONVERSATIONS_MAX: Final = 16384
"""Conversations whose last prefix is remembered, to say which version a new one came from."""

Series = tuple[str, str]


TokensOf = Callable[[ContentId], TokenCount | None]
"""Returns what is known of a segment's tokens."""


def no_tokens(content_id: ContentId) -> TokenCount | None:
    """Return nothing: no segment's tokens are known."""
    return None


@dataclass(frozen=True, slots=True)
class Version:
    """The number of a version, and that of the version that its first conversation had before, if any."""

    number: int
    parent: int | None = None


class Numbers:
    """The versions of one policy's prefix or tail."""

    def __init__(self, following: int = 1) -> None:
        self.following = following
        self.known: Bounded[ContentId, Version] = Bounded(VERSIONS_MAX)
        self.agreed: tuple[SegmentVersion, ...] = ()

    def add(self, content_id: ContentId, parent: int | None) -> Version:
        """Number a new content id: as agreed, else with the next number."""
        agreed = next((one for one in self.agreed if content_id.startswith(one.content_id)), None)
        version = Version(agreed.version if agreed else self.following, parent)
        self.following = max(self.following, version.number + 1)
        self.known.put(content_id, version)
        return version

    def agree(self, agreed: tuple[SegmentVersion, ...]) -> bool:
        """
        Take over numbers that all gateways see; return whether that changed one of our own.

        Ours give way: a content id that had an agreed number by chance gets another one at its next use.
        """
        self.agreed = agreed
        changed = False
        for one in agreed:
            self.following = max(self.following, one.version + 1)
            for content_id, version in self.known.items():
                is_it = content_id.startswith(one.content_id)
                if is_it and version.number != one.version:
                    self.known.put(content_id, Version(one.version, version.parent))
                    changed = True
                elif not is_it and version.number == one.version:
                    self.known.drop(content_id)
                    changed = True
        return changed


class Versions:
    """Numbers content ids; `state` is the directory of the versions file, if there is one."""

    def __init__(self, state: Path | None) -> None:
        self._file = state / VERSIONS_FILE if state else None
        self._series: Bounded[Series, Numbers] = Bounded(SERIES_MAX)
        self._last: Bounded[tuple[Series, str], int] = Bounded(CONVERSATIONS_MAX)
        self._is_dirty = False
        self._restore()

    def version(
        self, policy: str, segment: str, content_id: ContentId, conversation: str | None = None
    ) -> int:
        """
        Return the version of a policy's prefix or tail; a new content id gets the next number.

        It is the child of the version that its conversation, if it is named, had before.
        """
        series = (policy, segment)
        numbers = self._numbers(series)
        version = numbers.known.get(content_id)
        if version is None:
            parent = self._last.get((series, conversation)) if conversation else None
            version = numbers.add(content_id, parent)
            self._is_dirty = True
        if conversation:
            self._last.put((series, conversation), version.number)
        return version.number

    def agree(self, policies: Iterable[Policy]) -> None:
        """Take over the versions that the policies' status names, so that all gateways say the same."""
        for policy in policies:
            for segment in SEGMENTS:
                agreed = tuple(one for one in policy.segments if one.segment == segment)
                if agreed and self._numbers((policy.full_name, segment)).agree(agreed):
                    self._is_dirty = True

    def shown(self, policy: str, tokens: TokensOf = no_tokens) -> dict[str, list[dict[str, Any]]]:
        """Return what people see of a policy's versions, by segment, the newest first."""
        return {segment: _shown(self._series.get((policy, segment)), tokens) for segment in SEGMENTS}

    def _numbers(self, series: Series) -> Numbers:
        numbers = self._series.get(series)
        if numbers is None:
            numbers = Numbers()
            self._series.put(series, numbers)
        return numbers

    async def keep_saved(self) -> None:
        """Write the versions down whenever they have changed; runs until it is cancelled."""
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await self.save()

    async def save(self) -> None:
        """Write the versions down if they have changed; a failure is logged, because only names are lost."""
        if self._file is None or not self._is_dirty:
            return
        self._is_dirty = False
        try:
            await asyncio.to_thread(write_file, self._file, json.dumps(self._to_mapping()).encode())
        except OperatingError as error:
            self._is_dirty = True
            logger.error("versions are not saved: %s", error)

    def _to_mapping(self) -> dict[str, Any]:
        return {
            "series": [
                [policy, segment, numbers.following, [_written(*item) for item in numbers.known.items()]]
                for (policy, segment), numbers in self._series.items()
            ]
        }

    def _restore(self) -> None:
        try:
            state = read_json(self._file) if self._file else None
            for (policy, segment), numbers in _read_state(state or {}):
                self._series.put((policy, segment), numbers)
        except OperatingError as error:
            logger.error("versions start anew: %s", error)


def _written(content_id: ContentId, version: Version) -> list[object]:
    return [content_id, version.number, *([] if version.parent is None else [version.parent])]


def _shown(numbers: Numbers | None, tokens: TokensOf) -> list[dict[str, Any]]:
    known = numbers.known.items() if numbers else ()
    return [
        {
            "version": f"v{version.number}",
            "contentId": content_id,
            "parent": None if version.parent is None else f"v{version.parent}",
            "tokens": None if (count := tokens(content_id)) is None else count.tokens,
            "tokensFrom": None if count is None else count.source,
        }
        for content_id, version in sorted(known, key=lambda item: -item[1].number)
    ]


def _read_state(state: Mapping[str, Any]) -> list[tuple[Series, Numbers]]:
    found: list[tuple[Series, Numbers]] = []
    try:
        for policy, segment, following, known in state.get("series", []):
            numbers = Numbers(int(following))
            for content_id, number, *parent in known:
                version = Version(int(number), int(parent[0]) if parent else None)
                numbers.known.put(ContentId(str(content_id)), version)
            found.append(((str(policy), str(segment)), numbers))
    except (TypeError, ValueError) as error:
        raise OperatingError(f"{VERSIONS_FILE} does not hold versions: {type(error).__name__}") from error
    return found
