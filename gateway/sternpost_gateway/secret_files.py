"""Secrets that a flag names the file of."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sternpost_core.errors import Fault, OperatingError, SettingsError
from sternpost_gateway.state_files import read_file

TOKEN_LENGTH_MIN: Final = 16
"""A shorter admin token could be guessed."""


def secret_text(flag: str, path: Path | None, length_min: int) -> str | None:
    """
    Return the secret in a file without the white space around it, None if no file is named.

    Raises:
        SettingsError: it is shorter than `length_min`, or no printable ASCII.
        OperatingError: the file is not there or cannot be read.
    """
    data = secret_bytes(flag, path)
    if data is None:
        return None
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if len(text) < length_min or not text.isprintable():
        raise SettingsError(
            "settings",
            [Fault(flag, f"the content of {path}", f"at least {length_min} printable ASCII characters")],
        )
    return text


def secret_bytes(flag: str, path: Path | None) -> bytes | None:
    """
    Return the content of a secret's file, None if no file is named.

    Raises:
        OperatingError: the file is not there or cannot be read.
    """
    if path is None:
        return None
    data = read_file(path)
    if data is None:
        raise OperatingError(f"{flag}: there is no file {path}")
    return data
