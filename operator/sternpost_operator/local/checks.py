"""What must hold before anything starts: ports that are free, and memory for the engines."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sternpost_core.errors import Fault, SettingsError
from sternpost_core.flag_numbers import PORT_MAX

ENGINE_OVERHEAD_BYTES: Final = 2_500_000_000
"""What an engine takes beside weights and KV cache, measured: interpreters, libraries and activations."""

GIBIBYTE: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class PortUse:
    """A port that a child will listen on, and the flag that says which."""

    flag: str
    host: str
    port: int


def check_ports(uses: Sequence[PortUse]) -> None:
    """
    Refuse ports that are taken, or wanted twice.

    Raises:
        SettingsError: with a fault for each such port, naming the flag that moves it.
    """
    wanted: set[int] = set()
    faults: list[Fault] = []
    for use in uses:
        if use.port > PORT_MAX:
            faults.append(Fault(use.flag, str(use.port), f"ports up to {PORT_MAX}"))
        elif use.port in wanted:
            faults.append(Fault(use.flag, str(use.port), "ports that differ from each other"))
        elif not _is_free(use):
            faults.append(Fault(use.flag, str(use.port), f"a port of {use.host} that no program listens on"))
        wanted.add(use.port)
    if faults:
        raise SettingsError("ports", faults)


def _is_free(use: PortUse) -> bool:
    family = socket.AF_INET6 if ":" in use.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Connections of a program that has ended do not keep a port from being listened on again.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((use.host, use.port))
            probe.listen(1)
        except OSError:
            return False
    return True


def check_memory(engines: int, engine_bytes: int, available_bytes: int) -> None:
    """
    Refuse more engines than the memory holds; at least one is always allowed, since this is an estimate.

    Raises:
        SettingsError: naming how many would fit.
    """
    fitting = max(1, available_bytes // engine_bytes)
    if engines > fitting:
        sizes = f"each takes about {_gigabytes(engine_bytes)}, {_gigabytes(available_bytes)} are available"
        raise SettingsError("memory", [Fault("--engines", str(engines), f"at most {fitting}: {sizes}")])


def engine_bytes(model: Path, kv_cache_gib: int) -> int:
    """Return what one engine on `model` takes, about: its weights, its KV cache, and the rest of vLLM."""
    weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    return weights + kv_cache_gib * GIBIBYTE + ENGINE_OVERHEAD_BYTES


def available_bytes(meminfo: Path) -> int | None:
    """Return the memory that new programs can get by the kernel's estimate, or None where it gives none."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    words = fields.get("MemAvailable", "").split()
    return int(words[0]) * 1024 if words else None


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
