"""
Small files that outlive the gateway's process, in the directory given by `--state`.

A file is replaced as a whole or not at all. What cannot be read back is an error, never an empty value.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from sternpost_core.errors import OperatingError

STATE_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest state file that is read; a longer one is not ours."""

FILE_MODE: Final = 0o600
"""State is nobody else's business: it holds the salt secret."""


def write_file(path: Path, data: bytes) -> None:
    """
    Replace a file as a whole, and have it on disk before returning.

    Raises:
        OperatingError: it could not be written; the old file, if any, is unharmed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
            os.fchmod(file.fileno(), FILE_MODE)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
    except OSError as error:
        raise OperatingError(f"{path} cannot be written: {error.strerror}") from error


def read_file(path: Path) -> bytes | None:
    """
    Return a file's content, None if there is no such file.

    Raises:
        OperatingError: there is one, but it cannot be read.
    """
    try:
        if path.stat().st_size > STATE_BYTES_MAX:
            raise OperatingError(
                f"{path} is larger than {STATE_BYTES_MAX} bytes; it is not a state file of ours"
            )
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OperatingError(f"{path} cannot be read: {error.strerror}") from error


def read_json(path: Path) -> dict[str, Any] | None:
    """
    Return the object in a JSON file, None if there is no such file.

    Raises:
        OperatingError: there is one, but it cannot be read as an object.
    """
    data = read_file(path)
    if data is None:
        return None
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise OperatingError(f"{path} does not hold a JSON object; move it away to start without it")
    return value
