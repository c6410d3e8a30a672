"""
What the API server said last, on disk, so that a gateway that restarts while it is down knows all it knew.

Objects are kept as they came, without what only the server's own bookkeeping needs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from sternpost_core.errors import OperatingError
from sternpost_gateway.cluster.resources import Object
from sternpost_gateway.state_files import read_json, write_file

logger = logging.getLogger(__name__)

SNAPSHOT_FILE: Final = "cluster.json"
SNAPSHOT_VERSION: Final = 1

DROPPED_METADATA: Final = ("managedFields", "annotations")
"""Large, and nothing that the gateway reads: kubectl keeps a copy of the whole object in an annotation."""


class Snapshot:
    """The file; without a state directory there is none, and a restart begins with nothing."""

    def __init__(self, state: Path | None) -> None:
        self._file = state / SNAPSHOT_FILE if state else None
        self._kept: bytes | None = None

    def load(self) -> dict[str, list[Object]]:
        """Return the objects by collection; a file that cannot be read is logged and counts as none."""
        try:
            state = read_json(self._file) if self._file else None
            if state is None:
                return {}
            if state.get("v") != SNAPSHOT_VERSION:
                raise OperatingError(f"{self._file} is of another version")
            return {str(name): _objects(items) for name, items in dict(state["objects"]).items()}
        except (OperatingError, KeyError, TypeError, ValueError) as error:
            logger.error("the snapshot of the cluster is of no use: %s", error)
            return {}

    def save(self, objects: Mapping[str, Iterable[Object]]) -> bool:
        """
        Keep the objects, and say whether they are kept, if they are to be.

        A disk that refuses is logged, because serving goes on without it.
        """
        if self._file is None:
            return True
        slim = {name: [slimmed(item) for item in items] for name, items in objects.items()}
        data = json.dumps({"v": SNAPSHOT_VERSION, "objects": slim}).encode()
        if data == self._kept:
            return True
        try:
            write_file(self._file, data)
        except OperatingError as error:
            logger.error("a restart without the API server would begin with nothing: %s", error)
            return False
        self._kept = data
        return True


def slimmed(item: Object) -> dict[str, Any]:
    """Return an object without its bookkeeping."""
    metadata = item.get("metadata")
    kept = dict(metadata) if isinstance(metadata, Mapping) else {}
    for name in DROPPED_METADATA:
        kept.pop(name, None)
    return {**item, "metadata": kept}


def _objects(items: Any) -> list[Object]:
    return [item for item in items if isinstance(item, dict)]
