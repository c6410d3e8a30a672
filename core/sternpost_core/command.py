"""
The one console command, `sternpost`.

Each part registers its subcommands under the entry-point group `sternpost.commands`, and this module finds
them there: so the command lists what is installed, and no part imports another. A subcommand is an object
with the attributes of `Command`; it is loaded only when it is asked for, or for the overview.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Protocol, TextIO

from sternpost_core import __version__
from sternpost_core.errors import SternpostError

COMMAND_GROUP: Final = "sternpost.commands"
"""The entry-point group in which the parts register their subcommands."""

ENVIRONMENT_PREFIX: Final = "STERNPOST_"
"""Every flag `--some-name` may also be given as the environment variable `STERNPOST_SOME_NAME`."""

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_UNREAD: Final = 141
"""As of a program that SIGINT, or SIGPIPE, has ended: nobody reads on what it prints."""


class Command(Protocol):
    """A subcommand: how it is described, which flags it takes, and what it does."""

    summary: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do the work and return the exit status; raise `SternpostError` for what a person should read."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A subcommand's name and the entry point that it is loaded from."""

    name: str
    entry_point: EntryPoint


def installed_commands() -> tuple[Installed, ...]:
    """Return the subcommands of all installed parts, sorted by name."""
    found = {point.name: Installed(point.name, point) for point in entry_points(group=COMMAND_GROUP)}
    return tuple(found[name] for name in sorted(found))


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sternpost`; the console script's entry."""
    if sys.stdout is None:
        # Whoever has closed it wants to read nothing, which is no reason to do nothing.
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    return run(sys.argv[1:] if argv is None else argv, installed_commands(), os.environ, sys.stderr)


def run(
    argv: Sequence[str],
    commands: Sequence[Installed],
    environment: Mapping[str, str],
    errors: TextIO,
) -> int:
    """
    Parse `argv` and run the subcommand that it names.

    Returns the subcommand's exit status, 1 when it raised a `SternpostError` or its output could not be
    written, 2 for wrong usage, 141 when nobody reads its output any more.
    """
    parser = argparse.ArgumentParser(prog="sternpost", description="Keep the fixed part of a prompt fixed.")
    parser.add_argument("--version", action="version", version=f"sternpost {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = next((word for word in argv if not word.startswith("-")), None)
    selected = [command for command in commands if command.name == wanted] or commands
    for installed in selected:
        _add_command(subparsers, installed, environment)
    arguments = parser.parse_args(list(argv))
    command: Command = arguments.run_command
    try:
        status = command.run(arguments)
        # What is held back has to arrive before the status says that all is well.
        sys.stdout.flush()
        return status
    except SternpostError as error:
        print(f"sternpost {arguments.command}: {error}", file=errors)
        return EXIT_FAILED
    except BrokenPipeError:
        _end_output()
        return EXIT_UNREAD
    except OSError as error:
        print(f"sternpost {arguments.command}: {error}", file=errors)
        _end_output()
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _end_output() -> None:
    """Write what is held back, or let it go nowhere: the interpreter would fail over it at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        # What stands in for standard output in a test has no number.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _add_command(subparsers: Any, installed: Installed, environment: Mapping[str, str]) -> None:
    try:
        command: Command = installed.entry_point.load()
    except ImportError as error:
        _add_unavailable(subparsers, installed, error)
        return
    parser = subparsers.add_parser(installed.name, help=command.summary, description=command.summary)
    parser.set_defaults(run_command=command)
    command.add_arguments(parser)
    apply_environment(parser, environment)


def _add_unavailable(subparsers: Any, installed: Installed, error: ImportError) -> None:
    # A part whose extra is not installed stays visible, and says what is missing when it is asked for:
    # whatever flags it is given, so none of them may be read as a flag here.
    command = _Unavailable(error)
    parser = subparsers.add_parser(installed.name, help=command.summary, prefix_chars="\0", add_help=False)
    parser.set_defaults(run_command=command)
    command.add_arguments(parser)


def apply_environment(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """
    Let environment variables stand in for flags that are not given, and say so in the flags' help.

    A variable goes through the flag's own type, so that a wrong value gets the flag's own error; a flag
    that may be repeated takes a comma-separated list.
    """
    for action in parser._actions:
        flag = next((option for option in action.option_strings if option.startswith("--")), None)
        if flag is None or isinstance(action, argparse._HelpAction | argparse._VersionAction):
            continue
        name = ENVIRONMENT_PREFIX + flag[2:].replace("-", "_").upper()
        action.help = f"{action.help or ''} [{name}]".strip()
        if name in environment:
            _take_default(parser, action, name, environment[name])


def _take_default(parser: argparse.ArgumentParser, action: argparse.Action, name: str, text: str) -> None:
    words = text.split(",") if isinstance(action, argparse._AppendAction) else [text]
    values = [_convert(parser, action, name, word) for word in words]
    action.default = _Replaceable(values) if isinstance(action, argparse._AppendAction) else values[0]
    action.required = False


def _convert(parser: argparse.ArgumentParser, action: argparse.Action, name: str, word: str) -> Any:
    if action.nargs == 0:
        if word.lower() not in ("1", "true", "yes", "0", "false", "no"):
            parser.error(f"{name}: {word!r} is not allowed; allowed: 1, true, yes, 0, false, no")
        return word.lower() in ("1", "true", "yes")
    try:
        value = action.type(word) if callable(action.type) else word
    except argparse.ArgumentTypeError as error:
        parser.error(f"{name}: {error}")
    except (ValueError, TypeError) as error:
        parser.error(f"{name}: {word!r} is not allowed; {error}")
    if action.choices is not None and value not in action.choices:
        parser.error(f"{name}: {word!r} is not allowed; allowed: {', '.join(map(str, action.choices))}")
    return value


class _Replaceable(list[Any]):
    """A repeated flag's values from the environment, which the first flag that is given replaces."""

    def __copy__(self) -> list[Any]:
        # argparse copies the default before it appends a flag's value to it.
        return []


class _Unavailable:
    """Stands in for a subcommand whose part cannot be imported here."""

    def __init__(self, error: ImportError) -> None:
        self.summary = f"(not available: {error})"
        self._error = error

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("ignored", nargs="*", help=argparse.SUPPRESS)

    def run(self, arguments: argparse.Namespace) -> int:
        raise SternpostError(f"not available here, because a package is missing: {self._error}")
