"""How much memory is free for stored tails, on a host and in a container."""

from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
import torch

from sternpost_engine.memory import free_bytes, is_host

CPU = torch.device("cpu")


def container(folder: Path, limit: str, used: str, pages: str) -> Path:
    """Write what a container finds about itself."""
    for name, content in (("memory.max", limit), ("memory.current", used), ("memory.stat", pages)):
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("limit", "used", "pages", "expected"),
    [
        pytest.param("5000\n", "3000\n", "anon 10\ninactive_file 0\n", 2000, id="what-the-limit-leaves"),
        pytest.param("5000\n", "3000\n", "inactive_file 500\n", 2500, id="pages-that-can-go"),
        pytest.param("5000\n", "6000\n", "", 0, id="over-the-limit"),
    ],
)
def test_containers_limit_counts(tmp_path: Path, limit: str, used: str, pages: str, expected: int) -> None:
    """The host may have more, but the container would be killed."""
    assert expected == free_bytes(CPU, container(tmp_path, limit, used, pages))


@pytest.mark.parametrize(
    ("limit", "used", "pages"),
    [
        pytest.param("max\n", "3000\n", "", id="no-limit"),
        pytest.param("much\n", "3000\n", "", id="another-form"),
        pytest.param("5000\n", "3000\n", "a b c\n", id="another-form-of-pages"),
    ],
)
def test_without_a_limit_the_hosts_free_memory_counts(
    tmp_path: Path, limit: str, used: str, pages: str
) -> None:
    """As the operating system says it, which no test can know to the byte."""
    free = free_bytes(CPU, container(tmp_path, limit, used, pages))

    assert 2**20 < free <= psutil.virtual_memory().total


def test_outside_a_container_there_is_no_limit(tmp_path: Path) -> None:
    """The files are not there."""
    assert free_bytes(CPU, tmp_path) > 2**20


@pytest.mark.parametrize(("device", "host"), [("cpu", True), ("cuda:0", False)])
def test_hosts_memory_is_shared(device: str, host: bool) -> None:
    """That of a device is its worker's alone."""
    assert host is is_host(torch.device(device))
