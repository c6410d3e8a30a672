"""`sternpost calibrate`: what reusing a tail costs on one's own model, and which settings to take."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sternpost_core.clock import SystemClock
from sternpost_core.errors import Fault, SettingsError
from sternpost_core.flag_numbers import integer
from sternpost_core.policy_parse import ANCHOR_MAX, RECOMPUTE_MAX
from sternpost_core.reader import is_dns_name
from sternpost_engine.calibrate.settings import Settings
from sternpost_engine.command_engine import check_model

COUNTS_MAX: Final = 8
"""So many values of --last or --head at most: every one is computed with every other."""

TEST_MIDDLES_MAX: Final = 1000
ANSWER_TOKENS_MAX: Final = 512
MIDDLE_TOKENS_MAX: Final = 32_768
SAMPLES_MAX: Final = 256
SECONDS_MAX: Final = 24 * 3600
THREADS_MAX: Final = 1024


class CalibrateCommand:
    """Measures, prints, and writes the figures."""

    summary = "Measure what reusing a tail's KV costs on a model, and print the settings to take."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        defaults = Settings(model=Path(), tail=Path())
        parser.add_argument(
            "--model", type=Path, required=True, help="the folder of config, weights and tokenizer"
        )
        parser.add_argument("--tail", type=Path, required=True, help="a file with the tail's text")
        parser.add_argument(
            "--middles",
            type=Path,
            help="texts such as users send: *.jsonl with text or messages, and kind; or one text a line "
            "(default: the generic set)",
        )
        parser.add_argument(
            "--prefix", type=Path, help="a file with the first system message (default: none)"
        )
        parser.add_argument(
            "--out", type=Path, default=defaults.out, help="the folder for the results (default: %(default)s)"
        )
        parser.add_argument("--kind", default="", help="take the middles of this kind alone (default: all)")
        parser.add_argument(
            "--tail-role",
            choices=["system", "user"],
            default=defaults.tail_role,
            help="the role of the tail's message (default: %(default)s)",
        )
        _add_recompute(parser, defaults)
        _add_effort(parser, defaults)

    def run(self, arguments: argparse.Namespace) -> int:
        """Print progress on the standard error, the report on the standard output."""
        settings = read_settings(arguments)
        # Loading torch and transformers takes seconds, which --help and a wrong flag need not wait for.
        from sternpost_engine.calibrate.session import calibrate

        calibrate(settings, SystemClock(), sys.stdout, sys.stderr)
        return 0


def read_settings(arguments: argparse.Namespace) -> Settings:
    """
    Turn parsed flags into settings.

    Raises:
        SettingsError: a folder or a file is not there, or a name is none.
    """
    check_model(arguments.model)
    for flag, path in (
        ("--tail", arguments.tail),
        ("--middles", arguments.middles),
        ("--prefix", arguments.prefix),
    ):
        if path is not None and not path.is_file():
            raise SettingsError("calibrate", [Fault(flag, str(path), "a file that is there")])
    if arguments.out.exists() and not arguments.out.is_dir():
        raise SettingsError("calibrate", [Fault("--out", str(arguments.out), "a folder, or a new name")])
    return Settings(
        model=arguments.model,
        tail=arguments.tail,
        middles=arguments.middles,
        prefix=arguments.prefix,
        out=arguments.out,
        kind=arguments.kind,
        tail_role=arguments.tail_role,
        last=arguments.last,
        head=arguments.head,
        match=arguments.match,
        anchor=arguments.anchor,
        config_map=arguments.config_map,
        test_middles=arguments.test_middles,
        answer_tokens=arguments.answer_tokens,
        middle_tokens_max=arguments.middle_tokens_max,
        calibration_samples=arguments.calibration_samples,
        time_budget=float(arguments.time_budget),
        device=arguments.device,
        threads=arguments.threads,
    )


def _add_recompute(parser: argparse.ArgumentParser, defaults: Settings) -> None:
    parser.add_argument(
        "--last",
        type=_counts(1),
        default=defaults.last,
        help="counts of the tail's last tokens that are computed, by commas (default: 1,16,32)",
    )
    parser.add_argument(
        "--head",
        type=_counts(0),
        default=defaults.head,
        help="counts of the tail's first tokens that are computed, by commas (default: 0,32)",
    )
    parser.add_argument(
        "--match",
        type=integer(0, RECOMPUTE_MAX),
        default=defaults.match,
        help="the most tokens computed because the middle names them; 0: none (default: %(default)s)",
    )
    parser.add_argument(
        "--anchor",
        type=integer(0, ANCHOR_MAX),
        default=defaults.anchor,
        help="the position of the tail in the anchored rows; 0: behind the longest middle (default: 0)",
    )
    parser.add_argument(
        "--config-map",
        type=_dns_name,
        default=defaults.config_map,
        help="the name that the advised settings give to your middles (default: %(default)s)",
    )


def _add_effort(parser: argparse.ArgumentParser, defaults: Settings) -> None:
    numbers: tuple[tuple[str, int, int, int, str], ...] = (
        (
            "--test-middles",
            defaults.test_middles,
            1,
            TEST_MIDDLES_MAX,
            "middles that are held out for testing",
        ),
        ("--answer-tokens", defaults.answer_tokens, 1, ANSWER_TOKENS_MAX, "tokens of each answer to compare"),
        ("--middle-tokens-max", defaults.middle_tokens_max, 1, MIDDLE_TOKENS_MAX, "longer ones are cut"),
        (
            "--calibration-samples",
            defaults.calibration_samples,
            1,
            SAMPLES_MAX,
            "middles per length and mean",
        ),
        ("--time-budget", int(defaults.time_budget), 1, SECONDS_MAX, "seconds, after which no middle begins"),
        ("--threads", len(os.sched_getaffinity(0)), 1, THREADS_MAX, "threads that compute on a CPU"),
    )
    for flag, default, least, most, what in numbers:
        parser.add_argument(
            flag, type=integer(least, most), default=default, help=f"{what} (default: {default})"
        )
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default=defaults.device, help="default: %(default)s"
    )


def _counts(least: int) -> Callable[[str], tuple[int, ...]]:
    def convert(word: str) -> tuple[int, ...]:
        one = integer(least, RECOMPUTE_MAX)
        counts = tuple(dict.fromkeys(one(part.strip()) for part in word.split(",")))
        if len(counts) > COUNTS_MAX:
            raise argparse.ArgumentTypeError(f"{word!r} is not allowed; allowed: up to {COUNTS_MAX} counts")
        return counts

    return convert


def _dns_name(word: str) -> str:
    if not is_dns_name(word):
        raise argparse.ArgumentTypeError(f"{word!r} is not allowed; allowed: the name of a ConfigMap")
    return word


COMMAND: Final = CalibrateCommand()
"""What the entry point `calibrate` of the group `sternpost.commands` names."""
