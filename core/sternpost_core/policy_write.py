"""Writing a CachePolicy as the object that reads the same, every default spelled out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sternpost_core.duration import format_duration
from sternpost_core.policy import (
    POLICY_KIND,
    Match,
    Policy,
    Prompt,
    Rollout,
    Shadow,
    SuffixCache,
    Tenancy,
    TenantSource,
    TenantSourceKind,
    VolatileRule,
)
from sternpost_core.reader import object_mapping


def to_mapping(policy: Policy) -> dict[str, Any]:
    """Return the object that `policy_parse.parse` reads as `policy`."""
    spec = {
        "match": _match(policy.match),
        "poolRef": {"name": policy.pool},
        "tenancy": _tenancy(policy.tenancy),
        "prompt": _prompt(policy.prompt),
        **({"suffixCache": _suffix_cache(policy.suffix_cache)} if policy.suffix_cache else {}),
        "warm": policy.warm,
        "rollout": _rollout(policy.rollout),
        "shadow": _shadow(policy.shadow),
        "killLevel": policy.kill_level.value,
    }
    return object_mapping(POLICY_KIND, {"name": policy.name, "namespace": policy.namespace}, spec)


def _match(match: Match) -> dict[str, Any]:
    # An empty list would read as well, but says "none" to a person where "all" is meant.
    return _present(
        {
            "priority": match.priority,
            "models": list(match.models) or None,
            "tenants": list(match.tenants) or None,
            "headers": dict(match.headers) or None,
        }
    )


def _tenancy(tenancy: Tenancy) -> dict[str, Any]:
    # The first epoch is not written: policies of before there were any are still the same.
    return {
        "isolation": tenancy.isolation.value,
        "tenantFrom": _tenant_source(tenancy.tenant_source),
        "sessionFrom": {"header": tenancy.session_header},
        **({"prefixEpoch": tenancy.prefix_epoch} if tenancy.prefix_epoch else {}),
    }


def _tenant_source(source: TenantSource) -> dict[str, Any]:
    return {source.kind.value: True if source.kind is TenantSourceKind.API_KEY else source.name}


def _prompt(prompt: Prompt) -> dict[str, Any]:
    tail = prompt.tail
    return _present(
        {
            "layout": prompt.layout.value,
            "canonicalize": prompt.canonicalize.value,
            "volatile": [_rule(rule) for rule in prompt.volatile] or None,
            "tail": {"source": tail.source.value, "minTokens": tail.min_tokens} if tail else None,
        }
    )


def _rule(rule: VolatileRule) -> dict[str, Any]:
    detect = rule.detect.value if rule.detect else None
    return _present(
        {"name": rule.name, "detect": detect, "pattern": rule.pattern, "action": rule.action.value}
    )


def _suffix_cache(suffix_cache: SuffixCache) -> dict[str, Any]:
    recompute, calibration = suffix_cache.recompute, suffix_cache.calibration
    config_map = {"name": calibration.config_map} if calibration.config_map else None
    return {
        "mode": suffix_cache.mode.value,
        "anchor": suffix_cache.anchor,
        "recompute": {"head": recompute.head, "last": recompute.last, "match": recompute.match},
        "correction": suffix_cache.correction.value,
        "calibration": _present({"generic": calibration.generic, "configMapRef": config_map}),
        "buckets": list(suffix_cache.buckets),
        "bypass": {"minTailShare": suffix_cache.bypass.min_tail_share},
    }


def _rollout(rollout: Rollout) -> dict[str, Any]:
    analysis = rollout.analysis
    return {
        "steps": list(rollout.steps),
        "minDuration": format_duration(rollout.min_duration_seconds),
        "minRequests": rollout.min_requests,
        "minSessions": rollout.min_sessions,
        "paused": rollout.paused,
        "analysis": _present(
            {
                "prometheus": {"url": analysis.prometheus_url} if analysis.prometheus_url else None,
                "maxTtftRatio": analysis.max_ttft_ratio,
                "maxErrorIncrease": analysis.max_error_increase,
                "minShadowAgreement": analysis.min_shadow_agreement,
                "maxShadowKl": analysis.max_shadow_kl,
            }
        ),
    }


def _shadow(shadow: Shadow) -> dict[str, Any]:
    tenants = list(shadow.exclude_tenants) or None
    return _present({"sampleRate": shadow.sample_rate, "excludeTenants": tenants})


def _present(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value is not None}
