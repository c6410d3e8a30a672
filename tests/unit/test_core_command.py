"""The one console command: finding subcommands, flags from the environment, and what a person reads."""

import argparse
import io
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any, cast

import pytest

from sternpost_core.command import Command, Installed, installed_commands, run
from sternpost_core.errors import Fault, OperatingError, SettingsError


def letters(word: str) -> str:
    """Read a word of letters."""
    if not word.isalpha():
        raise argparse.ArgumentTypeError(f"{word!r} is not allowed; allowed: letters")
    return word


@dataclass
class RecordingCommand:
    """A subcommand that records the flags it was given, and raises what it is told to."""

    summary: str = "Record what was asked for."
    error: BaseException | None = None
    status: int = 0
    runs: list[dict[str, Any]] = field(default_factory=list)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare one flag of each kind."""
        parser.add_argument("--port", type=int, default=8080, help="the port")
        parser.add_argument("--log-level", choices=["info", "debug"], default="info")
        parser.add_argument("--engine", action="append")
        parser.add_argument("--name", type=letters)
        parser.add_argument("--plain", action="store_true")
        parser.add_argument("--model", required=True)
        parser.add_argument("extra", nargs="*")

    def run(self, arguments: argparse.Namespace) -> int:
        """Record the flags."""
        self.runs.append({key: value for key, value in vars(arguments).items() if "command" not in key})
        if self.error is not None:
            raise self.error
        return self.status


@dataclass(frozen=True)
class FakeEntryPoint:
    """An entry point that gives what it holds, or fails to import it."""

    target: Command | ImportError
    name: str = ""
    loads: list[str] = field(default_factory=list)

    def load(self) -> Command:
        """Return the subcommand, or raise the import's error."""
        self.loads.append(self.name)
        if isinstance(self.target, ImportError):
            raise self.target
        return self.target


def installed(**commands: Command | ImportError) -> list[Installed]:
    """Return the named subcommands as if they were installed."""
    return [Installed(name, cast(EntryPoint, FakeEntryPoint(target))) for name, target in commands.items()]


def recorded(argv: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the flags that `record` is run with."""
    command = RecordingCommand()
    run(["record", *argv], installed(record=command), environment, io.StringIO())
    return command.runs[0]


LINES = 100_000
PRINTING = f"""
import sys
from importlib.metadata import EntryPoint
from sternpost_core import command
class Printing:
    summary = "Print many lines."
    def add_arguments(self, parser): pass
    def run(self, arguments):
        for number in range({LINES}): print(number)
        return 0
class Point:
    def load(self): return Printing()
command.installed_commands = lambda: (command.Installed("print", Point()),)
sys.exit(command.main(["print"]))
"""


@pytest.mark.parametrize(
    ("redirected", "status", "said"),
    [
        pytest.param("| head -n 1 > /dev/null", 141, "", id="nobody-reads-on"),
        pytest.param(
            "> /dev/full", 1, "sternpost print: [Errno 28] No space left on device\n", id="full-disk"
        ),
        pytest.param(">&-", 0, "", id="closed"),
    ],
)
def test_output_that_goes_nowhere_is_no_traceback(redirected: str, status: int, said: str) -> None:
    """`sternpost lint ... | head` ends in order, and a full disk is told."""
    script = f'{{ "$0" -c "$1"; echo "status $?" >&2; }} {redirected}'
    ended = subprocess.run(
        ["/bin/sh", "-c", script, sys.executable, PRINTING], capture_output=True, text=True, check=False
    )

    assert f"{said}status {status}\n" == ended.stderr


DEFAULTS = {
    "port": 8080,
    "log_level": "info",
    "engine": None,
    "name": None,
    "plain": False,
    "model": "m",
    "extra": [],
}


@pytest.mark.parametrize(
    ("argv", "environment", "changed"),
    [
        pytest.param(["--model", "m"], {}, {}, id="defaults"),
        pytest.param([], {"STERNPOST_MODEL": "m"}, {}, id="required-flag-from-environment"),
        pytest.param(["--model", "m"], {"STERNPOST_PORT": "9"}, {"port": 9}, id="through-the-flags-type"),
        pytest.param(
            ["--model", "m", "--port", "7"], {"STERNPOST_PORT": "9"}, {"port": 7}, id="flag-over-environment"
        ),
        pytest.param(
            ["--model", "m"],
            {"STERNPOST_ENGINE": "a,b"},
            {"engine": ["a", "b"]},
            id="repeated-flag-from-list",
        ),
        pytest.param(
            ["--model", "m", "--engine", "c", "--engine", "d"],
            {"STERNPOST_ENGINE": "a,b"},
            {"engine": ["c", "d"]},
            id="repeated-flag-replaces-list",
        ),
        pytest.param(["--model", "m"], {"STERNPOST_PLAIN": "yes"}, {"plain": True}, id="switch-on"),
        pytest.param(["--model", "m"], {"STERNPOST_PLAIN": "0"}, {}, id="switch-off"),
        pytest.param(
            ["--model", "m"],
            {"STERNPOST_LOG_LEVEL": "debug"},
            {"log_level": "debug"},
            id="one-of-the-choices",
        ),
        pytest.param(
            ["--model", "m", "--", "--seed", "1"], {}, {"extra": ["--seed", "1"]}, id="words-after-two-dashes"
        ),
    ],
)
def test_flags_come_from_words_then_environment_then_default(
    argv: list[str], environment: dict[str, str], changed: dict[str, Any]
) -> None:
    """A flag that is given wins over its environment variable, which wins over the default."""
    assert DEFAULTS | changed == recorded(argv, environment)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        pytest.param({"STERNPOST_PORT": "x"}, "STERNPOST_PORT: 'x' is not allowed", id="wrong-type"),
        pytest.param(
            {"STERNPOST_LOG_LEVEL": "loud"}, "'loud' is not allowed; allowed: info, debug", id="no-choice"
        ),
        pytest.param(
            {"STERNPOST_NAME": "7"},
            "error: STERNPOST_NAME: '7' is not allowed; allowed: letters",
            id="own-words",
        ),
        pytest.param({"STERNPOST_PLAIN": "maybe"}, "STERNPOST_PLAIN: 'maybe' is not allowed", id="no-switch"),
    ],
)
def test_wrong_environment_value_is_a_usage_error(
    environment: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong value names the variable, the value and what is allowed, and ends with status 2."""
    with pytest.raises(SystemExit) as exit_info:
        recorded(["--model", "m"], environment)

    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "expected", "text"),
    [
        pytest.param(None, 0, 0, "", id="success"),
        pytest.param(None, 3, 3, "", id="own-status"),
        pytest.param(OperatingError("no disk"), 0, 1, "sternpost record: no disk\n", id="operating-error"),
        pytest.param(
            SettingsError("flags", [Fault("--port", "x", "an integer")]),
            0,
            1,
            "sternpost record: flags: --port: x is not allowed; allowed: an integer\n",
            id="input-error",
        ),
        pytest.param(KeyboardInterrupt(), 0, 130, "", id="interrupted"),
    ],
)
def test_status_and_message_follow_from_how_the_subcommand_ends(
    error: BaseException | None, status: int, expected: int, text: str
) -> None:
    """A typed error is one line for a person, never a traceback."""
    errors = io.StringIO()
    command = RecordingCommand(error=error, status=status)

    assert expected == run(["record", "--model", "m"], installed(record=command), {}, errors)
    assert text == errors.getvalue()


def test_untyped_error_is_not_hidden() -> None:
    """A programmer's error keeps its traceback."""
    command = RecordingCommand(error=ZeroDivisionError())

    with pytest.raises(ZeroDivisionError):
        run(["record", "--model", "m"], installed(record=command), {}, io.StringIO())


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(["broken"], id="alone"),
        pytest.param(["broken", "--port", "1", "word"], id="with-flags"),
        pytest.param(["broken", "--help"], id="asked-for-help"),
    ],
)
def test_part_that_cannot_be_imported_says_what_is_missing(argv: list[str]) -> None:
    """A subcommand whose extra is not installed names the missing package, whatever it is given."""
    errors = io.StringIO()
    commands = installed(broken=ImportError("No module named 'aiohttp'"))

    assert run(argv, commands, {}, errors) == 1
    assert "No module named 'aiohttp'" in errors.getvalue()


def test_overview_lists_subcommands_and_survives_a_missing_part(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` shows every installed subcommand, also beside one that cannot be imported."""
    commands = installed(record=RecordingCommand(), broken=ImportError("No module named 'aiohttp'"))
    with pytest.raises(SystemExit) as exit_info:
        run(["--help"], commands, {}, io.StringIO())
    text = capsys.readouterr().out

    assert exit_info.value.code == 0
    assert "Record what was asked for." in text
    assert "not available: No module named 'aiohttp'" in text


def test_help_names_each_flags_variable(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads a flag's help learns its environment variable."""
    with pytest.raises(SystemExit):
        run(["record", "--help"], installed(record=RecordingCommand()), {}, io.StringIO())

    assert "[STERNPOST_LOG_LEVEL]" in capsys.readouterr().out


def test_asked_for_subcommand_is_the_only_one_loaded() -> None:
    """A slow or broken part does not hold up another part's subcommand."""
    loads: list[str] = []
    commands = [
        Installed(name, cast(EntryPoint, FakeEntryPoint(RecordingCommand(), name, loads)))
        for name in ("record", "slow")
    ]

    assert run(["record", "--model", "m"], commands, {}, io.StringIO()) == 0
    assert ["record"] == loads


def test_installed_commands_are_sorted_by_name() -> None:
    """The overview's order does not hang on the order of installation."""
    names = [command.name for command in installed_commands()]

    assert sorted(names) == names
    assert "engine" in names
