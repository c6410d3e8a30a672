"""
The per-request report, in the usage of every answer.

The scheduler attaches the report to a request's first output. In the API server it travels on as the count
of cached tokens, an `int` that knows its report, and comes out in `usage.prompt_tokens_details.sternpost`,
in streaming and non-streaming answers alike. Two of vLLM's methods are wrapped for this, both in the API
server's process; where vLLM does not have them any more, answers lack the detail and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sternpost_core.hint import HINT_FIELD

_WRAPPED: Final = "_sternpost_wrapped"


class ReportedCount(int):
    """A count of cached tokens that carries the report it belongs to."""

    report: Mapping[str, Any]

    @classmethod
    def of(cls, count: int, report: Mapping[str, Any]) -> ReportedCount:
        """Make the count that carries `report`."""
        carrier = cls(count)
        carrier.report = report
        return carrier


def carry_reports(outputs: Sequence[Any]) -> None:
    """Move each report from the engine's output to the count that the API server keeps."""
    for output in outputs:
        params = output.kv_transfer_params
        if not params or HINT_FIELD not in params:
            continue
        report = params[HINT_FIELD]
        rest = {key: value for key, value in params.items() if key != HINT_FIELD}
        output.kv_transfer_params = rest or None
        stats = output.prefill_stats
        if stats is not None:
            stats.num_cached_tokens = ReportedCount.of(stats.num_cached_tokens, report)


def details_with_report(details: Mapping[str, Any]) -> dict[str, Any]:
    """Add the report that the count of cached tokens carries, if it carries one."""
    count = details.get("cached_tokens")
    if isinstance(count, ReportedCount):
        return {**details, "cached_tokens": int(count), HINT_FIELD: dict(count.report)}
    return dict(details)


def install_reports(output_processor: type, details_model: type) -> None:
    """
    Wrap the two methods: `OutputProcessor.process_outputs` and the details' constructor.

    Installing twice does nothing more: vLLM may load a plugin several times in one process.
    """
    if getattr(output_processor, _WRAPPED, False):
        return
    process_outputs = output_processor.process_outputs  # type: ignore[attr-defined]
    initialize = details_model.__init__  # type: ignore[misc]

    def process_reported_outputs(self: Any, engine_core_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        carry_reports(engine_core_outputs)
        return process_outputs(self, engine_core_outputs, *args, **kwargs)

    def initialize_with_report(self: Any, **details: Any) -> None:
        initialize(self, **details_with_report(details))

    output_processor.process_outputs = process_reported_outputs  # type: ignore[attr-defined]
    details_model.__init__ = initialize_with_report  # type: ignore[misc]
    setattr(output_processor, _WRAPPED, True)
