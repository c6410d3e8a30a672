"""The subcommand `sternpost gateway`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from sternpost_core.errors import Fault, SettingsError
from sternpost_core.flag_numbers import (
    integer,
    member_of,
    port_number,
    port_or_zero,
    positive,
    seconds,
    share,
)
from sternpost_core.keys import SECRET_BYTES_MIN
from sternpost_gateway.cluster_flags import add_cluster_arguments, cluster_of
from sternpost_gateway.cold_limiter import ColdLimits
from sternpost_gateway.prefill_budget import SHADOW_SHARE
from sternpost_gateway.secret_files import TOKEN_LENGTH_MIN, secret_bytes, secret_text
from sternpost_gateway.server import serve
from sternpost_gateway.settings import (
    WORKERS_MAX,
    Cluster,
    Credentials,
    KvEventPorts,
    Limits,
    Settings,
    Timeouts,
    TokenEstimate,
    TokenRules,
    check_settings,
)
from sternpost_gateway.telemetry_flags import add_telemetry_arguments, traces_of
from sternpost_gateway.tls_flags import add_tls_arguments, engine_tls_of, server_tls_of

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
"""An environment without variables."""

DEFAULT_TIMEOUTS: Final = Timeouts()
DEFAULT_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class NumberFlag:
    """A flag that takes a number."""

    name: str
    metavar: str
    read: Callable[[str], float]
    default: float
    help: str


class GatewayCommand:
    """Run the gateway."""

    summary = "run the gateway in front of one or more engines"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        _add_places(parser)
        _add_kv_events(parser)
        _add_secrets(parser)
        _add_callers(parser)
        add_tls_arguments(parser)
        for flag in _number_flags():
            text = f"{flag.help} (default: %(default)s)"
            parser.add_argument(
                flag.name, metavar=flag.metavar, type=flag.read, default=flag.default, help=text
            )
        _add_estimate(parser)
        add_telemetry_arguments(parser)
        parser.add_argument(
            "--no-response-headers", action="store_true", help="answer without x-sternpost-* headers"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Run until told to stop."""
        serve(settings_of(arguments, os.environ))
        return 0


COMMAND: Final = GatewayCommand()
"""What the entry point names."""


def settings_of(arguments: argparse.Namespace, environment: Mapping[str, str] = NOTHING) -> Settings:
    """
    Return the settings that the flags make, and OpenTelemetry's variables in the `environment`.

    Raises:
        SettingsError: with every fault that can be seen without the network.
        OperatingError: a file that a flag names cannot be read.
    """
    settings = Settings(
        policies=arguments.policies,
        cluster=_cluster(arguments),
        engines=tuple(arguments.engine),
        engine_names=tuple(arguments.engine_dns),
        kv_events=_kv_events(arguments),
        host=arguments.host,
        port=arguments.port,
        workers=arguments.workers,
        tls=server_tls_of(arguments),
        engine_tls=engine_tls_of(arguments),
        state=arguments.state,
        kill_file=arguments.kill_file,
        admin_token=secret_text("--admin-token-file", arguments.admin_token_file, TOKEN_LENGTH_MIN),
        salt_secret=_salt_secret(arguments.salt_key_file),
        client_keys=arguments.client_keys,
        tokens=_tokens(arguments),
        credentials=arguments.credentials,
        engine_key=secret_text("--engine-key-file", arguments.engine_key_file, 1),
        engine_key_file=arguments.engine_key_file,
        response_headers=not arguments.no_response_headers,
        token_estimate=_token_estimate(arguments),
        traces=traces_of(arguments, environment),
        log_format=arguments.log_format,
        limits=replace(
            DEFAULT_LIMITS,
            body_bytes_max=arguments.max_body_bytes,
            bodies_bytes_max=arguments.max_bodies_bytes,
            in_flight_max=arguments.max_in_flight,
            connections_max=arguments.max_connections,
        ),
        cold=ColdLimits(
            cold_tokens=arguments.cold_tokens,
            batched_tokens=arguments.max_num_batched_tokens,
            sequences=arguments.max_num_seqs,
        ),
        shadow_share=arguments.shadow_share,
        timeouts=replace(
            DEFAULT_TIMEOUTS,
            first_byte_seconds=arguments.first_byte_seconds,
            headers_seconds=arguments.headers_seconds,
            ping_seconds=arguments.ping_seconds,
            unkill_step_seconds=arguments.unkill_step_seconds,
            kill_ramp_seconds=arguments.kill_ramp_seconds,
            idle_seconds=arguments.idle_seconds,
            drain_delay_seconds=arguments.drain_delay_seconds,
            drain_seconds=arguments.drain_seconds,
        ),
    )
    check_settings(settings)
    return settings


def _kv_events(arguments: argparse.Namespace) -> KvEventPorts | None:
    if not arguments.kv_events:
        return None
    return KvEventPorts(arguments.kv_events_port, arguments.kv_replay_port)


def _add_estimate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--encoding",
        metavar="NAME",
        help="estimate tokens by this encoding, such as o200k_base, until an engine has counted them;"
        " takes some 140 MiB (default: four bytes to a token)",
    )
    parser.add_argument(
        "--ranks", type=Path, metavar="FILE", help="estimate tokens by the ranks in this file instead"
    )


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policies",
        type=Path,
        metavar="DIR",
        help="directory of YAML files with CachePolicy objects; edits go live within a second",
    )
    add_cluster_arguments(parser, "take the objects from the Kubernetes API server instead of a directory")
    parser.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="URL",
        help="base URL of an engine; once for each engine (with --kubernetes: beside those of the pools)",
    )
    parser.add_argument(
        "--engine-dns",
        action="append",
        default=[],
        metavar="URL",
        help="http://HOST:PORT whose host has an address for each engine, such as a headless Service",
    )
    parser.add_argument(
        "--rollouts",
        action="store_true",
        help="with --kubernetes: an operator decides who gets a policy's behaviour; until then, nobody does",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=port_or_zero, default=8080, help="port to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--workers",
        type=integer(1, WORKERS_MAX),
        default=1,
        metavar="N",
        help="processes that share the port, and the limits (default: %(default)s)",
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="directory for what outlives a restart: kill levels, epochs, versions, the salt secret",
    )
    parser.add_argument(
        "--kill-file",
        type=Path,
        metavar="FILE",
        help="file that sets a kill level for all within a second: a level, and on a second line the reason",
    )


def _add_kv_events(parser: argparse.ArgumentParser) -> None:
    ports = KvEventPorts()
    parser.add_argument(
        "--kv-events",
        action="store_true",
        help="listen to the engines' KV events (vLLM's --kv-events-config with publisher zmq)",
    )
    for flag, default, what in (
        ("--kv-events-port", ports.events, "publishes its KV events"),
        ("--kv-replay-port", ports.replay, "replays them"),
    ):
        parser.add_argument(
            flag,
            type=port_number,
            default=default,
            metavar="PORT",
            help=f"port where each engine {what} (default: %(default)s)",
        )


def _add_secrets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--admin-token-file",
        type=Path,
        metavar="FILE",
        help="bearer token for /sternpost/v1/kill, which does not exist without",
    )
    parser.add_argument(
        "--salt-key-file",
        type=Path,
        metavar="FILE",
        help="secret of the cache salts, the same for all gateways of the same engines",
    )
    parser.add_argument(
        "--credentials",
        type=member_of(Credentials),
        choices=list(Credentials),
        default=Credentials.FORWARD,
        help="what engines see: the client's Authorization header, the engine key in its place,"
        " or neither (default: %(default)s)",
    )
    parser.add_argument(
        "--engine-key-file",
        type=Path,
        metavar="FILE",
        help="key for the engines' APIs; edits count within a second",
    )


def _add_callers(parser: argparse.ArgumentParser) -> None:
    defaults = TokenRules(keys="", issuer="", audiences=())
    parser.add_argument(
        "--client-keys",
        type=Path,
        metavar="FILE",
        help="clients need a key: a line for each, with its tenant and its SHA-256; edits go live at once",
    )
    parser.add_argument(
        "--jwt-keys",
        metavar="FILE|URL",
        help="clients need a signed token, or a key of --client-keys: the issuer's JSON Web Key Set",
    )
    parser.add_argument("--jwt-issuer", default="", metavar="TEXT", help="what a token's iss has to be")
    parser.add_argument(
        "--jwt-audience",
        action="append",
        default=[],
        metavar="TEXT",
        help="what a token's aud has to hold; may be repeated, then one of them",
    )
    parser.add_argument(
        "--jwt-algorithm",
        action="append",
        default=[],
        metavar="NAME",
        help=f"a signature that counts; may be repeated (default: {', '.join(defaults.algorithms)})",
    )
    parser.add_argument(
        "--jwt-tenant-claim",
        default=defaults.tenant_claim,
        metavar="NAME",
        help="the claim that names a token's tenant (default: %(default)s)",
    )


def _tokens(arguments: argparse.Namespace) -> TokenRules | None:
    """Return which tokens count, None if no flag speaks of any."""
    if not (arguments.jwt_keys or arguments.jwt_issuer or arguments.jwt_audience or arguments.jwt_algorithm):
        return None
    rules = TokenRules(
        keys=arguments.jwt_keys or "",
        issuer=arguments.jwt_issuer,
        audiences=tuple(arguments.jwt_audience),
        tenant_claim=arguments.jwt_tenant_claim,
    )
    return replace(rules, algorithms=tuple(arguments.jwt_algorithm)) if arguments.jwt_algorithm else rules


def _caution_flags() -> tuple[NumberFlag, ...]:
    """Return the flags of how quickly sessions change their kill level, and of what replays may cost."""
    return (
        NumberFlag(
            "--unkill-step-seconds",
            "SECONDS",
            seconds,
            DEFAULT_TIMEOUTS.unkill_step_seconds,
            "between two shares of the sessions that come back after a kill level; 0: all at once",
        ),
        NumberFlag(
            "--kill-ramp-seconds",
            "SECONDS",
            seconds,
            DEFAULT_TIMEOUTS.kill_ramp_seconds,
            "over which sessions get NoRewrite or NoAffinity, unless it is forced; 0: all at once",
        ),
        NumberFlag(
            "--shadow-share",
            "SHARE",
            share,
            SHADOW_SHARE,
            "of the engines' prefill rate that shadow replays may take, 0 to 1",
        ),
    )


def _number_flags() -> tuple[NumberFlag, ...]:
    limits, cold, timeouts = DEFAULT_LIMITS, ColdLimits(), DEFAULT_TIMEOUTS
    return (
        NumberFlag(
            "--max-body-bytes",
            "BYTES",
            positive,
            limits.body_bytes_max,
            "largest body of one inspected request",
        ),
        NumberFlag(
            "--max-bodies-bytes",
            "BYTES",
            positive,
            limits.bodies_bytes_max,
            "bytes of all inspected bodies in flight",
        ),
        NumberFlag(
            "--cold-tokens", "N", positive, cold.cold_tokens, "uncached tokens that make a request cold"
        ),
        NumberFlag(
            "--max-num-batched-tokens", "N", positive, cold.batched_tokens, "the engines' flag of this name"
        ),
        NumberFlag("--max-num-seqs", "N", positive, cold.sequences, "the engines' flag of this name"),
        *_caution_flags(),
        NumberFlag("--max-in-flight", "N", positive, limits.in_flight_max, "requests in flight"),
        NumberFlag("--max-connections", "N", positive, limits.connections_max, "connections of clients"),
        NumberFlag(
            "--first-byte-seconds",
            "SECONDS",
            seconds,
            timeouts.first_byte_seconds,
            "longest wait for an answer to begin",
        ),
        NumberFlag(
            "--headers-seconds",
            "SECONDS",
            seconds,
            timeouts.headers_seconds,
            "longest wait for a request's headers",
        ),
        NumberFlag(
            "--ping-seconds",
            "SECONDS",
            seconds,
            timeouts.ping_seconds,
            "between two comments in a stream that has not begun; 0: none",
        ),
        NumberFlag(
            "--idle-seconds", "SECONDS", seconds, timeouts.idle_seconds, "longest silence within an answer"
        ),
        NumberFlag(
            "--drain-delay-seconds",
            "SECONDS",
            seconds,
            timeouts.drain_delay_seconds,
            "from not ready to closing the port",
        ),
        NumberFlag(
            "--drain-seconds", "SECONDS", positive, timeouts.drain_seconds, "for requests in flight to finish"
        ),
    )


def _token_estimate(arguments: argparse.Namespace) -> TokenEstimate | None:
    if arguments.encoding is not None and arguments.ranks is not None:
        fault = Fault("--encoding", "together with --ranks", "one of --encoding, --ranks")
        raise SettingsError("settings", [fault])
    if arguments.ranks is not None:
        return TokenEstimate(ranks=arguments.ranks)
    return None if arguments.encoding is None else TokenEstimate(encoding=arguments.encoding)


def _cluster(arguments: argparse.Namespace) -> Cluster | None:
    """
    Return the cluster that the flags mean, if they mean one.

    Raises:
        SettingsError: a flag speaks of a cluster that nothing asks for.
    """
    cluster = cluster_of(arguments)
    if cluster is None and arguments.rollouts:
        raise SettingsError("settings", [Fault("--rollouts", "true", "nothing without --kubernetes")])
    return None if cluster is None else replace(cluster, rollouts=arguments.rollouts)


def _salt_secret(path: Path | None) -> bytes | None:
    data = secret_bytes("--salt-key-file", path)
    if data is not None and len(data) < SECRET_BYTES_MIN:
        raise SettingsError(
            "settings", [Fault("--salt-key-file", f"{len(data)} bytes", f"at least {SECRET_BYTES_MIN} bytes")]
        )
    return data
