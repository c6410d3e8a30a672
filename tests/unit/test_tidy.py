"""Checks of how the repository's files are written; they read every file that git tracks."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]

FUNCTION_LINES_MAX: Final = 70
"""A function that is longer does more than one job."""

MODULE_LINES_MAX: Final = 500
"""A module that is longer holds more than one noun."""

LONG_FUNCTIONS: Final[dict[str, str]] = {}
"""Functions that may be longer, as `path:name`, each with the reason."""

LONG_MODULES: Final[dict[str, str]] = {}
"""Modules that may be longer, by path, each with the reason."""

# Spelled in pieces, so that this file does not contain what it forbids.
MACHINE_PATH: Final = re.compile("(?<![A-Za-z0-9_.])/(?:" + "|".join(["work", "root", "tmp"]) + ")/")
REGISTRY_HOST: Final = re.compile(r"\b(?:pypi|pythonhosted|npmjs)\.org\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache(maxsize=1)
def tracked_files() -> tuple[str, ...]:
    """Return the paths that git tracks and that exist, relative to the root."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    return tuple(path for path in listing.stdout.split("\0") if path and (ROOT / path).is_file())


def python_files() -> Iterator[tuple[str, str]]:
    """Yield path and text of every tracked Python file."""
    for path in tracked_files():
        if path.endswith(".py"):
            yield path, (ROOT / path).read_text(encoding="utf-8")


def text_files() -> Iterator[tuple[str, str]]:
    """Yield path and text of every tracked file that is text."""
    for path in tracked_files():
        data = (ROOT / path).read_bytes()
        if b"\0" not in data[:4096]:
            yield path, data.decode("utf-8", errors="replace")


def long_functions(text: str, lines_max: int) -> list[tuple[str, int]]:
    """Return name and length of each function in `text` that has more than `lines_max` lines."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, Function)]
    lengths = [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions]
    return [(name, length) for name, length in lengths if length > lines_max]


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    """Return `path:line` of each tracked line that `pattern` occurs in."""
    return [
        f"{path}:{number}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_functions_are_short() -> None:
    """No function is longer than the limit, but for those that are listed with a reason."""
    found = [
        f"{path}:{name} has {length} lines"
        for path, text in python_files()
        for name, length in long_functions(text, FUNCTION_LINES_MAX)
        if f"{path}:{name}" not in LONG_FUNCTIONS
    ]

    assert [] == found


def test_modules_are_short() -> None:
    """No module is longer than the limit, but for those that are listed with a reason."""
    lengths = [(path, text.count("\n")) for path, text in python_files()]

    assert [] == [
        f"{path} has {length} lines"
        for path, length in lengths
        if length > MODULE_LINES_MAX and path not in LONG_MODULES
    ]


def test_modules_say_why_they_exist() -> None:
    """Every module that holds anything begins with a docstring."""
    assert [] == [path for path, text in python_files() if text and not ast.get_docstring(ast.parse(text))]


def test_listed_functions_are_still_long() -> None:
    """What has become short needs no exception any more."""
    listed = [entry.split(":") for entry in LONG_FUNCTIONS]

    assert [] == [
        name
        for path, name in listed
        if name not in dict(long_functions((ROOT / path).read_text(encoding="utf-8"), FUNCTION_LINES_MAX))
    ]


def test_listed_modules_are_still_long() -> None:
    """What has become short needs no exception any more."""
    lengths = {path: (ROOT / path).read_text(encoding="utf-8").count("\n") for path in LONG_MODULES}

    assert [] == [path for path, length in lengths.items() if length <= MODULE_LINES_MAX]


def test_no_file_names_a_path_of_one_machine() -> None:
    """What is written for one machine fails on the next."""
    assert [] == lines_matching(MACHINE_PATH)


def test_no_file_names_a_package_registry() -> None:
    """Where packages come from is the machine's setting, not the repository's."""
    assert [] == lines_matching(REGISTRY_HOST)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(70, [], id="at-the-limit"),
        pytest.param(71, [("long", 71)], id="over-the-limit"),
    ],
)
def test_length_counts_every_line(lines: int, expected: list[tuple[str, int]]) -> None:
    """The signature and the last line both count."""
    body = "\n".join(["    pass"] * (lines - 1))

    assert expected == long_functions(f"def long():\n{body}\n", FUNCTION_LINES_MAX)


@pytest.mark.parametrize("name", ["work", "root", "tmp"])
def test_machine_paths_are_recognised(name: str) -> None:
    """The pattern finds a path, and leaves a longer path's middle alone."""
    assert MACHINE_PATH.search(f'open("/{name}/x")')
    assert not MACHINE_PATH.search(f"var/{name}/x")
