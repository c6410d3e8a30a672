"""The subcommand `sternpost doctor`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from sternpost_core.clock import Clock, SystemClock
from sternpost_core.command import EXIT_FAILED
from sternpost_core.errors import Fault, OperatingError, SettingsError
from sternpost_gateway.doctor.diagnosis import SETTLING, Finding, diagnose
from sternpost_gateway.doctor.probe import Seen, first_model, made_up_chat, numbered, probe
from sternpost_gateway.secret_files import secret_text
from sternpost_gateway.settings import url_fault

GATEWAY_DEFAULT: Final = "http://127.0.0.1:8080"

PROBES_MAX: Final = 12
"""Probes after the first one, while the tail is being learned and built."""

BETWEEN_SECONDS: Final = 1.0

ANSWER_SECONDS: Final = 120.0
"""How long a cold prompt may take on a slow engine."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the command line asks for; `chat` is None for the made-up one."""

    gateway: str
    key: str | None
    model: str | None
    chat: Mapping[str, Any] | None


class DoctorCommand:
    """Find where predicted, reported and timed reuse part."""

    summary = "send a chat twice through a gateway, and name the first place where reuse fails"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.add_argument(
            "--gateway", default=GATEWAY_DEFAULT, metavar="URL", help="base URL of the gateway"
        )
        parser.add_argument(
            "--model", metavar="NAME", help="the model to ask (default: the first one served)"
        )
        parser.add_argument(
            "--chat", type=Path, metavar="FILE", help="a chat request as JSON, in place of a made-up one"
        )
        parser.add_argument("--api-key-file", type=Path, metavar="FILE", help="the key that clients send")

    def run(self, arguments: argparse.Namespace) -> int:
        """Probe and print; the status is 0 only if everything agrees."""
        first, last = asyncio.run(_probe_all(order_of(arguments)))
        finding = diagnose(first, last)
        sys.stdout.writelines(f"{line}\n" for line in report_lines(first, last, finding))
        return EXIT_FAILED if finding is not None else 0


COMMAND: Final = DoctorCommand()
"""What the entry point names."""


def order_of(arguments: argparse.Namespace) -> Order:
    """
    Return what the flags ask for.

    Raises:
        SettingsError: the URL is none, or the file holds no chat.
        OperatingError: a file cannot be read.
    """
    fault = url_fault("--gateway", arguments.gateway)
    if fault is not None:
        raise SettingsError("flags", [fault])
    chat = None if arguments.chat is None else _read_chat(arguments.chat)
    key = secret_text("--api-key-file", arguments.api_key_file, 1)
    return Order(arguments.gateway, key, arguments.model, chat)


def _read_chat(path: Path) -> dict[str, Any]:
    try:
        chat = json.loads(path.read_bytes())
    except OSError as error:
        raise OperatingError(f"--chat {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError("flags", [Fault("--chat", str(path), "a JSON object")]) from error
    messages = chat.get("messages") if isinstance(chat, dict) else None
    if not isinstance(messages, list) or not all(isinstance(one, dict) and "role" in one for one in messages):
        raise SettingsError("flags", [Fault("--chat", str(path), "a chat request with messages")])
    return dict(chat)


async def _probe_all(order: Order) -> tuple[Seen, Seen]:
    headers = {"authorization": f"Bearer {order.key}"} if order.key else {}
    # No environment variable about proxies is believed: they would be what is measured.
    async with httpx.AsyncClient(
        base_url=order.gateway, headers=headers, timeout=ANSWER_SECONDS, trust_env=False
    ) as client:
        chat = dict(order.chat or made_up_chat(order.model or await first_model(client)))
        if order.model is not None:
            chat["model"] = order.model
        return await probe_until_settled(client, chat, SystemClock(), BETWEEN_SECONDS)


async def probe_until_settled(
    client: httpx.AsyncClient, chat: Mapping[str, Any], clock: Clock, between_seconds: float
) -> tuple[Seen, Seen]:
    """Return the first probe, and the first later one for which the tail is there, or the last of all."""
    first = last = await probe(client, numbered(chat, 0), clock)
    for number in range(1, PROBES_MAX + 1):
        last = await probe(client, numbered(chat, number), clock)
        if last.bypass not in SETTLING:
            break
        await asyncio.sleep(between_seconds)
    return first, last


def report_lines(first: Seen, last: Seen, finding: Finding | None) -> Iterator[str]:
    """Yield what was seen, and the diagnosis."""
    yield from (_line("first", first), _line("last", last))
    if finding is None:
        yield "predicted, reported and timed reuse agree"
    else:
        yield f"they part at the {finding.place}: {finding.seen}"
        yield f"what to do: {finding.advice}"


def _line(name: str, seen: Seen) -> str:
    reported = "nothing" if seen.cached_tokens is None else f"{seen.cached_tokens} of {seen.prompt_tokens}"
    predicted = "nothing" if seen.predicted is None else str(seen.predicted)
    policy, bypass = seen.policy or "none", seen.bypass or "none"
    return (
        f"{name}: policy {policy}, predicted {predicted}, reported {reported} tokens,"
        f" first token after {seen.first_token_seconds * 1000:.0f} ms, bypass {bypass}"
    )
