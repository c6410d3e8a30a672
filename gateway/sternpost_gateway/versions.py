"""
Versions: `v1`, `v2`, ... of a policy's prefix or tail, in order of first use.

They are for people's eyes. A number is given once; what has not been used for long is forgotten, and would
come back under a new number.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sternpost_core.content import ContentId
from sternpost_core.errors import OperatingError
from sternpost_gateway.bounded import Bounded
from sternpost_gateway.state_files import read_json, write_file

logger = logging.getLogger(__name__)

VERSIONS_FILE: Final = "versions.json"
VERSIONS_MAX: Final = 256
"""Content ids that are remembered for each policy's prefix, and for its tail."""

SERIES_MAX: Final = 2048
"""Policies, times two, whose versions are remembered."""

SAVE_SECONDS: Final = 5.0
"""Between two looks at whether anything is to be written."""

Series = tuple[str, str]


class Numbers:
    """The versions of one policy's prefix or tail."""

    def __init__(self, following: int = 1) -> None:
        self.following = following
        self.known: Bounded[ContentId, int] = Bounded(VERSIONS_MAX)


class Versions:
    """Numbers content ids; `state` is the directory of the versions file, if there is one."""

    def __init__(self, state: Path | None) -> None:
        self._file = state / VERSIONS_FILE if state else None
        self._series: Bounded[Series, Numbers] = Bounded(SERIES_MAX)
        self._is_dirty = False
        self._restore()

    def version(self, policy: str, segment: str, content_id: ContentId) -> int:
        """Return the version of a policy's prefix or tail; a new content id gets the next number."""
        numbers = self._series.get((policy, segment))
        if numbers is None:
            numbers = Numbers()
            self._series.put((policy, segment), numbers)
        known = numbers.known.get(content_id)
        if known is not None:
            return known
        numbers.known.put(content_id, numbers.following)
        numbers.following += 1
        self._is_dirty = True
        return numbers.following - 1

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
                [policy, segment, numbers.following, list(numbers.known.items())]
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


def _read_state(state: Mapping[str, Any]) -> list[tuple[Series, Numbers]]:
    found: list[tuple[Series, Numbers]] = []
    try:
        for policy, segment, following, known in state.get("series", []):
            numbers = Numbers(int(following))
            for content_id, number in known:
                numbers.known.put(ContentId(str(content_id)), int(number))
            found.append(((str(policy), str(segment)), numbers))
    except (TypeError, ValueError) as error:
        raise OperatingError(f"{VERSIONS_FILE} does not hold versions: {type(error).__name__}") from error
    return found
