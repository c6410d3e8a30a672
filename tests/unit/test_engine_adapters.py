"""The identity of a LoRA adapter: what its files hold, under its name, wherever they lie."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from sternpost_engine.adapters import ADAPTERS_MAX, AdapterDigests


def adapter(folder: Path, files: dict[str, str]) -> Path:
    """Write an adapter's files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


def request(folder: Path, name: str = "a", number: int = 1) -> SimpleNamespace:
    """Return an adapter as vLLM's requests name it."""
    return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=str(folder))


FILES = {"adapter_config.json": "{}", "adapter_model.safetensors": "weights"}


def test_request_without_an_adapter_has_an_empty_identity() -> None:
    """It is the model itself."""
    assert "" == AdapterDigests().identify(None)


def test_same_content_at_another_path_is_the_same_adapter(tmp_path: Path) -> None:
    """Nothing of the path, or of the engine's number for it, is in the identity."""
    digests = AdapterDigests()
    paths = [adapter(tmp_path / name, FILES) for name in ("here", "there")]

    first, second = (
        digests.identify(request(path, number=number)) for number, path in enumerate(paths, start=1)
    )

    assert first == second
    assert str(tmp_path) not in str(first)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        pytest.param("b", FILES, id="another-name"),
        pytest.param("a", {**FILES, "adapter_model.safetensors": "Weights"}, id="another-content"),
        pytest.param("a", {**FILES, "new_embeddings.safetensors": ""}, id="one-file-more"),
        pytest.param(
            "a", {"adapter_config.json": "{}", "adapter_model.bin": "weights"}, id="another-file-name"
        ),
        pytest.param(
            "a", {"adapter_config.json": "{}w", "adapter_model.safetensors": "eights"}, id="moved-byte"
        ),
    ],
)
def test_each_part_makes_another_adapter(tmp_path: Path, name: str, files: dict[str, str]) -> None:
    """Other weights compute other KV, and one name is another owner's than the next."""
    digests = AdapterDigests()

    first = digests.identify(request(adapter(tmp_path / "one", FILES)))
    second = digests.identify(request(adapter(tmp_path / "two", files), name))

    assert first != second


def test_files_that_are_written_anew_are_read_anew(tmp_path: Path) -> None:
    """An adapter that is replaced in place is another one."""
    digests = AdapterDigests()
    folder = adapter(tmp_path / "a", FILES)
    first = digests.identify(request(folder))

    adapter(folder, {"adapter_model.safetensors": "changed"})
    os.utime(folder / "adapter_model.safetensors", ns=(1, 1))

    assert first != digests.identify(request(folder))


def test_files_are_read_once(tmp_path: Path) -> None:
    """While their size and time stay, what they hold is not read again."""
    digests = AdapterDigests()
    folder = adapter(tmp_path / "a", FILES)
    first = digests.identify(request(folder))
    path = folder / "adapter_model.safetensors"
    times = path.stat()

    path.write_text("WEIGHTS")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    assert first == digests.identify(request(folder))


@pytest.mark.parametrize("path", ["owner/repository", "empty"], ids=["no-folder", "no-files"])
def test_adapter_without_files_has_no_identity(tmp_path: Path, path: str) -> None:
    """Its content cannot be told, so no tail is its."""
    (tmp_path / "empty").mkdir()

    assert None is AdapterDigests().identify(request(tmp_path / path))


def test_digests_are_bounded(tmp_path: Path) -> None:
    """The adapter that was asked for longest ago is forgotten first, and read again."""
    digests = AdapterDigests()
    folder = adapter(tmp_path / "a", FILES)
    for number in range(1, ADAPTERS_MAX + 10):
        digests.identify(request(folder, number=number))

    assert ADAPTERS_MAX == len(digests._known)
