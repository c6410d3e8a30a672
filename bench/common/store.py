"""
Records as JSON lines, each written as soon as it is there, so that a run that was cut short can go on.

The first line is a fingerprint of what the records depend on. Records of another fingerprint are refused,
never mixed in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from sternpost_core.errors import OperatingError

FINGERPRINT: Final = "fingerprint"


class OutOfTime(OperatingError):
    """The time that a run may take is over; its records are kept."""


class RecordStore:
    """Holds the records of one file by their keys."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        """
        Open a file of records, or begin one.

        Raises:
            OperatingError: the file has another fingerprint, or a line that is no record.
        """
        self._path = path
        self._records: dict[str, dict[str, Any]] = {}
        if path.exists() and path.stat().st_size:
            self._read(fingerprint)
        else:
            self._append({FINGERPRINT: fingerprint})

    def __contains__(self, key: str) -> bool:
        return key in self._records

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self._records[key]

    def __len__(self) -> int:
        return len(self._records)

    def add(self, key: str, record: Mapping[str, Any]) -> None:
        """Write a record, and hold it from now on."""
        self._append({"key": key, **record})
        self._records[key] = dict(record)

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            print(json.dumps(line, ensure_ascii=False), file=file, flush=True)

    def _read(self, fingerprint: str) -> None:
        lines = self._path.read_text(encoding="utf-8").split("\n")
        whole, cut = lines[:-1], lines[-1]
        try:
            head, *records = [json.loads(line) for line in whole]
            found = head[FINGERPRINT]
            self._records = {record.pop("key"): record for record in records}
        except (ValueError, LookupError, TypeError) as error:
            raise OperatingError(f"{self._path} holds no records of this benchmark; remove it") from error
        if found != fingerprint:
            raise OperatingError(
                f"{self._path} is from other settings or other code; remove it to begin anew"
            )
        if cut:
            # The last line was being written when the run was cut; its record is made again.
            self._path.write_text("\n".join([*whole, ""]), encoding="utf-8")


def fingerprint_of(*parts: object) -> str:
    """Return a short digest of what records depend on."""
    return sha256(repr(parts).encode()).hexdigest()[:16]


def code_of(*folders: Path) -> str:
    """Return a short digest of all Python files below some folders: what is measured is what they say."""
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    found = sha256()
    for path in files:
        content = path.read_bytes()
        found.update(f"{path.name} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()[:16]
