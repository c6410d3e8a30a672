"""
The identity of a LoRA adapter: its name and what its files hold, never where they lie.

Two adapters at one path, one after the other, compute different KV for the same tokens; one adapter at two
paths computes the same.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

ADAPTERS_MAX: Final = 256
"""So many adapters' digests are remembered; one that was forgotten is read again."""

CHUNK_BYTES: Final = 1 << 20
"""Files are read in parts of this size, because an adapter may be larger than what is free."""


@dataclass(frozen=True, slots=True)
class _FileState:
    """What changes when a file is written anew."""

    name: str
    size: int
    modified_ns: int


class AdapterDigests:
    """Digests adapters' files once, and again when one of them has been written anew."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int, tuple[_FileState, ...]], str] = OrderedDict()

    def identify(self, lora: Any) -> str | None:
        """
        Return the identity of vLLM's LoRA request: empty for none, None where its files cannot be read.

        An adapter that is named by a repository instead of a folder has no files here.
        """
        if lora is None:
            return ""
        try:
            files = _states(Path(lora.lora_path))
            if not files:
                return None
            key = (lora.lora_path, lora.lora_int_id, files)
            digest = self._known.get(key) or _digest(Path(lora.lora_path), files)
        except OSError:
            # The folder is gone, or was never one; the adapter may still be in the engine's memory.
            return None
        self._remember(key, digest)
        return f"{len(lora.lora_name)}:{lora.lora_name}:{digest}"

    def _remember(self, key: tuple[str, int, tuple[_FileState, ...]], digest: str) -> None:
        self._known[key] = digest
        self._known.move_to_end(key)
        while len(self._known) > ADAPTERS_MAX:
            self._known.popitem(last=False)


def _states(folder: Path) -> tuple[_FileState, ...]:
    """List a folder's files, in the order of their names."""
    found = [(path.name, path.stat()) for path in folder.iterdir() if path.is_file()]
    return tuple(_FileState(name, stat.st_size, stat.st_mtime_ns) for name, stat in sorted(found))


def _digest(folder: Path, files: tuple[_FileState, ...]) -> str:
    digest = sha256(b"sternpost-adapter-1")
    for file in files:
        name = file.name.encode("utf-8", "surrogateescape")
        digest.update(f"name:{len(name)}:".encode())
        digest.update(name)
        digest.update(f"content:{file.size}:".encode())
        with (folder / file.name).open("rb") as content:
            while chunk := content.read(CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()
