"""A CachePolicy is read with every default, or refused with every fault."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.errors import PolicyError
from sternpost_core.kill import KillLevel
from sternpost_core.policy import (
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
from sternpost_fakes.policies import FULL, MISSING, SMALLEST, changed

PARSED = Policy(
    name="support",
    namespace="agents",
    match=Match(
        priority=100, models=("qwen2.5-7b",), tenants=("acme", "globex"), headers={"x-app": "support"}
    ),
    pool="qwen",
    tenancy=Tenancy(
        isolation=Isolation.TENANT,
        tenant_source=TenantSource(TenantSourceKind.HEADER, "x-tenant-id"),
        session_header="x-session-id",
        prefix_epoch=3,
    ),
    prompt=Prompt(
        layout=Layout.FIXED_TAIL,
        canonicalize=Canonicalize.PIN,
        volatile=(
            VolatileRule(name="clock", detect=Detector.TIMESTAMP, action=VolatileAction.RELOCATE),
            VolatileRule(name="billing", detect=Detector.BILLING_HEADER, action=VolatileAction.STRIP),
            VolatileRule(name="ticket", pattern="^Ticket: [A-Z]+-[0-9]+$", action=VolatileAction.RELOCATE),
        ),
        tail=Tail(source=TailSource.LAST_SYSTEM_MESSAGE, min_tokens=300),
    ),
    suffix_cache=SuffixCache(
        mode=SuffixMode.ANCHOR,
        anchor=4096,
        recompute=Recompute(head=4, last=16, match=8),
        correction=Correction.NONE,
        calibration=Calibration(generic=False, config_map="support-middles"),
        buckets=(256, 1024),
        bypass=Bypass(min_tail_share=0.5),
    ),
    warm=True,
    rollout=Rollout(
        steps=(2, 100),
        min_duration_seconds=5400,
        min_requests=5,
        min_sessions=6,
        paused=True,
        analysis=Analysis(
            prometheus_url="http://prometheus.monitoring:9090",
            max_ttft_ratio=2.0,
            max_error_increase=0.01,
            min_shadow_agreement=0.9,
            max_shadow_kl=0.1,
        ),
    ),
    shadow=Shadow(sample_rate=1.0, exclude_tenants=("acme",)),
    kill_level=KillLevel.NEW_EPOCH,
)


def test_every_field_is_read() -> None:
    """Each field reaches its place, header names in lower case, durations in seconds."""
    assert PARSED == parse(FULL)
    assert "agents/support" == parse(FULL).full_name


def test_smallest_policy_only_observes() -> None:
    """The defaults change no byte and no pod."""
    policy = parse(SMALLEST)

    assert Policy(name="support-observe", pool="qwen", match=Match(models=("qwen2.5-7b",))) == policy
    assert "default/support-observe" == policy.full_name
    assert (Layout.PRESERVE, Canonicalize.REPORT, None) == (
        policy.prompt.layout,
        policy.prompt.canonicalize,
        policy.suffix_cache,
    )
    assert (KillLevel.NONE, 0.005, (1, 5, 10, 25, 50, 100)) == (
        policy.kill_level,
        policy.shadow.sample_rate,
        policy.rollout.steps,
    )


def test_empty_objects_are_the_defaults() -> None:
    """An object without keys says no more than a missing one."""
    spec = {**SMALLEST["spec"], "tenancy": {}, "prompt": {}, "rollout": {"analysis": {}}, "shadow": {}}

    assert parse(SMALLEST) == parse({**SMALLEST, "spec": spec})


ACCEPTED = {
    "anchor-beside-rotate": ("spec.suffixCache.mode", "Rotate"),
    "tenant-from-jwt": ("spec.tenancy.tenantFrom", {"jwtClaim": "org"}),
    "marker": ("spec.prompt.tail.source", "Marker"),
    "learned": ("spec.prompt.tail.source", "Learned"),
    "tail-first": ("spec.prompt.layout", "TailFirst"),
    "all-models": ("spec.match.models", MISSING),
    "detector-that-reports": ("spec.prompt.volatile", [{"name": "a", "detect": "Timestamp"}]),
    "https": ("spec.rollout.analysis.prometheus.url", "https://p.example/prefix?a=b"),
    "one-step": ("spec.rollout.steps", [100]),
}


@pytest.mark.parametrize(("path", "new"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_allowed_variants_are_read(path: str, new: Any) -> None:
    """What the format allows is no fault."""
    assert PARSED != parse(changed(FULL, path, new))


def test_tenant_may_be_the_api_key() -> None:
    """The API key needs no name, and cannot be listed among tenants."""
    mapping = changed(FULL, "spec.tenancy.tenantFrom", {"apiKey": True})
    for path in ("spec.match.tenants", "spec.shadow.excludeTenants"):
        mapping = changed(mapping, path, MISSING)

    assert TenantSource(TenantSourceKind.API_KEY) == parse(mapping).tenancy.tenant_source


keys = st.text(max_size=5) | st.integers()
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=5,
)
PATHS = [
    f"spec.{top}" if below is None else f"spec.{top}.{below}"
    for top, value in FULL["spec"].items()
    for below in [None, *(value if isinstance(value, dict) else ())]
]


@given(st.sampled_from(PATHS), json_like)
def test_any_value_anywhere_is_read_or_refused(path: str, new: Any) -> None:
    """No value makes the parser fail in another way than by naming faults."""
    try:
        parse(changed(FULL, path, new))
    except PolicyError as error:
        assert error.faults
        assert all(fault.path.startswith("spec") for fault in error.faults)
