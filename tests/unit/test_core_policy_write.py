"""A policy that is written reads the same."""

import json

from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.kill import KillLevel
from sternpost_core.policy import (
    BUCKETS,
    PREFIX_EPOCH_MAX,
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
from sternpost_core.policy_parse import parse
from sternpost_core.policy_write import to_mapping
from sternpost_fakes.policies import FULL, SMALLEST

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
headers = st.from_regex(r"[a-z][a-z-]{0,8}", fullmatch=True)
names = st.text(min_size=1, max_size=8)
shares = st.floats(0, 1)


def rising(elements: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[int, ...]]:
    """Generate strictly increasing tuples."""
    return st.sets(elements, min_size=1, max_size=5).map(lambda found: tuple(sorted(found)))


def several(elements: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, ...]]:
    """Generate tuples of different strings."""
    return st.lists(elements, unique=True, max_size=3).map(tuple)


tenant_sources = st.builds(
    TenantSource, st.sampled_from([TenantSourceKind.HEADER, TenantSourceKind.JWT_CLAIM]), headers
)
tenancies = st.builds(
    Tenancy,
    isolation=st.sampled_from(Isolation),
    tenant_source=tenant_sources | st.just(TenantSource(TenantSourceKind.API_KEY)),
    session_header=headers,
    prefix_epoch=st.integers(0, PREFIX_EPOCH_MAX),
)
detecting = st.builds(VolatileRule, name=labels, detect=st.sampled_from(Detector)) | st.builds(
    VolatileRule, name=labels, detect=st.just(Detector.BILLING_HEADER), action=st.just(VolatileAction.STRIP)
)
patterned = st.builds(
    VolatileRule,
    name=labels,
    pattern=st.sampled_from(["^Now: .+$", "[0-9]{4}", "x|y"]),
    action=st.sampled_from([VolatileAction.REPORT, VolatileAction.RELOCATE]),
)
rules = st.lists(detecting | patterned, max_size=3, unique_by=lambda rule: rule.name).map(tuple)
suffix_caches = st.builds(
    SuffixCache,
    mode=st.sampled_from(SuffixMode),
    anchor=st.integers(1, 1_048_576),
    recompute=st.builds(Recompute, head=st.integers(0, 9), last=st.integers(1, 9), match=st.integers(0, 9)),
    correction=st.just(Correction.NONE),
    calibration=st.builds(Calibration, generic=st.booleans(), config_map=st.none() | labels),
    buckets=rising(st.sampled_from(BUCKETS)),
    bypass=st.builds(Bypass, min_tail_share=shares),
)
rollouts = st.builds(
    Rollout,
    steps=rising(st.integers(1, 99)).map(lambda steps: (*steps, 100)),
    min_duration_seconds=st.integers(0, 7 * 24 * 3600),
    min_requests=st.integers(0, 10**9),
    min_sessions=st.integers(0, 10**9),
    paused=st.booleans(),
    analysis=st.builds(
        Analysis,
        prometheus_url=st.none() | st.just("http://p:9090"),
        max_ttft_ratio=st.floats(1, 100),
        max_error_increase=shares,
        min_shadow_agreement=shares,
        max_shadow_kl=st.floats(0, 100),
    ),
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Generate policies whose fields go together."""
    tenancy = draw(tenancies)
    by_key = tenancy.tenant_source.kind is TenantSourceKind.API_KEY
    tail = draw(st.none() | st.builds(Tail, source=st.sampled_from(TailSource)))
    return Policy(
        name=draw(labels),
        namespace=draw(labels),
        pool=draw(labels),
        match=Match(
            priority=draw(st.integers(-1_000_000, 1_000_000)),
            models=draw(several(names)),
            tenants=() if by_key else draw(several(names)),
            headers=draw(st.dictionaries(headers, st.text(max_size=4), max_size=2)),
        ),
        tenancy=tenancy,
        prompt=Prompt(
            layout=draw(st.sampled_from(Layout)) if tail else Layout.PRESERVE,
            canonicalize=draw(st.sampled_from(Canonicalize)),
            volatile=draw(rules),
            tail=tail,
        ),
        suffix_cache=draw(st.none() | suffix_caches) if tail else None,
        warm=draw(st.booleans()),
        rollout=draw(rollouts),
        shadow=Shadow(sample_rate=draw(shares), exclude_tenants=() if by_key else draw(several(names))),
        kill_level=draw(st.sampled_from(KillLevel)),
    )


@given(policies())
def test_written_policy_reads_the_same(policy: Policy) -> None:
    """Writing and reading are inverse, also through JSON."""
    assert policy == parse(json.loads(json.dumps(to_mapping(policy))))


def test_defaults_are_spelled_out() -> None:
    """What a person wrote stays, and what was left open is shown."""
    written = to_mapping(parse(SMALLEST))

    assert {"models": ["qwen2.5-7b"], "priority": 0} == written["spec"]["match"]
    assert {"layout": "Preserve", "canonicalize": "Report"} == written["spec"]["prompt"]
    assert "10m" == written["spec"]["rollout"]["minDuration"]
    assert "suffixCache" not in written["spec"]


def test_the_first_prefix_epoch_is_not_written() -> None:
    """A policy of before there were epochs does what it did, and its rollout does not begin anew."""
    tenancy = {
        "isolation": "Tenant",
        "tenantFrom": {"apiKey": True},
        "sessionFrom": {"header": "x-session-id"},
    }

    assert tenancy == to_mapping(parse(SMALLEST))["spec"]["tenancy"]


def test_full_policy_is_written_as_it_was_read() -> None:
    """Every field keeps its name and form, but for the case of header names."""
    spec = to_mapping(parse(FULL))["spec"]

    expected = {
        **FULL["spec"],
        "match": {**FULL["spec"]["match"], "headers": {"x-app": "support"}},
        "tenancy": {
            "isolation": "Tenant",
            "tenantFrom": {"header": "x-tenant-id"},
            "sessionFrom": {"header": "x-session-id"},
            "prefixEpoch": 3,
        },
    }
    assert expected == spec
