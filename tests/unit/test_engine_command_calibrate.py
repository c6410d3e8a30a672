"""`sternpost calibrate`: its flags, their errors, and the settings that they make."""

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest

from sternpost_core.command import apply_environment
from sternpost_core.errors import SettingsError
from sternpost_engine.calibrate.settings import Settings
from sternpost_engine.command_calibrate import COMMAND, read_settings


def parse(words: list[str], environment: Mapping[str, str] | None = None) -> argparse.Namespace:
    """Parse flags as `sternpost` does."""
    parser = argparse.ArgumentParser(prog="sternpost calibrate")
    COMMAND.add_arguments(parser)
    apply_environment(parser, environment or {})
    return parser.parse_args(words)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return the flags that must be given, with files that are there."""
    (tmp_path / "config.json").write_text("{}", "utf-8")
    (tmp_path / "tail.md").write_text("Be brief.", "utf-8")
    return ["--model", str(tmp_path), "--tail", str(tmp_path / "tail.md")]


def test_settings_have_defaults(files: list[str]) -> None:
    """Two flags are enough; the threads are the machine's cores."""
    arguments = parse(files)

    settings = read_settings(arguments)

    assert Settings(model=Path(files[1]), tail=Path(files[3]), threads=arguments.threads) == settings


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        pytest.param(["--last", "32"], "last", (32,), id="one-count"),
        pytest.param(["--last", "32,8,32"], "last", (32, 8), id="each-once"),
        pytest.param(["--head", "0,64"], "head", (0, 64), id="head"),
        pytest.param(["--match", "0"], "match", 0, id="no-match"),
        pytest.param(["--time-budget", "60"], "time_budget", 60.0, id="seconds"),
        pytest.param(["--kind", "question"], "kind", "question", id="kind"),
        pytest.param(["--tail-role", "user"], "tail_role", "user", id="role"),
        pytest.param(["--config-map", "our-middles"], "config_map", "our-middles", id="config-map"),
    ],
)
def test_flags_become_settings(files: list[str], words: list[str], name: str, expected: object) -> None:
    """Each under its own name."""
    assert expected == getattr(read_settings(parse([*files, *words])), name)


def test_environment_stands_in_for_flags(files: list[str]) -> None:
    """With the same types, and less weight than a flag."""
    environment = {"STERNPOST_MODEL": files[1], "STERNPOST_TAIL": files[3], "STERNPOST_LAST": "4,8"}

    assert (4, 8) == read_settings(parse([], environment)).last
    assert (16,) == read_settings(parse(["--last", "16"], environment)).last


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["--last", "0"], "0 is not allowed; allowed: an integer from 1 to 1024", id="no-last"),
        pytest.param(["--last", "8,x"], "x is not allowed; allowed: an integer from 1", id="no-number"),
        pytest.param(["--last", "²"], "² is not allowed; allowed: an integer from 1", id="no-digit"),
        pytest.param(["--last", ""], "nothing is not allowed; allowed: an integer from 1", id="empty"),
        pytest.param(["--head", "-1"], "-1 is not allowed; allowed: an integer from 0", id="negative"),
        pytest.param(["--last", "1,2,3,4,5,6,7,8,9"], "allowed: up to 8 counts", id="too-many-counts"),
        pytest.param(["--match", "5000"], "allowed: an integer from 0 to 1024", id="match"),
        pytest.param(["--test-middles", "0"], "allowed: an integer from 1 to 1000", id="middles"),
        pytest.param(["--time-budget", "1.5"], "allowed: an integer from 1 to 86400", id="budget"),
        pytest.param(["--config-map", "Our Middles"], "allowed: the name of a ConfigMap", id="config-map"),
        pytest.param(["--tail-role", "tool"], "invalid choice: 'tool'", id="role"),
        pytest.param(["--device", "tpu"], "invalid choice: 'tpu'", id="device"),
    ],
)
def test_wrong_flags_are_usage_errors(
    files: list[str], words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the value and what is allowed."""
    flag, value = words

    with pytest.raises(SystemExit):
        parse([*files, f"{flag}={value}"])

    errors = " ".join(capsys.readouterr().err.split())
    assert f"argument {flag}: " in errors
    assert message in errors


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        pytest.param("--tail", "--tail: .*nowhere is not allowed; allowed: a file that is there", id="tail"),
        pytest.param("--middles", "--middles: .*nowhere is not allowed", id="middles"),
        pytest.param("--prefix", "--prefix: .*nowhere is not allowed", id="prefix"),
        pytest.param(
            "--model", "--model: .*nowhere is not allowed; allowed: a folder with config", id="model"
        ),
    ],
)
def test_files_that_are_not_there_are_named(files: list[str], flag: str, message: str) -> None:
    """By their flag, before anything is loaded."""
    with pytest.raises(SettingsError, match=message):
        read_settings(parse([*files, flag, "nowhere"]))


def test_out_must_not_be_a_file(files: list[str]) -> None:
    """What lies there would be lost."""
    with pytest.raises(SettingsError, match=r"--out: .*tail\.md is not allowed; allowed: a folder"):
        read_settings(parse([*files, "--out", files[3]]))


def test_help_is_complete() -> None:
    """Every flag says what it is for, and which variable stands in for it."""
    parser = argparse.ArgumentParser(prog="sternpost calibrate", add_help=False)
    COMMAND.add_arguments(parser)
    apply_environment(parser, {})

    for action in parser._actions:
        variable = f"[STERNPOST_{action.dest.upper()}]"
        assert (action.help or "").endswith(variable)
        assert len(action.help or "") > len(variable) + len("default")
