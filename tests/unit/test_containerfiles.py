"""The images: what they are built from, whom they run as, and what is left out of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(ROOT.glob("*/Containerfile"))
NAMES = [file.parent.name for file in FILES]

Line = tuple[str, str]
"""An instruction and its arguments."""


def lines_of(file: Path) -> list[Line]:
    """Return a file's instructions, continued lines joined, without comments."""
    kept = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    whole = "\n".join(kept).replace("\\\n", " ").splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in whole)]


def last_stage(lines: list[Line]) -> list[Line]:
    """Return the instructions of the stage that becomes the image."""
    begins = max(index for index, (name, _) in enumerate(lines) if name == "FROM")
    return lines[begins:]


def test_there_is_a_file_for_each_image() -> None:
    """Gateway, operator and engine."""
    assert ["engine_patch", "gateway", "operator"] == NAMES


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_every_base_can_be_pinned_by_digest(file: Path) -> None:
    """Each base is an argument whose default has a version, never the newest there is."""
    lines = lines_of(file)
    defaults = dict(rest.split("=", 1) for name, rest in lines if name == "ARG")
    bases = [rest.split()[0] for name, rest in lines if name == "FROM"]

    assert all(base.startswith("${") and base[2:-1] in defaults for base in bases), bases
    assert all(":" in default and not default.endswith(":latest") for default in defaults.values())


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_it_runs_as_nobody_in_particular(file: Path) -> None:
    """The user is a number, which Kubernetes can see is not root, and no step comes after it."""
    stage = last_stage(lines_of(file))
    users = [rest for name, rest in stage if name == "USER"]
    last_run = max((index for index, (name, _) in enumerate(stage) if name == "RUN"), default=0)

    assert ["65532:65532"] == users
    assert last_run < stage.index(("USER", users[0]))


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_signals_reach_the_program(file: Path) -> None:
    """No shell stands between the runtime and the program, which has to drain when it is told to end."""
    stage = last_stage(lines_of(file))
    words = {name: json.loads(rest) for name, rest in stage if name in ("ENTRYPOINT", "CMD")}

    assert "sternpost" == words["ENTRYPOINT"][0]
    assert isinstance(words["CMD"], list)


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_nothing_of_the_build_is_left(file: Path) -> None:
    """No package cache, and the sources stay in the stage that builds."""
    lines = lines_of(file)
    installs = [rest for name, rest in lines if name == "RUN" and "pip" in rest]

    assert installs and all("--no-cache-dir" in rest for rest in installs)
    assert [] == [rest for name, rest in last_stage(lines) if name == "COPY" and "--from=build" not in rest]
