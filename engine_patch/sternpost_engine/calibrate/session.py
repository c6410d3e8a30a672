"""A calibration as a person sees it: bars while it runs, then the table, then the files."""

from __future__ import annotations

from typing import Final, TextIO

import torch
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from sternpost_core.clock import Clock
from sternpost_core.errors import Fault, SettingsError
from sternpost_engine.calibrate.files import write_files
from sternpost_engine.calibrate.progress import ProgressBars
from sternpost_engine.calibrate.report import print_report
from sternpost_engine.calibrate.settings import Settings
from sternpost_engine.calibrate.trial import run_trial

WIDTH_MIN: Final = 136
"""The table's width where the output is not a terminal, which has none of its own."""


def calibrate(settings: Settings, clock: Clock, out: TextIO, errors: TextIO) -> None:
    """
    Calibrate, print the report on `out` and everything else on `errors`, and write the files.

    Raises:
        SettingsError: a flag or a file is wrong.
        OperatingError: the model cannot be used, or the files cannot be written.
    """
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise SettingsError("calibrate", [Fault("--device", "cuda, which torch does not see here", "cpu")])
    torch.set_num_threads(settings.threads)
    # Its bars would break the ones of this command.
    disable_progress_bar()
    console = Console(file=errors)
    with ProgressBars(console) as progress:
        outcome = run_trial(settings, clock, progress)
    print_report(outcome, Console(file=out, width=None if out.isatty() else WIDTH_MIN))
    write_files(
        outcome, settings, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)
    )
