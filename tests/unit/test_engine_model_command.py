"""`sternpost model`: what it prints where."""

import argparse
from pathlib import Path

import pytest

from sternpost_core.errors import OperatingError
from sternpost_engine.command_model import COMMAND
from sternpost_engine.model_fetch import MODEL_FILES


def arguments(*words: str) -> argparse.Namespace:
    """Parse `words` as the subcommand's."""
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("action", ["fetch", "path"])
def test_path_alone_goes_to_standard_output(
    action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script reads the model's path from the output and nothing else."""
    for name in MODEL_FILES:
        (tmp_path / name).touch()

    assert COMMAND.run(arguments(action, "--directory", str(tmp_path))) == 0
    assert f"{tmp_path}\n" == capsys.readouterr().out


def test_missing_model_names_the_command_that_gets_it(tmp_path: Path) -> None:
    """`path` fails with what to do."""
    with pytest.raises(OperatingError, match=r"no model in .*; get it by: sternpost model fetch"):
        COMMAND.run(arguments("path", "--directory", str(tmp_path / "none")))
