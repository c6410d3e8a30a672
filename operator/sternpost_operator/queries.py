"""
Every query that a rollout is judged by, in PromQL, and how the answer is read.

All figures of one policy come with one request: each query's result gets the label `figure`, and they are put
together by `or`. `arm` is what the gateway puts on a request: `canary` for a session that gets the policy's
behaviour, and `control` for one of as many that do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sternpost_operator.figures import SAMPLE_NAMES, SHADOW_NAMES, Figures, Sample

ARMS: Final = ("canary", "control")

FIGURE_LABEL: Final = "figure"

FAILED: Final = (
    "5xx",
    "internal_error",
    "keys_unavailable",
    "no_engine",
    "pool_misconfigured",
    "upstream_cut",
    "upstream_disconnected",
    "upstream_timeout",
    "upstream_unreachable",
)
SHED: Final = ("gateway_overloaded", "gateway_cold_limit")
LEFT: Final = ("client_gone",)
CUT_AT_LENGTH: Final = ("length",)
"""The gateway's outcomes of requests that failed, met overload, were left, or reached their limit."""

STEP_SECONDS_MIN: Final = 60
STEP_SECONDS_MAX: Final = 7 * 24 * 3600


def _grown(counter: str) -> str:
    """
    Return by how much a counter's series have grown within the span.

    `increase` sees nothing of a series before its first scrape, and the first failures of a canary may all
    come before that: a series that was made within the span counts whole.
    """
    labels = "{{policy={policy}{more}}}"
    increase = f"increase({counter}_total{labels}[{{span}}])"
    whole = f"({counter}_total{labels} and {counter}_created{labels} > time() - {{seconds}})"
    return f"({whole} > {increase} or {increase} or {whole})"


_COUNT: Final = f"sum by (arm) ({_grown('sternpost_gateway_requests')})"
_ALL: Final = _COUNT.replace("{more}", "")


def _share(outcomes: Sequence[str]) -> str:
    """Return the share of requests of these outcomes; 0 where there are requests, but none of these."""
    some = _COUNT.replace("{more}", f', outcome=~"{"|".join(outcomes)}"')
    return f"(({some}) or 0 * ({_ALL})) / ({_ALL} > 0)"


def _quantile(quantile: float, metric: str) -> str:
    rate = f"rate({metric}_bucket{{{{policy={{policy}}}}}}[{{span}}])"
    return f"histogram_quantile({quantile}, sum by (arm, le) ({rate}))"


_TOKENS: Final = (
    "sum by (arm) (increase(sternpost_gateway_prompt_tokens_total{{policy={policy}{more}}}[{span}]))"
)

BY_ARM: Final[Mapping[str, str]] = {
    "requests": _ALL,
    "sessions": f"sum by (arm) ({_grown('sternpost_gateway_sessions')})".replace("{more}", ""),
    "error_share": _share(FAILED),
    "shed_share": _share(SHED),
    "abort_share": _share(LEFT),
    "length_share": _share(CUT_AT_LENGTH),
    "ttft_p50": _quantile(0.5, "sternpost_gateway_ttft_seconds"),
    "ttft_p95": _quantile(0.95, "sternpost_gateway_ttft_seconds"),
    "inter_token_p95": _quantile(0.95, "sternpost_gateway_inter_token_seconds"),
    "reused_share": "({some}) / ({all} > 0)".format(
        some=_TOKENS.replace("{more}", ', source=~"prefix|suffix"'), all=_TOKENS.replace("{more}", "")
    ),
}
"""The figures of an arm; the names are those of `Sample`."""


def _summed(metric: str, more: str = "") -> str:
    return f"sum({_grown(f'sternpost_gateway_{metric}')})".replace("{more}", more)


OF_SHADOW: Final[Mapping[str, str]] = {
    "shadow_samples": _summed("shadow_replays", ', outcome="compared"'),
    "shadow_agreement": f"{_summed('shadow_agreed_tokens')} / ({_summed('shadow_tokens')} > 0)",
    "shadow_kl": f"{_summed('shadow_kl_nats')} / ({_summed('shadow_tokens')} > 0)",
    "shadow_demotions": _summed("demotions"),
}
"""What replays on the exact path say, of all gateways together; the names are those of `Figures`."""

CONFIG_AGE: Final = "max(sternpost_gateway_config_age_seconds)"


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of time that figures are taken over, in seconds."""

    window: int
    step: int


def step_span(seconds: float) -> int:
    """Return the span of a step that began so many seconds ago, within what a query may ask for."""
    return int(min(max(seconds, STEP_SECONDS_MIN), STEP_SECONDS_MAX))


def policy_query(policy: str, spans: Spans) -> str:
    """Return the query for all figures of a policy by its full name."""
    quoted = '"' + policy.replace("\\", "\\\\").replace('"', '\\"') + '"'
    parts = []
    for prefix, seconds in (("", spans.window), ("step_", spans.step)):
        parts += [_labelled(_filled(query, quoted, seconds), prefix + name) for name, query in BY_ARM.items()]
    parts += [_labelled(_filled(query, quoted, spans.step), name) for name, query in OF_SHADOW.items()]
    parts.append(_labelled(CONFIG_AGE, "config_age"))
    return " or ".join(parts)


def _filled(query: str, policy: str, seconds: int) -> str:
    return query.format(policy=policy, span=f"{seconds}s", seconds=seconds)


def read_figures(result: Iterable[Mapping[str, Any]]) -> Figures:
    """Read the vector that `policy_query` is answered with; what is not understood counts as no data."""
    values: dict[tuple[str, str], float] = {}
    for element in result:
        labels, value = element.get("metric", {}), element.get("value", (0, "NaN"))
        try:
            values[labels.get(FIGURE_LABEL, ""), labels.get("arm", "")] = float(value[1])
        except (IndexError, TypeError, ValueError):
            continue
    shadow = {name: values.get((name, "")) for name in SHADOW_NAMES}
    return Figures(
        canary=_sample(values, "", "canary"),
        control=_sample(values, "", "control"),
        step_canary=_sample(values, "step_", "canary"),
        step_control=_sample(values, "step_", "control"),
        config_age=values.get(("config_age", "")),
        **shadow,
    )


def _sample(values: Mapping[tuple[str, str], float], prefix: str, arm: str) -> Sample:
    return Sample(**{name: values.get((prefix + name, arm)) for name in SAMPLE_NAMES})


def _labelled(query: str, name: str) -> str:
    return f'label_replace({query}, "{FIGURE_LABEL}", "{name}", "", "")'
