"""The script that brings the tests their API server: what it finds, and what it says where it cannot."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sternpost_running.kubernetes import BINARIES, BUILD, find_binaries

BASH = shutil.which("bash") or "/bin/bash"


def make_binaries(folder: Path, *missing: str) -> Path:
    """Make a folder of programs that do nothing, without some."""
    folder.mkdir(parents=True)
    for name in set(BINARIES) - set(missing):
        (folder / name).touch(mode=0o755)
    return folder


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script with nothing else in its environment."""
    return subprocess.run([BASH, BUILD], env=environment, capture_output=True, text=True, check=False)


def test_a_folder_that_is_named_is_used(tmp_path: Path) -> None:
    """Such as one with a newer release; the tests look where the script says."""
    folder = make_binaries(tmp_path / "newer")
    done = run(KUBEBUILDER_ASSETS=str(folder), PATH="")

    assert (0, f"{folder}\n") == (done.returncode, done.stdout)
    assert folder == find_binaries({"KUBEBUILDER_ASSETS": str(folder)})


@pytest.mark.parametrize("missing", BINARIES)
def test_a_folder_that_is_named_must_be_whole(tmp_path: Path, missing: str) -> None:
    """Nothing is built in place of what somebody has asked for."""
    folder = make_binaries(tmp_path / "part", missing)
    done = run(KUBEBUILDER_ASSETS=str(folder), PATH="")

    assert (1, "") == (done.returncode, done.stdout)
    assert f"KUBEBUILDER_ASSETS is {folder}, which lacks" in done.stderr
    assert find_binaries({"KUBEBUILDER_ASSETS": str(folder)}) is None


def test_what_was_built_before_is_used_again(tmp_path: Path) -> None:
    """It is kept in the cache folder."""
    folder = make_binaries(tmp_path / "sternpost" / "kube-1.20.2")
    done = run(XDG_CACHE_HOME=str(tmp_path), PATH="")

    assert (0, f"{folder}\n") == (done.returncode, done.stdout)
    assert folder == find_binaries({"XDG_CACHE_HOME": str(tmp_path)})


def test_a_machine_that_cannot_build_is_told_the_other_way(tmp_path: Path) -> None:
    """Without apt it leaves nothing behind, and names the variable."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "id").symlink_to(shutil.which("id") or "/usr/bin/id")
    cache = tmp_path / "cache"
    done = run(XDG_CACHE_HOME=str(cache), PATH=str(tools))

    assert 1 == done.returncode
    assert "or name a folder" in done.stderr and "KUBEBUILDER_ASSETS" in done.stderr
    assert not cache.exists()
