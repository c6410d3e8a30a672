"""
The CachePolicy: what is to be kept fixed, for which requests, and how carefully that is rolled out.

Values only. `sternpost_core.policy_parse` reads them from an object, `sternpost_core.policy_match` decides
which policy a request gets. Every default only observes: a policy changes prompts where it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sternpost_core.kill import KillLevel
from sternpost_core.policy_status import SegmentVersion

POLICY_KIND: Final = "CachePolicy"

BUCKETS: Final = (256, 512, 1024, 2048, 4096)
"""The lengths, in tokens, that the suffix store keeps tails in."""

PREFIX_EPOCH_MAX: Final = 2**31 - 1
"""More than anybody counts to, by hand or in Unix seconds, before 2038."""

STEPS_DEFAULT: Final = (1, 5, 10, 25, 50, 100)
"""The rollout's steps in percent of sessions."""


class Isolation(StrEnum):
    """Who may reuse whose KV."""

    TENANT = "Tenant"
    SESSION = "Session"
    SHARED = "Shared"


class TenantSourceKind(StrEnum):
    """Where the tenant's name is taken from; the values are the keys below `tenantFrom`."""

    HEADER = "header"
    JWT_CLAIM = "jwtClaim"
    API_KEY = "apiKey"


class Layout(StrEnum):
    """Where the fixed tail goes."""

    PRESERVE = "Preserve"
    TAIL_FIRST = "TailFirst"
    FIXED_TAIL = "FixedTail"


class Canonicalize(StrEnum):
    """What is done about equivalent forms of tool lists and schemas."""

    OFF = "Off"
    REPORT = "Report"
    PIN = "Pin"


class Detector(StrEnum):
    """The volatile spans that Sternpost knows by itself."""

    TIMESTAMP = "Timestamp"
    DATE = "Date"
    REQUEST_ID = "RequestId"
    SESSION_ID = "SessionId"
    TRACE_ID = "TraceId"
    UUID = "Uuid"
    COUNTER = "Counter"
    HASH = "Hash"
    WORKING_DIRECTORY = "WorkingDirectory"
    RANDOM_TOKEN = "RandomToken"
    BILLING_HEADER = "BillingHeader"


class VolatileAction(StrEnum):
    """What is done about a volatile span in the stable prefix."""

    REPORT = "Report"
    RELOCATE = "Relocate"
    STRIP = "Strip"


STRIPPABLE: Final = frozenset({Detector.BILLING_HEADER})
"""The detectors whose spans no user can need, so that they may be removed."""


class TailSource(StrEnum):
    """How the tail is found."""

    LAST_SYSTEM_MESSAGE = "LastSystemMessage"
    MARKER = "Marker"
    LEARNED = "Learned"


class SuffixMode(StrEnum):
    """How a stored tail is put at its place: keys rotated to it, or always at one anchor."""

    ROTATE = "Rotate"
    ANCHOR = "Anchor"


class Correction(StrEnum):
    """Whether a stored tail is calibrated over representative middles."""

    NONE = "None"
    CALIBRATED = "Calibrated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """
    Which requests the policy is for; everything given must hold, and what is empty holds for all.

    `headers` maps lower-case names to exact values. The highest `priority` wins.
    """

    priority: int = 0
    models: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TenantSource:
    """Where the tenant's name is: header `name`, claim `name` of the bearer token, or the API key itself."""

    kind: TenantSourceKind
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """
    Who the tenant is and what is shared; without `session_header` the conversation key is the session.

    Nobody reads KV that was kept under another `prefix_epoch`.
    """

    isolation: Isolation = Isolation.TENANT
    tenant_source: TenantSource = TenantSource(TenantSourceKind.API_KEY)
    session_header: str = "x-session-id"
    prefix_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VolatileRule:
    """A span of the stable prefix that changes: how it is found, and what to do about it."""

    name: str
    detect: Detector | None = None
    pattern: str | None = None
    action: VolatileAction = VolatileAction.REPORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """How the tail is found; shorter ones than `min_tokens` are left alone."""

    source: TailSource
    min_tokens: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What may be done to the prompt's bytes."""

    layout: Layout = Layout.PRESERVE
    canonicalize: Canonicalize = Canonicalize.REPORT
    volatile: tuple[VolatileRule, ...] = ()
    tail: Tail | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """
    How many tail tokens are computed afresh: the first, the last, and those that the middle points at.

    `match` is an upper bound; the others are exact.
    """

    head: int = 0
    last: int = 32
    match: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Which middles a tail is calibrated over: the product's own set, the owner's ConfigMap, or both."""

    generic: bool = True
    config_map: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bypass:
    """When a tail is computed after all: under this share of the prompt's tokens."""

    min_tail_share: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixCache:
    """How the tail's KV is reused. `anchor`, a token position, is read in mode `Anchor` only."""

    mode: SuffixMode = SuffixMode.ROTATE
    anchor: int = 2048
    recompute: Recompute = Recompute()
    correction: Correction = Correction.CALIBRATED
    calibration: Calibration = Calibration()
    buckets: tuple[int, ...] = BUCKETS
    bypass: Bypass = Bypass()


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """
    When a rollout step fails, canary against control.

    Ratio of time to first token, increase of the share of failed requests, share of equal tokens in shadow
    replays, and Kullback-Leibler divergence in nats per token. `prometheus_url` is where they are read.
    """

    prometheus_url: str | None = None
    max_ttft_ratio: float = 1.2
    max_error_increase: float = 0.005
    min_shadow_agreement: float = 0.95
    max_shadow_kl: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The canary's steps, in percent of sessions, and what each must have seen before the next."""

    steps: tuple[int, ...] = STEPS_DEFAULT
    min_duration_seconds: int = 600
    min_requests: int = 500
    min_sessions: int = 50
    paused: bool = False
    analysis: Analysis = Analysis()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """
    The share of hits that are replayed on the exact path, for comparison.

    Nothing of `exclude_tenants` is ever replayed.
    """

    sample_rate: float = 0.005
    exclude_tenants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """
    One CachePolicy; `pool` names the EnginePool, in the same namespace, that serves it.

    `segments` are the versions that its status names; all else is its spec.
    """

    name: str
    pool: str
    namespace: str = "default"
    match: Match = Match()
    tenancy: Tenancy = Tenancy()
    prompt: Prompt = Prompt()
    suffix_cache: SuffixCache | None = None
    warm: bool = False
    rollout: Rollout = Rollout()
    shadow: Shadow = Shadow()
    kill_level: KillLevel = KillLevel.NONE
    segments: tuple[SegmentVersion, ...] = ()

    @property
    def full_name(self) -> str:
        """The name that is unique in a cluster: "namespace/name"."""
        return f"{self.namespace}/{self.name}"
