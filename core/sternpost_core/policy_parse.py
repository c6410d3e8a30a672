"""Reading a CachePolicy, so that every fault is named at once, and writing one that reads the same."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from sternpost_core.kill import KillLevel
from sternpost_core.policy import (
    BUCKETS,
    POLICY_KIND,
    PREFIX_EPOCH_MAX,
    STEPS_DEFAULT,
    STRIPPABLE,
    Analysis,
    Bypass,
    Calibration,
    Canonicalize,
    Correction,
    Detector,
    Isolation,
    Layout,
    Match,
    Policy,
    Prompt,
    Recompute,
    Rollout,
    Shadow,
    SuffixCache,
    SuffixMode,
    Tail,
    TailSource,
    Tenancy,
    TenantSource,
    TenantSourceKind,
    VolatileAction,
    VolatileRule,
)
from sternpost_core.policy_status import segment_versions
from sternpost_core.reader import (
    DNS_LABEL_FORM,
    DNS_NAME_FORM,
    Metadata,
    ObjectReader,
    integers,
    is_dns_label,
    is_dns_name,
    read_object,
)
from sternpost_core.text import one_of

PRIORITY_MAX: Final = 1_000_000
NAMES_MAX: Final = 256
NAME_LENGTH_MAX: Final = 256
NAMES_ALLOWED: Final = f"a string of 1 to {NAME_LENGTH_MAX} characters"
HEADERS_MAX: Final = 16
HEADER_LENGTH_MAX: Final = 1024
RULES_MAX: Final = 32
PATTERN_LENGTH_MAX: Final = 256
TAIL_TOKENS_MAX: Final = BUCKETS[-1]
TAIL_TOKENS_MIN: Final = BUCKETS[0]
ANCHOR_MAX: Final = 1_048_576
RECOMPUTE_MAX: Final = 1024
STEPS_MAX: Final = 20
STEP_SECONDS_MAX: Final = 7 * 24 * 3600
STEP_COUNT_MAX: Final = 1_000_000_000
URL_LENGTH_MAX: Final = 2048
RATIO_MAX: Final = 100.0
KL_MAX: Final = 100.0

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_FORM: Final = "a header name"
URL_FORM: Final = "an http or https URL"
_URL: Final = re.compile(r"https?://[^\s/?#@]+(?:[/?][^\s#]*)?")


def parse(mapping: object) -> Policy:
    """
    Read a CachePolicy object, as YAML or JSON decode it.

    Raises:
        PolicyError: with every fault and its path: unknown keys, wrong types, values and ranges, missing
            keys, and fields that do not go together.
    """
    return replace(read_object(mapping, POLICY_KIND, _read), segments=segment_versions(mapping))


def _read(metadata: Metadata, spec: ObjectReader) -> Policy:
    match = _read_match(spec.child("match", required=True))
    pool = spec.child("poolRef", required=True)
    pool_name = pool.text("name", accepts=is_dns_name, allowed=DNS_NAME_FORM)
    pool.close()
    tenancy = _read_tenancy(spec.child("tenancy"))
    prompt = _read_prompt(spec.child("prompt"))
    suffix_cache = _read_suffix_cache(spec.child("suffixCache")) if spec.asked("suffixCache") else None
    policy = Policy(
        name=metadata.name,
        namespace=metadata.namespace,
        match=match,
        pool=pool_name,
        tenancy=tenancy,
        prompt=prompt,
        suffix_cache=suffix_cache,
        warm=spec.boolean("warm", False),
        rollout=_read_rollout(spec.child("rollout")),
        shadow=_read_shadow(spec.child("shadow")),
        kill_level=spec.choice("killLevel", KillLevel, KillLevel.NONE),
    )
    _check_together(policy, spec)
    return policy


def _read_match(reader: ObjectReader) -> Match:
    match = Match(
        priority=reader.integer("priority", 0, -PRIORITY_MAX, PRIORITY_MAX),
        models=reader.names("models", _is_name, NAMES_ALLOWED, count_max=NAMES_MAX),
        tenants=reader.names("tenants", _is_name, NAMES_ALLOWED, count_max=NAMES_MAX),
        headers=_read_headers(reader),
    )
    reader.close()
    return match


def _read_headers(reader: ObjectReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    found = reader.strings("headers", count_max=HEADERS_MAX, length_max=HEADER_LENGTH_MAX)
    for name, value in found.items():
        if not _is_header(name):
            reader.fault(f"headers.{name}", "the key", _HEADER_FORM)
        elif name.lower() in headers:
            reader.fault(f"headers.{name}", "the header again", "each header once, in whatever case")
        else:
            headers[name.lower()] = value
    return headers


def _read_tenancy(reader: ObjectReader) -> Tenancy:
    defaults = Tenancy()
    isolation = reader.choice("isolation", Isolation, defaults.isolation)
    source = defaults.tenant_source
    if reader.asked("tenantFrom"):
        source = _read_tenant_source(reader.child("tenantFrom"), reader)
    session = defaults.session_header
    if reader.asked("sessionFrom"):
        below = reader.child("sessionFrom")
        session = below.text("header", accepts=_is_header, allowed=_HEADER_FORM).lower()
        below.close()
    epoch = reader.integer("prefixEpoch", defaults.prefix_epoch, 0, PREFIX_EPOCH_MAX)
    reader.close()
    return Tenancy(isolation=isolation, tenant_source=source, session_header=session, prefix_epoch=epoch)


def _read_tenant_source(reader: ObjectReader, parent: ObjectReader) -> TenantSource:
    given = [kind for kind in TenantSourceKind if reader.asked(kind)]
    reader.close()
    if len(given) != 1:
        parent.fault("tenantFrom", f"{len(given)} of its keys", f"exactly one of {one_of(TenantSourceKind)}")
        return TenantSource(TenantSourceKind.API_KEY)
    (kind,) = given
    if kind is TenantSourceKind.API_KEY:
        if not reader.boolean(kind, True):
            reader.fault(kind, "false", "true")
        return TenantSource(kind)
    if kind is TenantSourceKind.HEADER:
        return TenantSource(kind, reader.text(kind, accepts=_is_header, allowed=_HEADER_FORM).lower())
    return TenantSource(kind, reader.text(kind, length_max=NAME_LENGTH_MAX))


def _read_prompt(reader: ObjectReader) -> Prompt:
    defaults = Prompt()
    layout = reader.choice("layout", Layout, defaults.layout)
    canonicalize = reader.choice("canonicalize", Canonicalize, defaults.canonicalize)
    volatile = tuple(
        _read_rule(ObjectReader(element, path, reader.faults))
        for path, element in reader.items("volatile", RULES_MAX)
    )
    tail = _read_tail(reader.child("tail")) if reader.asked("tail") else None
    for index, rule in enumerate(volatile):
        if rule.name and rule.name in [earlier.name for earlier in volatile[:index]]:
            reader.fault(f"volatile[{index}].name", f"{rule.name!r} again", "each name once")
    if layout is not Layout.PRESERVE and tail is None:
        reader.fault("layout", layout.value, "Preserve, unless prompt.tail says what the tail is")
    reader.close()
    return Prompt(layout=layout, canonicalize=canonicalize, volatile=volatile, tail=tail)


def _read_rule(reader: ObjectReader) -> VolatileRule:
    name = reader.text("name", accepts=is_dns_label, allowed=DNS_LABEL_FORM)
    detect = reader.optional_choice("detect", Detector)
    pattern = _read_pattern(reader) if reader.asked("pattern") else None
    action = reader.choice("action", VolatileAction, VolatileAction.REPORT)
    if reader.readable and reader.has("detect") == reader.has("pattern"):
        count = "both" if reader.has("detect") else "neither"
        reader.fault("detect", count, "exactly one of detect, pattern")
    elif action is VolatileAction.STRIP and reader.has("pattern"):
        reader.fault("action", action.value, "Report, Relocate for a pattern")
    elif action is VolatileAction.STRIP and detect is not None and detect not in STRIPPABLE:
        allowed = f"Report, Relocate; Strip only with {one_of(sorted(STRIPPABLE))}"
        reader.fault("action", action.value, allowed)
    reader.close()
    return VolatileRule(name=name, detect=detect, pattern=pattern, action=action)


def _read_pattern(reader: ObjectReader) -> str:
    pattern = reader.text("pattern", length_max=PATTERN_LENGTH_MAX)
    try:
        empty = pattern and re.compile(pattern).fullmatch("")
    except (re.error, OverflowError, RecursionError) as error:
        reader.fault("pattern", f"{pattern!r} ({error})", "a regular expression")
    else:
        if empty:
            reader.fault("pattern", f"{pattern!r}, which the empty text matches", "one that needs some text")
    return pattern


def _read_tail(reader: ObjectReader) -> Tail:
    tail = Tail(
        source=reader.choice("source", TailSource),
        min_tokens=reader.integer("minTokens", TAIL_TOKENS_MIN, TAIL_TOKENS_MIN, TAIL_TOKENS_MAX),
    )
    reader.close()
    return tail


def _read_suffix_cache(reader: ObjectReader) -> SuffixCache:
    defaults = SuffixCache()
    mode = reader.choice("mode", SuffixMode, defaults.mode)
    if mode is SuffixMode.ANCHOR and not reader.has("anchor"):
        reader.fault("anchor", "nothing", f"{integers(1, ANCHOR_MAX)} in mode {mode.value}")
    suffix_cache = SuffixCache(
        mode=mode,
        anchor=reader.integer("anchor", defaults.anchor, 1, ANCHOR_MAX),
        recompute=_read_recompute(reader.child("recompute")),
        correction=reader.choice("correction", Correction, defaults.correction),
        calibration=_read_calibration(reader.child("calibration")),
        buckets=_read_buckets(reader),
        bypass=_read_bypass(reader.child("bypass")),
    )
    has_middles = suffix_cache.calibration.generic or suffix_cache.calibration.config_map
    if suffix_cache.correction is Correction.CALIBRATED and not has_middles:
        reader.fault("calibration", "no middles", "generic: true, configMapRef, or both in Calibrated")
    reader.close()
    return suffix_cache


def _read_recompute(reader: ObjectReader) -> Recompute:
    defaults = Recompute()
    recompute = Recompute(
        head=reader.integer("head", defaults.head, 0, RECOMPUTE_MAX),
        last=reader.integer("last", defaults.last, 1, RECOMPUTE_MAX),
        match=reader.integer("match", defaults.match, 0, RECOMPUTE_MAX),
    )
    reader.close()
    return recompute


def _read_calibration(reader: ObjectReader) -> Calibration:
    generic = reader.boolean("generic", True)
    config_map = None
    if reader.asked("configMapRef"):
        below = reader.child("configMapRef")
        config_map = below.text("name", accepts=is_dns_name, allowed=DNS_NAME_FORM)
        below.close()
    reader.close()
    return Calibration(generic=generic, config_map=config_map)


def _read_buckets(reader: ObjectReader) -> tuple[int, ...]:
    buckets = reader.integers("buckets", BUCKETS, BUCKETS[0], BUCKETS[-1], count_max=len(BUCKETS))
    for bucket in buckets:
        if bucket not in BUCKETS:
            reader.fault("buckets", str(bucket), one_of(BUCKETS))
    return buckets


def _read_bypass(reader: ObjectReader) -> Bypass:
    bypass = Bypass(min_tail_share=reader.number("minTailShare", Bypass().min_tail_share, 0, 1))
    reader.close()
    return bypass


def _read_rollout(reader: ObjectReader) -> Rollout:
    defaults = Rollout()
    steps = reader.integers("steps", STEPS_DEFAULT, 1, 100, count_max=STEPS_MAX)
    if steps and steps[-1] != 100:
        reader.fault("steps", f"{steps[-1]} at the end", "100 at the end")
    rollout = Rollout(
        steps=steps,
        min_duration_seconds=reader.duration("minDuration", defaults.min_duration_seconds, STEP_SECONDS_MAX),
        min_requests=reader.integer("minRequests", defaults.min_requests, 0, STEP_COUNT_MAX),
        min_sessions=reader.integer("minSessions", defaults.min_sessions, 0, STEP_COUNT_MAX),
        paused=reader.boolean("paused", defaults.paused),
        analysis=_read_analysis(reader.child("analysis")),
    )
    reader.close()
    return rollout


def _read_analysis(reader: ObjectReader) -> Analysis:
    defaults = Analysis()
    url = None
    if reader.asked("prometheus"):
        below = reader.child("prometheus")
        url = below.text("url", length_max=URL_LENGTH_MAX, accepts=is_url, allowed=URL_FORM)
        below.close()
    analysis = Analysis(
        prometheus_url=url,
        max_ttft_ratio=reader.number("maxTtftRatio", defaults.max_ttft_ratio, 1, RATIO_MAX),
        max_error_increase=reader.number("maxErrorIncrease", defaults.max_error_increase, 0, 1),
        min_shadow_agreement=reader.number("minShadowAgreement", defaults.min_shadow_agreement, 0, 1),
        max_shadow_kl=reader.number("maxShadowKl", defaults.max_shadow_kl, 0, KL_MAX),
    )
    reader.close()
    return analysis


def _read_shadow(reader: ObjectReader) -> Shadow:
    shadow = Shadow(
        sample_rate=reader.number("sampleRate", Shadow().sample_rate, 0, 1),
        exclude_tenants=reader.names("excludeTenants", _is_name, NAMES_ALLOWED, count_max=NAMES_MAX),
    )
    reader.close()
    return shadow


def _check_together(policy: Policy, spec: ObjectReader) -> None:
    """Note what each field allows and all of them together do not."""
    suffix_cache, tail = policy.suffix_cache, policy.prompt.tail
    if suffix_cache is not None and tail is None:
        spec.fault("suffixCache", "a suffix cache without a tail", "prompt.tail, or no suffixCache")
    if suffix_cache and suffix_cache.buckets and tail and tail.min_tokens > suffix_cache.buckets[-1]:
        largest = suffix_cache.buckets[-1]
        spec.fault("prompt.tail.minTokens", str(tail.min_tokens), f"at most {largest}, the largest bucket")
    named = (
        ("match.tenants", policy.match.tenants),
        ("shadow.excludeTenants", policy.shadow.exclude_tenants),
    )
    for path, tenants in named:
        if tenants and policy.tenancy.tenant_source.kind is TenantSourceKind.API_KEY:
            spec.fault(path, "names of tenants", "none, unless tenancy.tenantFrom has header or jwtClaim")


def _is_name(text: str) -> bool:
    return 0 < len(text) <= NAME_LENGTH_MAX


def _is_header(text: str) -> bool:
    return _HEADER_NAME.fullmatch(text) is not None


def is_url(text: str) -> bool:
    """Tell whether `text` may be where Prometheus is."""
    return _URL.fullmatch(text) is not None
