"""
The gateway's metrics, on a registry that is passed in.

Labels are bounded: policies by name, reasons and outcomes by their enums. Nothing of a prompt, of a tenant or
of a session is ever a label.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry

from sternpost_gateway.cold_limiter import ColdLimiter, Outcome
from sternpost_gateway.collectors import Counter, Gauge, Histogram
from sternpost_gateway.fleet import Engine, View
from sternpost_gateway.kills import EVERYONE, KillTable

NO_POLICY: Final = ""
"""The policy label of requests that no policy matches."""

READY: Final = "ready"
NOT_READY: Final = "not_ready"
"""The states of engines."""

FIRST_TOKEN_BUCKETS: Final = (
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5,
    2.5, 5.0, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
"""Seconds; fine where a spliced tail lands, coarse where a cold prefill does."""


INTER_TOKEN_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0,
)  # fmt: skip
"""Seconds, from a small model on a large GPU to a large one on a busy CPU."""


class Metrics:
    """All metrics of one gateway; each attribute is one metric."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._make_request_metrics(registry)
        self._make_prompt_metrics(registry)
        self._make_tail_metrics(registry)
        self._make_shadow_metrics(registry)
        self._make_routing_metrics(registry)
        self._make_gate_metrics(registry)
        self._make_state_metrics(registry)
        self._make_kill_metrics(registry)

    def show_levels(self, table: KillTable) -> None:
        """Bring the kill level's gauge up to date; policies that are gone go from it, too."""
        self.kill_level.clear()
        self.kill_level.labels(EVERYONE).set(table.everyone.k)
        for policy, level in table.levels.items():
            self.kill_level.labels(policy).set(level.k)
        self.kill_source_level.clear()
        for policy, sources in table.sources.items():
            for source, level in sources.items():
                self.kill_source_level.labels(policy, source.value).set(level.k)

    def _make_request_metrics(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "sternpost_gateway_requests_total",
            "Requests by policy, arm of its rollout, and outcome.",
            ["policy", "arm", "outcome"],
            registry=registry,
        )
        self.first_token_seconds = Histogram(
            "sternpost_gateway_ttft_seconds",
            "From the request's arrival to the first byte of a streamed answer, by what the engine reused.",
            ["policy", "arm", "path"],
            buckets=FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "sternpost_gateway_prompt_tokens_total",
            "Prompt tokens by where their KV came from, as the engine reports it.",
            ["policy", "arm", "source"],
            registry=registry,
        )
        self.inter_token_seconds = Histogram(
            "sternpost_gateway_inter_token_seconds",
            "Mean time between two tokens of one streamed answer, by what the engine reused.",
            ["policy", "arm", "path"],
            buckets=INTER_TOKEN_BUCKETS,
            registry=registry,
        )
        self.sessions = Counter(
            "sternpost_gateway_sessions_total",
            "Sessions seen for the first time in their arm, or again after a long while.",
            ["policy", "arm"],
            registry=registry,
        )

    def _make_prompt_metrics(self, registry: CollectorRegistry) -> None:
        self.tool_lists = Counter(
            "sternpost_gateway_tool_lists_total",
            "Tool lists of requests by what was done about their form.",
            ["policy", "outcome"],
            registry=registry,
        )
        self.template_stability = Gauge(
            "sternpost_gateway_template_stability",
            "The share of a policy's prompts, 0 to 1, that begin and end as most of them do.",
            ["policy"],
            registry=registry,
        )
        self.departures = Counter(
            "sternpost_gateway_departures_total",
            "Prompts that depart from what came before, by how and by what the place looks like.",
            ["policy", "kind", "guess"],
            registry=registry,
        )
        self.departed_tokens = Counter(
            "sternpost_gateway_departed_tokens_total",
            "Prompt tokens behind such a place, which are computed again, as estimated from bytes.",
            ["policy", "kind", "guess"],
            registry=registry,
        )
        self.volatile_tokens = Counter(
            "sternpost_gateway_volatile_tokens_total",
            "Prompt tokens behind a volatile span that stays in the prefix, as estimated from bytes.",
            ["policy", "detector"],
            registry=registry,
        )
        self.volatile_spans = Counter(
            "sternpost_gateway_volatile_spans_total",
            "Volatile spans in prefixes, each once a session, by what they look like and what was done.",
            ["policy", "detector", "action"],
            registry=registry,
        )

    def _make_tail_metrics(self, registry: CollectorRegistry) -> None:
        self.bypasses = Counter(
            "sternpost_gateway_bypasses_total",
            "Requests of a policy that went without tail reuse, by reason; those of the engine included.",
            ["policy", "reason"],
            registry=registry,
        )
        self.isolation_violations = Counter(
            "sternpost_gateway_isolation_violations_total",
            "Answers for which an engine read the tail of another tenant or session, as it reports.",
            ["policy"],
            registry=registry,
        )
        self.builds = Counter(
            "sternpost_gateway_builds_total",
            "Tail builds by outcome.",
            ["policy", "outcome"],
            registry=registry,
        )
        self.templates = Counter(
            "sternpost_gateway_templates_total",
            "Templates whose tail's tokens were found out, or not, by outcome.",
            ["outcome"],
            registry=registry,
        )

    def _make_shadow_metrics(self, registry: CollectorRegistry) -> None:
        self.shadow_replays = Counter(
            "sternpost_gateway_shadow_replays_total",
            "Sampled requests by what became of their replay on the exact path.",
            ["policy", "outcome"],
            registry=registry,
        )
        self.shadow_tokens = Counter(
            "sternpost_gateway_shadow_tokens_total",
            "Tokens of answers that replays compared.",
            ["policy"],
            registry=registry,
        )
        self.shadow_agreed_tokens = Counter(
            "sternpost_gateway_shadow_agreed_tokens_total",
            "Those of them for which reused KV and the exact path have the same first choice.",
            ["policy"],
            registry=registry,
        )
        self.shadow_kl_nats = Counter(
            "sternpost_gateway_shadow_kl_nats_total",
            "Kullback-Leibler divergence of the exact path from reused KV over the compared tokens, in nats.",
            ["policy"],
            registry=registry,
        )
        self.demotions = Counter(
            "sternpost_gateway_demotions_total",
            "Tails that are read no more because their replays disagree with the exact path.",
            ["policy"],
            registry=registry,
        )
        self.demoted_tails = Gauge(
            "sternpost_gateway_demoted_tails",
            "Tails that are read no more, until their policy or its epoch changes.",
            ["policy"],
            registry=registry,
        )

    def show_demoted(self, counts: Mapping[str, int]) -> None:
        """Bring each policy's number of demoted tails up to date; policies that are gone go from it, too."""
        self.demoted_tails.clear()
        for policy, count in counts.items():
            self.demoted_tails.labels(policy).set(count)

    def _make_routing_metrics(self, registry: CollectorRegistry) -> None:
        self.affinity = Counter(
            "sternpost_gateway_affinity_total",
            "Choices of an engine by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.ejections = Counter(
            "sternpost_gateway_ejections_total",
            "Times that an engine got nothing for a while because its answers failed.",
            ["engine"],
            registry=registry,
        )
        self.retries = Counter(
            "sternpost_gateway_retries_total", "Requests sent a second time.", registry=registry
        )
        self.sheds = Counter(
            "sternpost_gateway_sheds_total", "Requests refused for overload.", registry=registry
        )
        self.stalled_clients = Counter(
            "sternpost_gateway_stalled_clients_total",
            "Clients given up because they had stopped reading.",
            registry=registry,
        )
        self.fallthroughs = Counter(
            "sternpost_gateway_fallthroughs_total",
            "Requests passed through plainly because deciding about them failed.",
            registry=registry,
        )

    def _make_gate_metrics(self, registry: CollectorRegistry) -> None:
        self.gate_outcomes = Counter(
            "sternpost_gateway_gate_total",
            "Requests by how they came through the gate of their engine, or why they were refused there.",
            ["outcome"],
            registry=registry,
        )
        self.gate_seconds = Histogram(
            "sternpost_gateway_gate_seconds",
            "Waited at the gate of an engine by requests that came through.",
            ["outcome"],
            buckets=FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self.cold_in_flight = Gauge(
            "sternpost_gateway_cold_in_flight",
            "Cold requests whose prompt an engine is computing.",
            ["engine"],
            registry=registry,
        )
        self.cold_waiting = Gauge(
            "sternpost_gateway_cold_waiting",
            "Cold requests that wait for room on an engine.",
            ["engine"],
            registry=registry,
        )
        self.cold_limit = Gauge(
            "sternpost_gateway_cold_limit",
            "Cold requests that an engine may compute at once, as adapted to the warm ones.",
            ["engine"],
            registry=registry,
        )
        self.uncached_tokens = Gauge(
            "sternpost_gateway_uncached_tokens",
            "Predicted uncached tokens in flight on an engine.",
            ["engine"],
            registry=registry,
        )

    def gated(self, outcome: Outcome, seconds: float) -> None:
        """Count a request that came through a gate, or was refused there."""
        self.gate_outcomes.labels(outcome.value).inc()
        self.gate_seconds.labels(outcome.value).observe(seconds)

    def show_gates(self, limiters: Mapping[Engine, ColdLimiter]) -> None:
        """Bring the gates' gauges up to date; engines that are gone go from them, too."""
        for gauge in (self.cold_in_flight, self.cold_waiting, self.cold_limit, self.uncached_tokens):
            gauge.clear()
        for engine, limiter in limiters.items():
            cold = sum(ticket.is_cold for ticket in limiter.active)
            self.cold_in_flight.labels(engine.url).set(cold)
            self.cold_waiting.labels(engine.url).set(len(limiter.waiting))
            self.cold_limit.labels(engine.url).set(limiter.adaptive.limit)
            self.uncached_tokens.labels(engine.url).set(limiter.active_tokens)

    def show_pools(self, views: Iterable[View]) -> None:
        """Bring the pools' gauge up to date; pools that are gone go from it, too."""
        tally = Tally((view.engine.pool, view.ready) for view in views)
        self.pool_engines.clear()
        for pool in dict.fromkeys(pool for pool, _ in tally):
            self.pool_engines.labels(pool, READY).set(tally[pool, True])
            self.pool_engines.labels(pool, NOT_READY).set(tally[pool, False])

    def _make_state_metrics(self, registry: CollectorRegistry) -> None:
        self.in_flight = Gauge("sternpost_gateway_in_flight", "Requests in flight.", registry=registry)
        self.engines_ready = Gauge(
            "sternpost_gateway_engines_ready", "Engines that may get requests.", registry=registry
        )
        self.pool_engines = Gauge(
            "sternpost_gateway_pool_engines",
            "Engines of a pool, ready or not_ready; the empty pool is that of engines named by flags.",
            ["pool", "state"],
            registry=registry,
        )
        self.engine_plugin = Gauge(
            "sternpost_gateway_engine_plugin",
            "1 for what an engine says about the plugin: ready, unsupported, absent or unknown.",
            ["engine", "plugin"],
            registry=registry,
        )
        self.config_age_seconds = Gauge(
            "sternpost_gateway_config_age_seconds", "Since the policies were last read.", registry=registry
        )
        self.config_faults = Gauge(
            "sternpost_gateway_config_faults",
            "Faults in the newest policies; 0 when they are live.",
            registry=registry,
        )

    def _make_kill_metrics(self, registry: CollectorRegistry) -> None:
        self.kill_level = Gauge(
            "sternpost_gateway_kill_level",
            "The effective kill level, 0 to 5; the empty policy is the level for all.",
            ["policy"],
            registry=registry,
        )
        self.kill_source_level = Gauge(
            "sternpost_gateway_kill_source_level",
            "What each source says, 0 to 5; the highest is the effective kill level.",
            ["policy", "source"],
            registry=registry,
        )
        self.kills = Counter(
            "sternpost_gateway_kills_total",
            "Kill levels set over HTTP, by file or by signal; None takes one back.",
            ["level", "source"],
            registry=registry,
        )
        self.kill_file_faults = Gauge(
            "sternpost_gateway_kill_file_faults",
            "1 while the kill file cannot be read or understood.",
            registry=registry,
        )
        self.trips = Counter(
            "sternpost_gateway_trips_total",
            "Times that an engine's suffix reads were turned off because they failed.",
            ["engine"],
            registry=registry,
        )
        self.engines_tripped = Gauge(
            "sternpost_gateway_engines_tripped",
            "Engines that get no suffix reads because theirs have failed.",
            registry=registry,
        )
