"""
What the gateway is told at its start, parsed once into frozen values.

Each limit has a name, its unit last, and the reason for its default beneath it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sternpost_core.errors import Fault, SettingsError
from sternpost_core.logs import LogFormat
from sternpost_core.reader import is_dns_label
from sternpost_gateway.cold_limiter import ColdLimits
from sternpost_gateway.prefill_budget import SHADOW_SHARE

WORKERS_MAX: Final = 64
"""Processes of one gateway: more than that would divide its limits until nothing is left."""


class Credentials(StrEnum):
    """Which credentials an engine sees."""

    REPLACE = "replace"
    FORWARD = "forward"
    NONE = "none"


class TlsVersion(StrEnum):
    """The oldest version of TLS that clients may speak."""

    TLS_1_2 = "1.2"
    TLS_1_3 = "1.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """What clients see; with `client_ca`, they have to show a certificate of its authorities."""

    cert: Path
    key: Path
    client_ca: Path | None = None
    version_min: TlsVersion = TlsVersion.TLS_1_2


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTls:
    """
    How engines with an https URL are met: whose certificates they may have, and for which name.

    `cert` and `key` are what they are shown.
    """

    ca: Path | None = None
    server_name: str | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long the gateway waits, in seconds."""

    connect_seconds: float = 2.0
    """To open a connection. An engine is in the same cluster: more means that it is gone."""

    first_byte_seconds: float = 120.0
    """Until an answer begins. A long prompt on a busy engine takes tens of seconds."""

    ping_seconds: float = 0.0
    """Between two comments in a stream that has not begun; 0: none, and a refusal keeps its status."""

    idle_seconds: float = 300.0
    """Between two pieces of an answer. There is no total limit: a stream may run for hours."""

    write_stall_seconds: float = 30.0
    """Until a client that does not read is given up; its slot is worth more to others."""

    headers_seconds: float = 10.0
    """For the headers of a request, and for the first byte on a new connection."""

    body_grace_seconds: float = 10.0
    """For which a request's body may arrive at any rate; afterwards `body_rate_bytes` applies."""

    pool_keepalive_seconds: float = 4.0
    """For which an idle connection is kept: shorter than vLLM's 5 s, so that we are always first to close."""

    client_keepalive_seconds: int = 75
    """For which a client's idle connection is kept, longer than common load balancers' 60 s."""

    probe_period_seconds: float = 2.0
    probe_seconds: float = 1.0
    """How often an engine's health is asked for, and how long an answer may take."""

    info_period_seconds: float = 10.0
    """How often an engine is asked who it is, to notice a restart that no probe saw."""

    dns_period_seconds: float = 5.0
    """How often the addresses behind names are looked up: as often as cluster DNS may change its answers."""

    control_seconds: float = 30.0
    """For a tokenize or build call, off the hot path."""

    drain_delay_seconds: float = 5.0
    """Between readiness going off and the listening socket closing, so that load balancers notice."""

    drain_seconds: int = 600
    """For streams in flight to finish during a shutdown."""

    kill_file_seconds: float = 0.25
    """Between looks at the kill file: what it says counts within 1 s, even on a slow disk."""

    unkill_step_seconds: float = 120.0
    """Between two shares of the sessions that come back after a kill level; 0: all come at once."""

    kill_ramp_seconds: float = 600.0
    """Over which sessions get a kill level that changes prompts or engines, unless it is forced; 0: at once.
    Their prompts are cold then: spread over so long, engines compute them beside the rest."""

    poll_seconds: float = 0.5
    """Between looks at the policy directory when nothing is reported: an edit is live within 1 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much the gateway takes on."""

    body_bytes_max: int = 64 * 1024 * 1024
    """Of one inspected request; images in base64 make requests of tens of MiB."""

    bodies_bytes_max: int = 1024 * 1024 * 1024
    """Of all inspected requests in flight together, so that memory is bounded."""

    body_rate_bytes: int = 1024
    """Per second, after the grace: slower senders are cut off."""

    in_flight_max: int = 4096
    """Requests at once, over all engines; a stream is one until its end."""

    connections_max: int = 16_384
    """Of clients at once: four times the requests, as most are idle. Over others only the gateway's own paths
    are served."""

    metered_body_bytes_max: int = 1024 * 1024
    """Of a complete answer that is copied to read its usage; longer ones are relayed unmetered."""

    event_bytes_max: int = 1024 * 1024
    """Of one server-sent event that is held until it is complete; longer ones pass as they come."""

    read_buffer_bytes: int = 32 * 1024
    """Of an answer held while the client is not ready: the transport pauses at twice this."""

    retry_share: float = 0.1
    retry_min: int = 3
    """Retries at once: at most this share of the requests in flight, and at least so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """
    The Kubernetes cluster that holds the policies, pools and kill switches.

    Without a kubeconfig file the gateway is a pod of it; without a namespace it serves all of them. With
    `rollouts`, an operator decides who gets a policy's behaviour, and until it has, nobody does.
    """

    kubeconfig: Path | None = None
    namespace: str | None = None
    rollouts: bool = False


@dataclass(frozen=True, slots=True)
class Worker:
    """
    One of `count` processes that share a port, by its number from 0.

    `folder` is theirs alone: there they reach one another.
    """

    index: int
    count: int
    folder: Path


ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""The signatures of tokens that may be allowed: each is made with a key that only the issuer has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """Which signed tokens count: `keys` is the file or URL of the issuer's keys."""

    keys: str
    issuer: str
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    tenant_claim: str = "sub"


@dataclass(frozen=True, slots=True)
class KvEventPorts:
    """The ports where each engine publishes its KV events, and replays them."""

    events: int = 5557
    replay: int = 5558


@dataclass(frozen=True, slots=True)
class Traces:
    """Where traces go, by OTLP over HTTP; without an endpoint, where OpenTelemetry's own variables say."""

    endpoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEstimate:
    """How tokens are estimated until an engine has counted them: by a file of ranks, or a named encoding."""

    encoding: str = "o200k_base"
    ranks: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """
    Everything that `sternpost gateway` was told; the objects are in a directory or in a cluster.

    `engines` are base URLs, `engine_names` are URLs whose host has an address for each engine. `worker` is
    None in a process that has its port for itself.
    """

    policies: Path | None = None
    cluster: Cluster | None = None
    engines: tuple[str, ...] = ()
    engine_names: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    worker: Worker | None = None
    tls: ServerTls | None = None
    engine_tls: EngineTls = field(default_factory=EngineTls)
    state: Path | None = None
    kill_file: Path | None = None
    admin_token: str | None = field(default=None, repr=False)
    salt_secret: bytes | None = field(default=None, repr=False)
    kv_events: KvEventPorts | None = None
    client_keys: Path | None = None
    tokens: TokenRules | None = None
    credentials: Credentials = Credentials.FORWARD
    engine_key: str | None = field(default=None, repr=False)
    engine_key_file: Path | None = None
    response_headers: bool = True
    token_estimate: TokenEstimate | None = None
    traces: Traces | None = None
    log_format: LogFormat = LogFormat.TEXT
    limits: Limits = field(default_factory=Limits)
    cold: ColdLimits = field(default_factory=ColdLimits)
    shadow_share: float = SHADOW_SHARE
    timeouts: Timeouts = field(default_factory=Timeouts)

    @property
    def own_state(self) -> Path | None:
        """Return the directory for what a worker keeps for itself; the first one's is the gateway's."""
        if self.state is None or self.worker is None or self.worker.index == 0:
            return self.state
        return self.state / f"worker-{self.worker.index}"


def check_settings(settings: Settings) -> None:
    """
    Check what can be checked without touching the network.

    Raises:
        SettingsError: with every fault.
    """
    faults = [fault for url in settings.engines if (fault := url_fault("--engine", url)) is not None]
    faults += [fault for url in settings.engine_names if (fault := _name_fault(url)) is not None]
    collector = settings.traces.endpoint if settings.traces else None
    if collector is not None and (fault := url_fault("--otlp-endpoint", collector)) is not None:
        faults.append(fault)
    if not settings.engines and not settings.engine_names and settings.cluster is None:
        faults.append(
            Fault("--engine, --engine-dns", "nothing", "at least one engine's URL, or --kubernetes")
        )
    if len(set(settings.engines)) != len(settings.engines):
        faults.append(Fault("--engine", "the same URL twice", "each engine once"))
    faults += _place_faults(settings)
    if settings.kill_file is not None and not settings.kill_file.parent.is_dir():
        faults.append(Fault("--kill-file", str(settings.kill_file), "a file in an existing directory"))
    if settings.credentials is Credentials.REPLACE and settings.engine_key is None:
        faults.append(Fault("--credentials", "replace", "replace, together with --engine-key-file"))
    faults += _caller_faults(settings)
    if faults:
        raise SettingsError("settings", faults)


def _caller_faults(settings: Settings) -> list[Fault]:
    """Return what is wrong with how clients prove who they are."""
    faults: list[Fault] = []
    tokens = settings.tokens
    checked = settings.client_keys is not None or tokens is not None
    if checked and settings.credentials is Credentials.FORWARD:
        # What proves a client to the gateway is no engine's business.
        allowed = "replace or none, where clients have keys or tokens of the gateway's"
        faults.append(Fault("--credentials", "forward", allowed))
    if tokens is None:
        return faults
    given = {"--jwt-keys": tokens.keys, "--jwt-issuer": tokens.issuer, "--jwt-audience": tokens.audiences}
    faults += [
        Fault(flag, "nothing", "all three of " + ", ".join(given)) for flag in given if not given[flag]
    ]
    faults += [
        Fault("--jwt-algorithm", name, ", ".join(ALGORITHMS))
        for name in tokens.algorithms
        if name not in ALGORITHMS
    ]
    if tokens.keys.startswith("http://"):
        # Whoever can change the keys on the way can be anybody.
        faults.append(Fault("--jwt-keys", tokens.keys, "a file, or a URL that begins with https://"))
    return faults


def _place_faults(settings: Settings) -> list[Fault]:
    """Return what is wrong with where the objects are."""
    policies, cluster = settings.policies, settings.cluster
    if (policies is None) == (cluster is None):
        found = "neither" if policies is None else "both"
        return [Fault("--policies, --kubernetes", found, "exactly one of them")]
    if policies is not None and not policies.is_dir():
        return [Fault("--policies", str(policies), "an existing directory")]
    if cluster is None:
        return []
    faults = []
    if cluster.kubeconfig is not None and not cluster.kubeconfig.is_file():
        faults.append(Fault("--kubeconfig", str(cluster.kubeconfig), "an existing file"))
    if cluster.namespace is not None and not is_dns_label(cluster.namespace):
        faults.append(Fault("--namespace", cluster.namespace, "a namespace's name (a DNS-1123 label)"))
    return faults


def _name_fault(url: str) -> Fault | None:
    fault = url_fault("--engine-dns", url)
    if fault is None and not url.startswith("http://"):
        # The addresses behind a name have no certificate of their own.
        return Fault("--engine-dns", url, "http://HOST:PORT")
    return fault


def url_fault(flag: str, url: str) -> Fault | None:
    """Return what is wrong with a URL that is to name a server and nothing else, None if nothing is."""
    allowed = "http://HOST:PORT or https://HOST:PORT, without a path"
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        return Fault(flag, url, allowed)
    plain = parts.path in ("", "/") and not parts.query and not parts.fragment and parts.username is None
    if (
        parts.scheme in ("http", "https")
        and parts.hostname
        and port_is_valid
        and plain
        and _can_be_asked(url)
    ):
        return None
    return Fault(flag, url, allowed)


def _can_be_asked(url: str) -> bool:
    """Tell whether the client takes a URL: it raises what is none of its own errors where it asks one."""
    # The client takes a while to load: only who names a URL waits for it.
    import httpx

    try:
        # An address such as 10.0.0.256 is none; what is no name in any alphabet shows when it is read.
        return bool(httpx.URL(url).host)
    except (httpx.InvalidURL, UnicodeError):
        return False
