"""`sternpost model`: get the small model that demo, tests and benchmarks run on."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from sternpost_core.errors import OperatingError
from sternpost_engine.model_fetch import (
    MODEL_NAME,
    Surroundings,
    default_directory,
    fetch,
    is_model,
    run_program,
)


class ModelCommand:
    """Fetches the model, or says where it lies; the path alone goes to the standard output."""

    summary = f"Fetch the small model {MODEL_NAME} (135M parameters, 540 MB), or say where it lies."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.add_argument(
            "action",
            choices=["fetch", "path"],
            help="fetch: get it if it is not there yet, and print its path; path: print its path, or fail",
        )
        parser.add_argument("--directory", type=Path, help="where the model goes (default: the user's cache)")
        parser.add_argument("--force", action="store_true", help="build it anew even if it is there")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the model's path on the standard output, and progress on the standard error."""
        directory: Path = (arguments.directory or default_directory(os.environ)).absolute()
        if arguments.action == "fetch":
            fetch(directory, Surroundings(os.environ, run_program, _say), force=arguments.force)
        elif not is_model(directory):
            raise OperatingError(f"there is no model in {directory}; get it by: sternpost model fetch")
        print(directory)
        return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


COMMAND: Final = ModelCommand()
"""What the entry point `model` of the group `sternpost.commands` names."""
