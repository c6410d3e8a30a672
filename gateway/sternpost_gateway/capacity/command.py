"""The subcommand `sternpost plan`."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sternpost_core.errors import Fault, OperatingError, PolicyError, SettingsError
from sternpost_core.flag_numbers import above_zero, busy_percent, positive, zero_or_more
from sternpost_core.policy import Policy
from sternpost_core.policy_parse import parse
from sternpost_gateway.bench.records import read_records
from sternpost_gateway.capacity.demand import Demand, demands
from sternpost_gateway.capacity.report import plan_json, plan_text
from sternpost_gateway.capacity.sizing import Plan, Prices, Promise, plan
from sternpost_gateway.capacity.speed import Speed, fit, points_of
from sternpost_gateway.lint.analysis import Options, analyse
from sternpost_gateway.lint.command import BLOCK_TOKENS, CACHE_TOKENS
from sternpost_gateway.lint.encoders import EstimateEncoder
from sternpost_gateway.lint.fixes import PolicyNames
from sternpost_gateway.lint.log import Log
from sternpost_gateway.lint.model_tokenizer import load_model_tokenizer
from sternpost_gateway.lint.progress import progress_bar
from sternpost_gateway.lint.prompt import PlainPrompts, Prompts, TemplatePrompts
from sternpost_gateway.lint.simulate import CacheShape
from sternpost_gateway.yaml_files import read_documents

PLOTTED: Final = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""The picture's rates, as multiples of the rate that was asked for."""

PLANNING: Final = "planning"

DESCRIPTION: Final = """
Say how many engines a log's traffic takes, with and without Sternpost, what their stores hold, what they cost
and when the first token comes. Reuse is simulated as `sternpost lint` does; an engine's speed is told by
flags, or fitted to a run of `sternpost bench`.
"""


class PlanCommand:
    """Plan engines for a log's traffic."""

    summary = "say how many engines a log's traffic takes with and without reuse, and what they cost"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.description = DESCRIPTION
        parser.add_argument("files", nargs="+", metavar="FILE", help="log, as `sternpost lint` reads it")
        parser.add_argument(
            "--policy-file", type=Path, metavar="FILE", help="default: the one that lint proposes"
        )
        _add_traffic(parser)
        _add_speed(parser)
        _add_tokens(parser)
        parser.add_argument("--output", choices=("text", "json"), default="text", help="default: %(default)s")
        parser.add_argument("--plot", type=Path, metavar="FILE", help="draw engines over requests as PNG")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the plan."""
        speed = speed_of(arguments)
        promise = Promise(
            requests_per_second=arguments.requests_per_second,
            answer_tokens=arguments.answer_tokens_mean,
            ttft_p95_seconds=arguments.ttft_p95_ms / 1000,
            utilisation_max=arguments.busy_max / 100,
        )
        prices = Prices(engine_hour=arguments.price_per_hour, kv_bytes_per_token=arguments.kv_kib * 1024)
        today, fixed = _demands(arguments)
        plans = plan(today, speed, promise, prices), plan(fixed, speed, promise, prices)
        show = plan_json if arguments.output == "json" else plan_text
        print(show(*plans, speed, promise))
        if arguments.plot is not None:
            _draw(arguments.plot, (today, fixed), speed, promise, prices)
        return 0


COMMAND: Final = PlanCommand()
"""What the entry point names."""


def speed_of(arguments: argparse.Namespace) -> Speed:
    """
    Return an engine's speed as the flags tell it, or fitted to a bench's run.

    Raises:
        SettingsError: neither is given, or the run has no such target.
        OperatingError: the run cannot be read, or no speed fits.
    """
    if arguments.speed_from is None:
        if arguments.prefill_rate is None:
            fault = Fault("--prefill-rate", "nothing", "tokens per second, or a bench's run by --speed-from")
            raise SettingsError("plan", [fault])
        return Speed(
            arguments.prefill_rate, arguments.fixed_ms / 1000, arguments.decode_rate, arguments.pair_ns / 1e9
        )
    recorded = read_records(arguments.speed_from)
    target = arguments.speed_target or recorded.head["baseline"]
    if target not in recorded.head["targets"]:
        raise SettingsError(
            "plan", [Fault("--speed-target", repr(target), ", ".join(recorded.head["targets"]))]
        )
    return fit(points_of(recorded.units, target), arguments.decode_rate)


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--requests-per-second", type=above_zero, required=True, metavar="R", help="how many come, on average"
    )
    parser.add_argument(
        "--answer-tokens-mean",
        type=zero_or_more,
        default=200.0,
        metavar="N",
        help="of an answer (%(default)s)",
    )
    parser.add_argument(
        "--ttft-p95-ms", type=above_zero, default=2000.0, metavar="MS",
        help="what 95%% of first tokens must keep (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--busy-max", type=busy_percent, default=80.0, metavar="PERCENT", help="default: %(default)s"
    )
    parser.add_argument(
        "--price-per-hour",
        type=zero_or_more,
        default=0.0,
        metavar="PRICE",
        help="of an engine, in any currency",
    )


def _add_speed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prefill-rate", type=above_zero, metavar="N", help="prompt tokens per second")
    parser.add_argument(
        "--fixed-ms",
        type=zero_or_more,
        default=0.0,
        metavar="MS",
        help="of each prompt (%(default)s)",
    )
    parser.add_argument(
        "--pair-ns", type=zero_or_more, default=0.0, metavar="NS",
        help="of each earlier token that a computed one looks at (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--decode-rate", type=above_zero, default=float("inf"), metavar="N",
        help="answer tokens per second of an engine, all requests together (default: answers cost nothing)",
    )  # fmt: skip
    parser.add_argument("--speed-from", type=Path, metavar="RUN", help="fit the speed to a bench's run")
    parser.add_argument(
        "--speed-target", metavar="NAME", help="whose requests are fitted (default: the baseline)"
    )


def _add_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, metavar="DIR", help="folder of tokenizer and chat template")
    parser.add_argument(
        "--kv-kib", type=above_zero, default=128.0, metavar="KIB", help="KV of a token (default: %(default)s)"
    )
    parser.add_argument("--block-tokens", type=positive, default=BLOCK_TOKENS, metavar="N")
    parser.add_argument("--cache-tokens", type=positive, default=CACHE_TOKENS, metavar="N")


def _demands(arguments: argparse.Namespace) -> tuple[Demand, Demand]:
    shape = CacheShape(arguments.block_tokens, arguments.cache_tokens)
    prompts = _prompts(arguments.model)
    with ExitStack() as stack:
        log = Log(arguments.files, None, stack, sys.stdin.buffer)
        advance = stack.enter_context(progress_bar(log.size, sys.stderr))
        if arguments.policy_file is None:
            policy = analyse(log, prompts, Options(shape=shape, names=PolicyNames()), advance).policy
        else:
            policy = read_policy(arguments.policy_file)
        # The log is of the requests that the plan is about, whatever else the policy asks of a request.
        policy = policy and replace(policy, match=replace(policy.match, models=()))
        today, fixed = demands(log, prompts, shape, policy, lambda read: advance(PLANNING, read))
    if not today.prompt_tokens:
        raise OperatingError("no line of the log holds a request that an engine would take")
    return today, fixed


def read_policy(path: Path) -> Policy:
    """
    Read a CachePolicy, as strictly as a gateway reads it.

    Raises:
        OperatingError: the file cannot be read as YAML, or holds several objects.
        PolicyError: it holds another object, or the policy is wrong.
    """
    try:
        documents = read_documents(path)
    except PolicyError as error:
        raise OperatingError(f"--policy-file: {path} cannot be read as YAML: {error}") from error
    objects = [document for document in documents if document is not None]
    if len(objects) != 1:
        raise OperatingError(f"--policy-file: {path} holds {len(objects)} objects; allowed: one CachePolicy")
    return parse(objects[0])


def _prompts(model: Path | None) -> Prompts:
    if model is None:
        return PlainPrompts(EstimateEncoder())
    return TemplatePrompts(load_model_tokenizer(model, datetime.now()), f"tokenizer of {model.name}")


def _draw(path: Path, pair: tuple[Demand, Demand], speed: Speed, promise: Promise, prices: Prices) -> None:
    if find_spec("matplotlib") is None:
        print("sternpost plan: no plot is drawn, because matplotlib is missing", file=sys.stderr)
        return
    # Only drawing needs it, and it takes a second to import.
    from sternpost_gateway.capacity.plot import write_plot

    rates = [promise.requests_per_second * factor for factor in PLOTTED]

    def plans(demand: Demand) -> list[Plan]:
        return [plan(demand, speed, replace(promise, requests_per_second=rate), prices) for rate in rates]

    try:
        write_plot(rates, plans(pair[0]), plans(pair[1]), path)
    except OSError as error:
        raise OperatingError(f"--plot: {path} cannot be written: {error.strerror}") from error
