"""The subcommand `sternpost kill`."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import getpass
import ssl
import sys
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx

from sternpost_core.clock import SystemClock
from sternpost_core.command import EXIT_FAILED
from sternpost_core.errors import Fault, SettingsError
from sternpost_core.gateway_tls import GatewayCertificate
from sternpost_core.kill import LEVEL_FORMS, REASON_LENGTH_MAX, KillLevel, level_named
from sternpost_core.reader import is_full_name
from sternpost_gateway.cluster.errors import ClusterError
from sternpost_gateway.cluster.kill_object import gateway_urls, write_switch
from sternpost_gateway.cluster_flags import add_cluster_arguments, cluster_of
from sternpost_gateway.kill_client import KillClient, Outcome, Wanted, one_line
from sternpost_gateway.secret_files import TOKEN_LENGTH_MIN, secret_text
from sternpost_gateway.settings import Cluster, url_fault

if TYPE_CHECKING:
    from sternpost_gateway.cluster.api import KubernetesApi

GATEWAY_DEFAULT: Final = "http://127.0.0.1:8080"

GATEWAYS_MAX: Final = 256
"""Gateways that are asked at once."""

ANSWER_SECONDS: Final = 5.0
"""How long one gateway may take: it answers from memory and one write to disk."""

ARRIVAL_SECONDS: Final = 7.0
"""How long a level may take from the API server to a gateway whose watch is dead; then we tell it."""

STATUS: Final = "status"
HEADINGS: Final = ("GATEWAY", "ANSWERED", "AFTER", "LEVEL", "DETAIL")


@dataclass(frozen=True, slots=True)
class Order:
    """
    What the command line asks for: a level to set, or None to look only.

    With a cluster, the level goes to its API server first, and gateways that are not named are found there.
    With a certificate, gateways that serve it are met, and no other.
    """

    gateways: tuple[str, ...]
    token: str
    policy: str | None
    wanted: Wanted | None
    cluster: Cluster | None = None
    certificate: GatewayCertificate | None = None

    @property
    def scheme(self) -> str:
        """Return how gateways are asked that are found by their pods."""
        return "http" if self.certificate is None else "https"

    @property
    def trusted(self) -> ssl.SSLContext | bool:
        """Return what makes a gateway's certificate count: that it is the one, or whom the machine trusts."""
        return True if self.certificate is None else self.certificate.context


@dataclass(frozen=True, slots=True)
class Result:
    """What came of an order: what each gateway answered, and what there is to say before that."""

    outcomes: Sequence[Outcome]
    notes: tuple[str, ...]


class KillCommand:
    """Set the kill level at gateways, or look at it."""

    summary = "switch parts of Sternpost off, or on again, at running gateways"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.add_argument(
            "level",
            type=level_or_status,
            metavar="LEVEL",
            help=f"what to set: {LEVEL_FORMS}; or {STATUS}, to see what counts",
        )
        whom = parser.add_mutually_exclusive_group()
        whom.add_argument("--policy", metavar="NS/NAME", help="the policy that it is for")
        whom.add_argument("--all", action="store_true", help="it is for all policies, which is the default")
        parser.add_argument("--reason", default="", metavar="TEXT", help="why; logged, and shown to others")
        parser.add_argument(
            "--force",
            action="store_true",
            help="every session gets the level at once, also where that makes prompts cold",
        )
        parser.add_argument(
            "--gateway",
            action="append",
            metavar="URL",
            help=f"base URL of a gateway; once for each (default: {GATEWAY_DEFAULT})",
        )
        parser.add_argument(
            "--gateway-certificate",
            type=Path,
            metavar="FILE",
            help="gateways serve TLS with the first certificate of this file (default: those that no "
            "--gateway names serve none, and that of an https URL has to be one that this machine trusts)",
        )
        parser.add_argument(
            "--token-file", type=Path, required=True, metavar="FILE", help="the gateways' admin token"
        )
        add_cluster_arguments(parser, "set the level at the API server first, and find the gateways there")

    def run(self, arguments: argparse.Namespace) -> int:
        """Ask all gateways at once; the status is 0 only if each did all that it was asked for."""
        result = asyncio.run(carry_out(order_of(arguments)))
        sys.stdout.writelines(f"{line}\n" for line in [*result.notes, *table(result.outcomes)])
        incomplete = [outcome for outcome in result.outcomes if not outcome.complete]
        if incomplete:
            print(f"{len(incomplete)} of {len(result.outcomes)} gateways failed", file=sys.stderr)
        return EXIT_FAILED if incomplete or not result.outcomes else 0


COMMAND: Final = KillCommand()
"""What the entry point names."""


def level_or_status(text: str) -> KillLevel | None:
    """Read a level, or `status`, which is None."""
    level = level_named(text)
    if level is None and text.lower() != STATUS:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; allowed: {LEVEL_FORMS}, {STATUS}")
    return level


def order_of(arguments: argparse.Namespace) -> Order:
    """
    Return what the flags ask for.

    Raises:
        SettingsError: with every fault.
        OperatingError: the file of the token or of the certificate cannot be read.
    """
    cluster = cluster_of(arguments)
    named = arguments.gateway or ([] if cluster else [GATEWAY_DEFAULT])
    gateways = tuple(dict.fromkeys(named))
    policy = None if arguments.all else arguments.policy
    reason = _signed(arguments.reason)
    faults = [*_gateway_faults(gateways), *_text_faults(policy, reason)]
    if faults:
        raise SettingsError("flags", faults)
    token = secret_text("--token-file", arguments.token_file, TOKEN_LENGTH_MIN)
    assert token is not None, "the flag is required"
    wanted = None if arguments.level is None else Wanted(arguments.level, policy, reason, arguments.force)
    file: Path | None = arguments.gateway_certificate
    certificate = GatewayCertificate(file) if file is not None else None
    return Order(gateways, token, policy, wanted, cluster, certificate)


async def carry_out(order: Order) -> Result:
    """Carry out an order; no environment variable about proxies is believed."""
    headers = {"authorization": f"Bearer {order.token}"}
    async with httpx.AsyncClient(
        headers=headers, timeout=None, trust_env=False, verify=order.trusted
    ) as client:
        kills = KillClient(client, SystemClock(), ANSWER_SECONDS)
        if order.cluster is None:
            return Result(await kills.ask(order.gateways, order.wanted, order.policy), ())
        # The Kubernetes client nearly doubles the time to load: only who means a cluster waits for it.
        from sternpost_gateway.cluster.api import KubernetesApi

        async with aclosing(KubernetesApi(order.cluster.kubeconfig)) as api:
            return await _through_cluster(order, order.cluster, api, kills)


async def _through_cluster(order: Order, cluster: Cluster, api: KubernetesApi, kills: KillClient) -> Result:
    """Have the API server say it, wait until it has arrived, and tell the gateways where it has not."""
    written, notes = None, []
    if order.wanted is not None:
        written = await write_switch(api, order.wanted)
        notes.append(f"API server: CacheKillSwitch {written.name}: {one_line(written.detail)}")
    gateways = order.gateways
    if not gateways:
        gateways, note = await _found(api, cluster, order.scheme)
        notes += [note] if note else []
    if order.wanted is None or written is None or not written.ok or order.wanted.level is KillLevel.NONE:
        # Taking a level back also takes back what an earlier call has set straight at a gateway.
        return Result(await kills.ask(gateways, order.wanted, order.policy), tuple(notes))
    outcomes = await kills.arrive(gateways, order.wanted, ARRIVAL_SECONDS)
    missed = [outcome.gateway for outcome in outcomes if not outcome.complete]
    told = {outcome.gateway: outcome for outcome in await kills.ask(missed, order.wanted, order.policy)}
    return Result([told.get(outcome.gateway, outcome) for outcome in outcomes], tuple(notes))


async def _found(api: KubernetesApi, cluster: Cluster, scheme: str) -> tuple[tuple[str, ...], str]:
    try:
        urls = await gateway_urls(api, cluster.namespace, scheme)
    except ClusterError as error:
        return (), f"no gateway is known: {one_line(str(error))}; name them with --gateway"
    return tuple(
        urls[:GATEWAYS_MAX]
    ), "" if urls else "no gateway runs in the cluster; name them with --gateway"


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines that show who answered, when, and what counts there."""
    rows = [HEADINGS, *(_row(outcome) for outcome in outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _row(outcome: Outcome) -> tuple[str, ...]:
    at = datetime.datetime.fromtimestamp(outcome.at, datetime.UTC).strftime("%H:%M:%S.%f")[:-3] + "Z"
    answered = outcome.level is not None
    return (
        outcome.gateway,
        at if answered else "no",
        f"{outcome.seconds * 1000:.0f} ms",
        outcome.level or "unknown",
        outcome.detail or "-",
    )


def _gateway_faults(gateways: Sequence[str]) -> Iterable[Fault]:
    if len(gateways) > GATEWAYS_MAX:
        yield Fault("--gateway", f"{len(gateways)} URLs", f"at most {GATEWAYS_MAX} URLs")
    yield from (fault for url in gateways if (fault := url_fault("--gateway", url)) is not None)


def _text_faults(policy: str | None, reason: str) -> Iterable[Fault]:
    if policy is not None and not is_full_name(policy):
        yield Fault("--policy", repr(policy), "a name as namespace/name")
    if len(reason) > REASON_LENGTH_MAX:
        value = f"{len(reason)} characters, with the name of who gives it,"
        yield Fault("--reason", value, f"at most {REASON_LENGTH_MAX} characters")


def _signed(reason: str) -> str:
    """Return the reason with who gives it: a gateway sees an address only."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "an unknown user"
    return f"{reason or 'no reason given'} ({user})"
