"""
What each stage tells a request's trace.

Names are those of OpenTelemetry's semantic conventions for generative AI where they have one, and begin with
`sternpost.` where they have none.
"""

from __future__ import annotations

from typing import Final

from sternpost_core.hint import Report
from sternpost_gateway.compose import Composed
from sternpost_gateway.dialogue import raw_member
from sternpost_gateway.errors import Answer
from sternpost_gateway.meter import Usage
from sternpost_gateway.plan import Planned
from sternpost_gateway.receive import CHAT_PATH, COMPLETIONS_PATH, RESPONSES_PATH
from sternpost_gateway.record import CUT, arm_label, cached_tokens_of, count_of, policy_label
from sternpost_gateway.relay import Relayed
from sternpost_gateway.router import Routed
from sternpost_gateway.tracing import Fact, Stage, Trace

OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
FIRST_CHUNK_SECONDS: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
SERVER_ADDRESS: Final = "server.address"
STATUS_CODE: Final = "http.response.status_code"

PROVIDER: Final = "vllm"

OPERATIONS: Final = {
    CHAT_PATH: "chat",
    RESPONSES_PATH: "chat",
    COMPLETIONS_PATH: "text_completion",
    "/v1/embeddings": "embeddings",
}
"""By path; other paths have no name that requests of their kind share."""

MODEL_LENGTH_MAX: Final = 256
"""Of a model's name, which is whatever a client sends."""

SERVER_ERRORS: Final = 500


def tell_decided(planned: Planned) -> None:
    """Tell what was asked for, and which policy counts for it."""
    identified = planned.identified
    trace = identified.received.trace
    if not trace.is_recording:
        return
    operation = OPERATIONS.get(identified.received.path)
    facts: dict[str, Fact] = {"sternpost.request_id": identified.received.request_id}
    if operation is not None:
        model = (identified.model or "")[:MODEL_LENGTH_MAX]
        trace.named(f"{operation} {model}".rstrip())
        facts |= {OPERATION_NAME: operation, PROVIDER_NAME: PROVIDER, REQUEST_MODEL: model}
    document = identified.received.document
    if document is not None:
        facts[REQUEST_STREAM] = raw_member(document, "stream") == b"true"
    trace.know(facts)
    trace.event(Stage.POLICY_MATCHED, _decision_facts(planned))


def _decision_facts(planned: Planned) -> dict[str, Fact]:
    return {
        "sternpost.policy": policy_label(planned),
        "sternpost.arm": arm_label(planned),
        "sternpost.kill_level": planned.identified.level.value,
        "sternpost.versions": planned.versions or "",
    }


def tell_routed(planned: Planned, routed: Routed) -> None:
    """Tell which engine was chosen, and what was predicted there; once for each attempt."""
    trace = planned.identified.received.trace
    if trace.is_recording:
        facts: dict[str, Fact] = {
            SERVER_ADDRESS: routed.engine.url,
            "sternpost.affinity": routed.affinity.value,
            "sternpost.predicted_tokens": round(routed.prompt_tokens),
            "sternpost.predicted_reuse_tokens": round(routed.reuse_tokens),
        }
        trace.event(Stage.ROUTED, facts)


def tell_answered(composed: Composed, relayed: Relayed, report: Report | None) -> None:
    """Tell how an answer went, and where the prompt's KV came from."""
    received = composed.planned.identified.received
    trace = received.trace
    if not trace.is_recording:
        return
    facts: dict[str, Fact] = {STATUS_CODE: relayed.status, SERVER_ADDRESS: composed.engine.url}
    if relayed.is_stream and relayed.first_byte is not None:
        facts[FIRST_CHUNK_SECONDS] = relayed.first_byte - received.arrived
    trace.know(facts | _usage_facts(relayed.usage) | _reuse_facts(composed, report))
    if relayed.cut or relayed.status >= SERVER_ERRORS:
        trace.failed(CUT if relayed.cut else str(relayed.status))


def tell_refused(trace: Trace, answer: Answer) -> None:
    """Tell that the gateway answered by itself; only its own failures and the engines' are errors."""
    if not trace.is_recording:
        return
    trace.know({STATUS_CODE: answer.status, "sternpost.refusal": answer.code})
    if answer.status >= SERVER_ERRORS:
        trace.failed(answer.code)


def _usage_facts(usage: Usage | None) -> dict[str, Fact]:
    found = {
        INPUT_TOKENS: _first_of(count_of(usage, "prompt_tokens"), count_of(usage, "input_tokens")),
        OUTPUT_TOKENS: _first_of(count_of(usage, "completion_tokens"), count_of(usage, "output_tokens")),
        CACHED_TOKENS: cached_tokens_of(usage),
    }
    return {name: count for name, count in found.items() if count is not None}


def _reuse_facts(composed: Composed, report: Report | None) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    if composed.outlook.bypass is not None:
        facts["sternpost.bypass"] = composed.outlook.bypass.value
    if report is not None:
        facts |= {
            "sternpost.tokens.prefix": report.prefix_tokens,
            "sternpost.tokens.suffix": report.suffix_tokens,
            "sternpost.tokens.computed": report.computed_tokens,
            "sternpost.reason": report.reason.value,
        }
    return facts


def _first_of(one: int | None, other: int | None) -> int | None:
    return other if one is None else one
