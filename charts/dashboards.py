"""The dashboards: each answers one person's question, mostly from recording rules."""

from __future__ import annotations

from typing import Final

from charts.panels import Dashboard, Panel, Query

_N: Final = 'namespace=~"$namespace"'
_P: Final = f'{_N}, policy=~"$policy"'
_E: Final = f'{_N}, sternpost_dev_pool=~"$pool"'
"""Selectors of gateways, of policies, and of engines, by the dashboard's variables."""

_REUSED: Final = "policy_arm:sternpost_gateway_reused_tokens:rate5m"
_TOKENS: Final = "policy_source:sternpost_gateway_prompt_tokens:rate5m"

FLEET: Final = Dashboard(
    name="fleet",
    title="Sternpost: fleet",
    about="Is it well, and is it worth it?",
    panels=(
        Panel(
            title="Prompt tokens reused",
            about="Of all prompt tokens, those whose KV was there already, from either store.",
            unit="percentunit",
            is_stat=True,
            queries=(
                Query(
                    f"sum(policy_arm:sternpost_gateway_reused_tokens:rate5m{{{_P}}})"
                    f" / (sum(policy_arm:sternpost_gateway_prompt_tokens:rate5m{{{_P}}}) > 0)"
                ),
            ),
            alerts=("SternpostHitRateCollapse", "SternpostTemplateStabilityFalling"),
        ),
        Panel(
            title="Kill level",
            about="The highest level that any gateway is at; the empty policy stands for all.",
            unit="short",
            is_stat=True,
            queries=(
                Query(f"max by (policy) (policy:sternpost_gateway_kill_level:max{{{_N}}})", "{{policy}}"),
            ),
            alerts=("SternpostKillEngaged", "SternpostKillFileUnreadable"),
        ),
        Panel(
            title="Engines ready",
            about="As the gateway sees it that sees the fewest.",
            unit="short",
            is_stat=True,
            queries=(Query(f"min(sternpost_gateway_engines_ready{{{_N}}})"),),
            alerts=("SternpostNoEngineReady",),
        ),
        Panel(
            title="Oldest configuration",
            about="Since the gateway that is last to hear of policies and kills has heard of them.",
            unit="s",
            is_stat=True,
            queries=(Query(f"max(sternpost_gateway_config_age_seconds{{{_N}}})"),),
            alerts=("SternpostConfigStale", "SternpostConfigFaults"),
        ),
        Panel(
            title="Requests",
            about="A second, by how they ended.",
            unit="reqps",
            queries=(
                Query(
                    f"sum by (outcome) (policy_outcome:sternpost_gateway_requests:rate5m{{{_P}}})",
                    "{{outcome}}",
                ),
            ),
        ),
        Panel(
            title="Failed requests",
            about="The share with a 5xx, a failed engine or a cut answer, by policy and arm.",
            unit="percentunit",
            queries=(
                Query(f"policy_arm:sternpost_gateway_failed:ratio_rate5m{{{_P}}}", "{{policy}} {{arm}}"),
            ),
            alerts=("SternpostErrorBudgetBurn", "SternpostEnginesEjected"),
        ),
        Panel(
            title="Time to first token",
            about="Of streams, from arrival to the answer's first byte, by policy and arm.",
            unit="s",
            queries=(
                Query(
                    f"policy_arm:sternpost_gateway_ttft_seconds:p50_rate5m{{{_P}}}", "p50 {{policy}} {{arm}}"
                ),
                Query(
                    f"policy_arm:sternpost_gateway_ttft_seconds:p95_rate5m{{{_P}}}", "p95 {{policy}} {{arm}}"
                ),
            ),
            alerts=("SternpostErrorBudgetBurn",),
        ),
        Panel(
            title="Full prefill",
            about="The share of streams of which nothing was reused.",
            unit="percentunit",
            queries=(
                Query(
                    f"policy_arm:sternpost_gateway_full_prefill:ratio_rate5m{{{_P}}}", "{{policy}} {{arm}}"
                ),
            ),
        ),
        Panel(
            title="Choices of an engine",
            about="Held: where the KV is. Spilled: elsewhere, for load. Missed: none held any.",
            unit="reqps",
            queries=(
                Query(
                    f"sum by (outcome) (namespace_outcome:sternpost_gateway_affinity:rate5m{{{_N}}})",
                    "{{outcome}}",
                ),
            ),
        ),
        Panel(
            title="Tripped engines and plain passes",
            about="Engines without suffix reads because theirs failed; requests of an hour passed undecided.",
            unit="short",
            queries=(
                Query(f"max(sternpost_gateway_engines_tripped{{{_N}}})", "tripped"),
                Query(f"sum(increase(sternpost_gateway_fallthroughs_total{{{_N}}}[1h]))", "passed plainly"),
            ),
            alerts=("SternpostEnginesTripped", "SternpostFallthroughs"),
        ),
    ),
)

POLICY: Final = Dashboard(
    name="policy",
    title="Sternpost: policy",
    about="Does the canary do better than its control, and what breaks the cache?",
    panels=(
        Panel(
            title="Prompt tokens reused, by arm",
            about="The canary against a control of the same size and time.",
            unit="percentunit",
            queries=(
                Query(
                    f"policy_arm:sternpost_gateway_reused_tokens:ratio_rate5m{{{_P}}}", "{{policy}} {{arm}}"
                ),
            ),
        ),
        Panel(
            title="Phase of the rollout",
            about="As the operator sees it. A rollout that is held for a day is taken back.",
            unit="short",
            is_stat=True,
            queries=(
                Query(
                    'max by (policy, phase) (sternpost_operator_policy_phase{policy=~"$policy"})',
                    "{{policy}} {{phase}}",
                ),
            ),
            alerts=("SternpostCanaryHeld",),
        ),
        Panel(
            title="Time to first token p95, by arm",
            about="Over 1.2 times the control's in three of five windows stops a canary.",
            unit="s",
            queries=(
                Query(f"policy_arm:sternpost_gateway_ttft_seconds:p95_rate5m{{{_P}}}", "{{policy}} {{arm}}"),
            ),
        ),
        Panel(
            title="Time between tokens p95, by arm",
            about="Over 1.1 times the control's in three of five windows stops a canary.",
            unit="s",
            queries=(
                Query(
                    f"policy_arm:sternpost_gateway_inter_token_seconds:p95_rate5m{{{_P}}}",
                    "{{policy}} {{arm}}",
                ),
            ),
        ),
        Panel(
            title="Failed requests, by arm",
            about="Half a point over the control's in two windows stops a canary.",
            unit="percentunit",
            queries=(
                Query(f"policy_arm:sternpost_gateway_failed:ratio_rate5m{{{_P}}}", "{{policy}} {{arm}}"),
            ),
            alerts=("SternpostErrorBudgetBurn",),
        ),
        Panel(
            title="Requests, by arm",
            about="A window says something from 200 requests in each arm on.",
            unit="reqps",
            queries=(Query(f"policy_arm:sternpost_gateway_requests:rate5m{{{_P}}}", "{{policy}} {{arm}}"),),
        ),
        Panel(
            title="Time to first token p95, by what was reused",
            about="Suffix: a stored tail was spliced. Prefix: the prefix store alone. Exact: nothing.",
            unit="s",
            queries=(
                Query(
                    f"policy_path:sternpost_gateway_ttft_seconds:p95_rate5m{{{_P}}}", "{{policy}} {{path}}"
                ),
            ),
        ),
        Panel(
            title="Why tails are not reused",
            about="Requests by the reason of their bypass, as a share of all.",
            unit="percentunit",
            queries=(
                Query(
                    f"policy_reason:sternpost_gateway_bypasses:ratio_rate5m{{{_P}}}", "{{policy}} {{reason}}"
                ),
            ),
        ),
        Panel(
            title="Template stability",
            about="The share of prompts that begin and end as most do; learned tails need 95%.",
            unit="percentunit",
            queries=(Query(f"policy:sternpost_gateway_template_stability:min{{{_P}}}", "{{policy}}"),),
            alerts=("SternpostTemplateStabilityFalling",),
        ),
        Panel(
            title="Tokens behind departures",
            about="Prompt tokens a second that are computed again, by what stands where prompts part.",
            unit="short",
            queries=(
                Query(
                    "sum by (policy, kind, guess)"
                    f" (rate(sternpost_gateway_departed_tokens_total{{{_P}}}[5m]))",
                    "{{policy}} {{kind}} {{guess}}",
                ),
            ),
            alerts=("SternpostTemplateStabilityFalling",),
        ),
        Panel(
            title="Builds",
            about="Of tails, a second, by outcome.",
            unit="ops",
            queries=(
                Query(f"policy_outcome:sternpost_gateway_builds:rate5m{{{_P}}}", "{{policy}} {{outcome}}"),
            ),
            alerts=("SternpostBuildsFailing",),
        ),
        Panel(
            title="Shadow replays",
            about="The share of first choices that reused KV and the exact path agree about.",
            unit="percentunit",
            queries=(
                Query(
                    f"sum by (policy) (rate(sternpost_gateway_shadow_agreed_tokens_total{{{_P}}}[1h]))"
                    f" / (sum by (policy) (rate(sternpost_gateway_shadow_tokens_total{{{_P}}}[1h])) > 0)",
                    "{{policy}}",
                ),
            ),
            alerts=("SternpostTailDemoted",),
        ),
    ),
)

ENGINE: Final = Dashboard(
    name="engine",
    title="Sternpost: suffix store",
    about="What do engines hold, and what does holding it cost?",
    panels=(
        Panel(
            title="Hit rate",
            about="Lookups that find a live tail.",
            unit="percentunit",
            queries=(Query(f"pool:sternpost_suffix_hits:ratio_rate5m{{{_E}}}", "{{sternpost_dev_pool}}"),),
            alerts=("SternpostHitRateCollapse",),
        ),
        Panel(
            title="Hit KV share",
            about="The part of a hit's prompt that came from the suffix store, on average.",
            unit="percentunit",
            queries=(
                Query(f"pool:sternpost_suffix_hit_kv_share:mean_rate5m{{{_E}}}", "{{sternpost_dev_pool}}"),
            ),
        ),
        Panel(
            title="Pool used",
            about="Bytes of tails, as a share of the budget.",
            unit="percentunit",
            queries=(Query(f"pool:sternpost_suffix_pool_used:ratio{{{_E}}}", "{{sternpost_dev_pool}}"),),
            alerts=("SternpostPoolOverBudget",),
        ),
        Panel(
            title="Pool by length bucket",
            about="Bytes of the tails of each bucket.",
            unit="bytes",
            queries=(Query(f"sum by (bucket) (sternpost_suffix_bucket_bytes{{{_E}}})", "{{bucket}} tokens"),),
        ),
        Panel(
            title="Tails",
            about="Held, by state; a retired one waits for its last reader.",
            unit="short",
            queries=(Query(f"sum by (state) (sternpost_suffix_tails{{{_E}}})", "{{state}}"),),
        ),
        Panel(
            title="Inserts and evictions",
            about="A second; evictions by reason.",
            unit="ops",
            queries=(
                Query(f"sum(pool:sternpost_suffix_inserts:rate5m{{{_E}}})", "inserts"),
                Query(
                    f"sum by (reason) (pool_reason:sternpost_suffix_evictions:rate5m{{{_E}}})", "{{reason}}"
                ),
            ),
            alerts=("SternpostEvictionStorm",),
        ),
        Panel(
            title="Prompt tokens by source",
            about="A second: from the prefix store, from the suffix store, and computed.",
            unit="short",
            queries=(
                Query(
                    f"sum by (source) (pool_source:sternpost_suffix_prompt_tokens:rate5m{{{_E}}})",
                    "{{source}}",
                ),
            ),
        ),
        Panel(
            title="What the store did",
            about="Finished requests a second, by reason.",
            unit="reqps",
            queries=(
                Query(
                    f"sum by (reason) (pool_reason:sternpost_suffix_requests:rate5m{{{_E}}})", "{{reason}}"
                ),
            ),
            alerts=("SternpostCopyFailures", "SternpostStoreUnsupported"),
        ),
        Panel(
            title="Times of the store",
            about="Matching a request on average; copying a step's tails and waiting for a last reader, p95.",
            unit="s",
            queries=(
                Query(
                    f"pool:sternpost_suffix_match_seconds:mean_rate5m{{{_E}}}", "match {{sternpost_dev_pool}}"
                ),
                Query(
                    f"pool:sternpost_suffix_copy_seconds:p95_rate5m{{{_E}}}", "copy {{sternpost_dev_pool}}"
                ),
                Query(
                    f"pool:sternpost_suffix_lock_wait_seconds:p95_rate5m{{{_E}}}",
                    "lock {{sternpost_dev_pool}}",
                ),
            ),
            alerts=("SternpostCopyFailures",),
        ),
        Panel(
            title="False hits and isolation violations",
            about="In an hour: equal hashes of other tokens; tails of other tenants, found or read.",
            unit="short",
            queries=(
                Query(
                    f"sum by (sternpost_dev_pool) (increase(sternpost_suffix_false_hits_total{{{_E}}}[1h]))",
                    "{{sternpost_dev_pool}}",
                ),
                Query(f"sum(increase(sternpost_suffix_isolation_violations_total{{{_E}}}[1h]))", "found"),
                Query(f"sum(increase(sternpost_gateway_isolation_violations_total{{{_N}}}[1h]))", "read"),
            ),
            alerts=("SternpostFalseHits", "SternpostIsolationViolation"),
        ),
    ),
)

_BURN: Final = (
    "slo:sternpost_bad:ratio_rate{window} / on (slo) group_left () (1 - slo:sternpost_objective:ratio)"
)

SLO: Final = Dashboard(
    name="slo",
    title="Sternpost: objectives",
    about="How much of the error budget is left, and how fast is it spent?",
    panels=(
        Panel(
            title="Error budget left",
            about="Of 28 days, or of as much as Prometheus keeps; below zero the objective is missed.",
            unit="percentunit",
            is_stat=True,
            queries=(Query(f"slo:sternpost_error_budget_remaining:ratio{{{_N}}}", "{{slo}}"),),
            alerts=("SternpostErrorBudgetBurn",),
        ),
        Panel(
            title="Objective",
            about="The share that must be good.",
            unit="percentunit",
            is_stat=True,
            queries=(Query("max by (slo) (slo:sternpost_objective:ratio)", "{{slo}}"),),
        ),
        Panel(
            title="Burn rate, 1 hour",
            about="1 spends the budget in just 28 days; over 14.4 somebody is woken.",
            unit="short",
            queries=(Query(_BURN.format(window="1h"), "{{slo}}"),),
            alerts=("SternpostErrorBudgetBurn",),
        ),
        Panel(
            title="Burn rate, 6 hours",
            about="Over 6 somebody is woken.",
            unit="short",
            queries=(Query(_BURN.format(window="6h"), "{{slo}}"),),
            alerts=("SternpostErrorBudgetBurn",),
        ),
        Panel(
            title="Burn rate, 3 days",
            about="Over 1 the budget will not last.",
            unit="short",
            queries=(Query(_BURN.format(window="3d"), "{{slo}}"),),
            alerts=("SternpostErrorBudgetBurn",),
        ),
        Panel(
            title="What counts, and what of it is bad",
            about="Requests, streams or tokens a second, by objective.",
            unit="reqps",
            queries=(
                Query(f"slo:sternpost_all:rate5m{{{_N}}}", "all {{slo}}"),
                Query(f"slo:sternpost_bad:rate5m{{{_N}}}", "bad {{slo}}"),
            ),
        ),
    ),
)

CAPACITY: Final = Dashboard(
    name="capacity",
    title="Sternpost: capacity and savings",
    about="What does reuse save, and where does it get tight?",
    prices=True,
    panels=(
        Panel(
            title="Saved, a day at this rate",
            about="Against computing every prompt, at the two prices above.",
            unit="short",
            is_stat=True,
            queries=(Query(f"sum({_REUSED}{{{_P}}}) * ($price_computed - $price_reused) / 1e6 * 86400"),),
        ),
        Panel(
            title="Prompt tokens not computed, a day at this rate",
            about="Reused from either store.",
            unit="short",
            is_stat=True,
            queries=(Query(f"sum({_REUSED}{{{_P}}}) * 86400"),),
        ),
        Panel(
            title="Input cost of a request",
            about="At the two prices above, by policy.",
            unit="short",
            queries=(
                Query(
                    f'(sum by (policy) ({_TOKENS}{{{_P}, source="computed"}}) * $price_computed'
                    f" + sum by (policy) ({_REUSED}{{{_P}}}) * $price_reused) / 1e6"
                    f" / (sum by (policy) (policy_arm:sternpost_gateway_requests:rate5m{{{_P}}}) > 0)",
                    "{{policy}}",
                ),
            ),
        ),
        Panel(
            title="Prompt tokens by source",
            about="A second: cache reads from either store, and what is computed and then held.",
            unit="short",
            queries=(Query(f"sum by (source) ({_TOKENS}{{{_P}}})", "{{source}}"),),
        ),
        Panel(
            title="Requests in flight",
            about="At all gateways.",
            unit="short",
            queries=(Query(f"sum(sternpost_gateway_in_flight{{{_N}}})", "in flight"),),
        ),
        Panel(
            title="Predicted uncached tokens in flight",
            about="By engine; two of its batches are the most.",
            unit="short",
            queries=(Query(f"sum by (engine) (sternpost_gateway_uncached_tokens{{{_N}}})", "{{engine}}"),),
        ),
        Panel(
            title="Cold requests",
            about="Computing, waiting, and how many may compute at once, which falls as warm ones slow down.",
            unit="short",
            queries=(
                Query(f"sum(sternpost_gateway_cold_in_flight{{{_N}}})", "computing"),
                Query(f"sum(sternpost_gateway_cold_waiting{{{_N}}})", "waiting"),
                Query(f"sum(sternpost_gateway_cold_limit{{{_N}}})", "limit"),
            ),
            alerts=("SternpostColdQueueSaturated",),
        ),
        Panel(
            title="Refused at the gate",
            about="The share of requests for which the queue was full, or the wait over.",
            unit="percentunit",
            queries=(
                Query(f"namespace:sternpost_gateway_gate_refused:ratio_rate5m{{{_N}}}", "{{namespace}}"),
            ),
            alerts=("SternpostColdQueueSaturated",),
        ),
    ),
)

DASHBOARDS: Final = (FLEET, POLICY, ENGINE, SLO, CAPACITY)
