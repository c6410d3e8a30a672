"""The subcommand `sternpost lint`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, TextIO

import yaml

from sternpost_core.command import EXIT_FAILED, EXIT_USAGE
from sternpost_core.errors import Fault, OperatingError, SettingsError, SternpostError
from sternpost_core.flag_numbers import member_of, percent, positive, price
from sternpost_core.policy import Policy
from sternpost_core.policy_parse import parse
from sternpost_core.policy_write import to_mapping
from sternpost_core.reader import is_dns_name
from sternpost_gateway.lint.analysis import Options, analyse
from sternpost_gateway.lint.encoders import (
    Encoder,
    EstimateEncoder,
    named_encoder,
    ranks_encoder,
)
from sternpost_gateway.lint.explain import explain, explanation_json, explanation_text
from sternpost_gateway.lint.fixes import PolicyNames
from sternpost_gateway.lint.log import Log
from sternpost_gateway.lint.model_tokenizer import load_model_tokenizer
from sternpost_gateway.lint.progress import progress_bar
from sternpost_gateway.lint.prompt import PlainPrompts, Prompts, TemplatePrompts
from sternpost_gateway.lint.report import KINDS, Report
from sternpost_gateway.lint.request import LogFormat
from sternpost_gateway.lint.show_json import report_json
from sternpost_gateway.lint.show_sarif import report_sarif
from sternpost_gateway.lint.show_text import report_html, report_text
from sternpost_gateway.lint.simulate import CacheShape

BLOCK_TOKENS: Final = 16
"""Tokens of one block of vLLM's prefix cache, unless it is told otherwise."""

CACHE_TOKENS: Final = 262_144
"""Tokens that an engine's prefix cache holds: about 32 GiB for a model of 7B, at 128 KiB a token."""

OUTPUTS: Final = ("text", "json", "sarif", "html")

EXPLAINED: Final = 2
"""How many requests are compared."""

DESCRIPTION: Final = """
Look through logs of requests for what breaks an engine's prefix cache, and say what that costs, what each fix
would save, and which policy does it. Nothing is sent anywhere, and no text of a prompt is shown unless asked
for.
Exit status: 0, 1 when --fail-under or --fail-on says so, 2 when there is nothing to look at.
"""


class LintCommand:
    """Look through logs of requests."""

    summary = "find out what in a log of requests breaks the prefix cache, and what would help"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.description = DESCRIPTION
        parser.add_argument(
            "files", nargs="+", metavar="FILE", help="log in JSON Lines, gzip or not; - for standard input"
        )
        parser.add_argument(
            "--explain",
            action="store_true",
            help="compare two files that hold one request each, and say where they part",
        )
        parser.add_argument(
            "--format",
            type=member_of(LogFormat),
            choices=list(LogFormat),
            help="what the lines are (default: found out for each file)",
        )
        parser.add_argument(
            "--requests-max", type=positive, metavar="N", help="look at the first N requests only"
        )
        _add_tokens(parser)
        _add_output(parser)
        _add_policy(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the report and return what the gates say; 2 where there is nothing to report."""
        try:
            return _explain(arguments) if arguments.explain else _lint(arguments)
        except SternpostError as error:
            # Status 1 is the gates' alone, so that a build can tell a bad log from a bad cache.
            print(f"sternpost lint: {error}", file=sys.stderr)
            return EXIT_USAGE


COMMAND: Final = LintCommand()
"""What the entry point names."""


@dataclass(frozen=True, slots=True)
class Gates:
    """When a report fails: reuse today under a share from 0 to 1, or a finding of one of some kinds."""

    reuse_min: float
    kinds: frozenset[str]

    def failures(self, report: Report) -> list[str]:
        """Return what fails, in words."""
        failed: list[str] = []
        if report.reuse < self.reuse_min:
            failed.append(f"reuse today is {report.reuse:.1%}, under {self.reuse_min:.1%}")
        found = sorted({str(finding.kind) for finding in report.findings} & self.kinds)
        return failed + [f"there is a finding of kind {kind}" for kind in found]


def write_policy(policy: Policy, path: Path) -> None:
    """
    Write a policy as YAML, as a gateway's directory of policies or kubectl takes it.

    Raises:
        OperatingError: the file cannot be written.
    """
    mapping = to_mapping(policy)
    assert parse(mapping) == policy, "what is written reads the same"
    text = "# Proposed by sternpost lint: read it before you use it.\n" + yaml.safe_dump(
        mapping, sort_keys=False
    )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OperatingError(f"{path} cannot be written: {error.strerror}") from error


def dns_name(text: str) -> str:
    """Read the name of an object."""
    if not is_dns_name(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed; allowed: lower-case letters, digits, '-', '.'"
        )
    return text


def _add_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="directory with the model's tokenizer and chat template"
    )
    parser.add_argument(
        "--encoding", metavar="NAME", help="count tokens by this encoding, such as o200k_base"
    )
    parser.add_argument("--ranks", type=Path, metavar="FILE", help="count tokens by the ranks in this file")
    parser.add_argument(
        "--block-tokens", type=positive, default=BLOCK_TOKENS, metavar="N",
        help="tokens of one block of the engine's cache (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--cache-tokens", type=positive, default=CACHE_TOKENS, metavar="N",
        help="tokens that the engine's cache holds (default: %(default)s)",
    )  # fmt: skip


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", choices=OUTPUTS, default="text", help="form of the report (default: %(default)s)"
    )
    parser.add_argument(
        "--price-per-mtok", type=price, metavar="PRICE", help="what a million prompt tokens cost, for sums"
    )
    parser.add_argument(
        "--fail-under", type=percent, default=0.0, metavar="PERCENT",
        help="exit with 1 if less than this share of prompt tokens is reused today",
    )  # fmt: skip
    parser.add_argument(
        "--fail-on", action="append", choices=[str(kind) for kind in KINDS], default=[], metavar="KIND",
        help="exit with 1 if there is a finding of this kind; once for each kind: " + ", ".join(KINDS),
    )  # fmt: skip
    parser.add_argument(
        "--show-text", action="store_true", help="show up to 60 characters of the prompt with each finding"
    )


def _add_policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write-policy", type=Path, metavar="FILE", help="write the proposed CachePolicy")
    parser.add_argument(
        "--policy-name", type=dns_name, default=PolicyNames().name, metavar="NAME",
        help="what it is called (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--pool", type=dns_name, default=PolicyNames().pool, metavar="NAME",
        help="the EnginePool that it names (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--plain-engine",
        action="store_true",
        help="propose only what works without the engine's plugin: closing rules go in front",
    )


def _explain(arguments: argparse.Namespace) -> int:
    if len(arguments.files) != EXPLAINED:
        fault = Fault("--explain", f"{len(arguments.files)} files", f"{EXPLAINED} files")
        raise SettingsError("lint", [fault])
    first, second = map(Path, arguments.files)
    prompts = _prompts(arguments)
    found = explain(first, second, prompts, arguments.block_tokens, show_text=arguments.show_text)
    print(explanation_json(found) if arguments.output == "json" else explanation_text(found))
    return 0


def _lint(arguments: argparse.Namespace) -> int:
    options = Options(
        shape=CacheShape(arguments.block_tokens, arguments.cache_tokens),
        names=PolicyNames(name=arguments.policy_name, pool=arguments.pool),
        plain_engine=arguments.plain_engine,
        show_text=arguments.show_text,
        price=arguments.price_per_mtok,
    )
    prompts = _prompts(arguments)
    with ExitStack() as stack:
        log = Log(
            arguments.files,
            arguments.format,
            stack,
            sys.stdin.buffer,
            requests_max=arguments.requests_max,
        )
        advance = stack.enter_context(progress_bar(log.size, sys.stderr))
        report = analyse(log, prompts, options, advance)
    if not report.lines.requests:
        raise OperatingError(_nothing(report))
    _WRITERS[arguments.output](report, sys.stdout)
    _write_policy(report, arguments.write_policy)
    failed = Gates(arguments.fail_under / 100, frozenset(arguments.fail_on)).failures(report)
    for reason in failed:
        print(f"sternpost lint: {reason}", file=sys.stderr)
    return EXIT_FAILED if failed else 0


def _nothing(report: Report) -> str:
    lines = report.lines
    said = f"no line holds a request: {lines.bad} bad lines, {lines.skipped} about something else"
    return "; ".join([said, *(f"{file}:{line}: {reason}" for file, line, reason in lines.named)])


def _write_policy(report: Report, path: Path | None) -> None:
    if path is None:
        return
    if report.policy is None:
        print("sternpost lint: no policy is written, because nothing would help", file=sys.stderr)
        return
    write_policy(report.policy, path)


def _prompts(arguments: argparse.Namespace) -> Prompts:
    """Return how prompts are rendered: by the first that is given of model, encoding and ranks."""
    if arguments.model is not None:
        tokenizer = load_model_tokenizer(arguments.model, datetime.now())
        return TemplatePrompts(tokenizer, f"chat template and tokenizer of {arguments.model.name}")
    return PlainPrompts(_encoder(arguments))


def _encoder(arguments: argparse.Namespace) -> Encoder:
    if arguments.encoding is not None:
        return named_encoder(arguments.encoding)
    return EstimateEncoder() if arguments.ranks is None else ranks_encoder(arguments.ranks)


def _print(text: str, output: TextIO) -> None:
    print(text, file=output)


_WRITERS: Final[dict[str, Callable[[Report, TextIO], None]]] = {
    "text": report_text,
    "json": lambda report, output: _print(report_json(report), output),
    "sarif": lambda report, output: _print(report_sarif(report), output),
    "html": lambda report, output: _print(report_html(report), output),
}
