"""The keys of clients in a file, as digests: who has the file cannot use any of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sternpost_core.errors import Fault, OperatingError, SettingsError
from sternpost_gateway.state_files import read_file

KEYS_MAX: Final = 100_000
"""Keys of one file."""

FLAG: Final = "--client-keys"

_LINE: Final = re.compile(r"(?P<tenant>[!-~]{1,256})[ \t]+(?P<digest>[0-9a-f]{64})")
_LINE_FORM: Final = "a tenant's name and the SHA-256 of a key in hexadecimal, with a space between them"

ClientKeys = Mapping[str, str]
"""The tenant of each key, by the SHA-256 of the key in hexadecimal."""


def digest_of(key: str) -> str:
    """Return what stands for a key in the file; keys are random, so that a plain hash gives nothing away."""
    return hashlib.sha256(key.encode()).hexdigest()


def read_client_keys(path: Path) -> ClientKeys:
    """
    Read a file of keys: a line for each, empty lines and those that begin with `#` aside.

    Raises:
        SettingsError: with every line that is wrong, by its number and without what stands there.
        OperatingError: the file is not there or cannot be read.
    """
    data = read_file(path)
    if data is None:
        raise OperatingError(f"{FLAG}: there is no file {path}")
    keys: dict[str, str] = {}
    faults: list[Fault] = []
    for number, line in enumerate(data.decode(errors="replace").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            faults.append(Fault(f"{FLAG} line {number}", f"{len(text)} characters", _LINE_FORM))
        elif keys.setdefault(found["digest"], found["tenant"]) != found["tenant"]:
            faults.append(Fault(f"{FLAG} line {number}", "a key of another tenant", "each key once"))
    if len(keys) > KEYS_MAX:
        faults.append(Fault(FLAG, f"{len(keys)} keys", f"at most {KEYS_MAX}"))
    if faults:
        raise SettingsError("client keys", faults)
    return keys
