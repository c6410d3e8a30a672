"""Checks of where the repository's files lie."""

import operator
import sysconfig
from collections import Counter
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import sternpost_core

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = ["core", "engine_patch", "gateway", "operator"]


@pytest.mark.parametrize("folder", SOURCE_ROOTS)
def test_source_root_is_not_a_package(folder: str) -> None:
    """
    A source root holds packages and is never one itself.

    An `operator/__init__.py` would hide the standard library's `operator`.
    """
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_folder_named_operator_is_a_package() -> None:
    """No package anywhere in the tree is importable as plain `operator`."""
    assert not list(ROOT.glob("*/operator/__init__.py"))


def test_operator_is_the_standard_library() -> None:
    """`import operator` finds the standard library."""
    assert Path(str(operator.__file__)).parent == Path(sysconfig.get_path("stdlib"))


def test_no_folder_of_tests_is_a_package() -> None:
    """A package among the tests would take its name away from what is tested."""
    assert [] == [path for path in (ROOT / "tests").rglob("__init__.py") if "support" not in path.parts]


def test_no_two_test_files_share_a_name() -> None:
    """Test modules are top-level modules, so each needs a name of its own."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))

    assert [] == [name for name, count in names.items() if count > 1]


@pytest.mark.parametrize("folder", SOURCE_ROOTS)
def test_package_is_typed(folder: str) -> None:
    """Each package tells type checkers that it has types."""
    packages = [path.parent for path in (ROOT / folder).glob("*/__init__.py")]

    assert [] == [package.name for package in packages if not (package / "py.typed").exists()]


def test_installed_version_is_the_packages_version() -> None:
    """What is installed is what lies here."""
    assert sternpost_core.__version__ == version("sternpost")


@pytest.mark.parametrize(
    ("group", "names"),
    [
        pytest.param(
            "sternpost.commands",
            {
                "bench",
                "calibrate",
                "doctor",
                "engine",
                "gateway",
                "kill",
                "lint",
                "model",
                "operator",
                "plan",
                "top",
                "up",
            },
            id="commands",
        ),
        pytest.param("vllm.general_plugins", {"sternpost"}, id="vllm-general-plugin"),
        pytest.param("vllm.endpoint_plugins", {"sternpost"}, id="vllm-endpoint-plugin"),
    ],
)
def test_entry_points_are_installed(group: str, names: set[str]) -> None:
    """The command and vLLM find the parts by entry points, so an installed one must be there."""
    found = {
        point.name for point in entry_points(group=group) if point.dist and point.dist.name == "sternpost"
    }

    assert names <= found
