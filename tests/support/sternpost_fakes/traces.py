"""Tracing whose spans a test can read, and a collector that takes them as a real one does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sternpost_fakes.fake_http import FakeServer, Reply, Seen
from sternpost_gateway.otel import OtelTracing


class RecordedTracing(OtelTracing):
    """Keeps spans in memory, each from its end on."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        super().__init__(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """Return the spans that have ended."""
        return self._exporter.get_finished_spans()

    def only(self) -> ReadableSpan:
        """Return the only span that has ended."""
        (span,) = self.spans
        return span


def facts_of(span: ReadableSpan) -> Mapping[str, Any]:
    """Return a span's attributes and those of its events, by name."""
    facts = dict(span.attributes or {})
    for event in span.events:
        facts |= event.attributes or {}
    return facts


@dataclass(slots=True)
class Collector:
    """A collector's endpoint for traces by OTLP over HTTP; `exports` is what it got."""

    exports: list[ExportTraceServiceRequest] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    async def take(self, seen: Seen) -> Reply:
        """Take an export."""
        self.paths.append(seen.target)
        self.exports.append(ExportTraceServiceRequest.FromString(seen.body))
        return Reply(headers=(("content-type", "application/x-protobuf"),))

    def spans(self) -> list[tuple[str, Any]]:
        """Return all spans, each with the name of its service."""
        return [
            (service, span)
            for export in self.exports
            for resource in export.resource_spans
            for service in [
                one.value.string_value for one in resource.resource.attributes if one.key == "service.name"
            ]
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@asynccontextmanager
async def running_collector() -> AsyncIterator[tuple[Collector, str]]:
    """Run a collector for the length of a block; yield it and its base URL."""
    collector = Collector()
    server = FakeServer(collector.take)
    await server.start()
    try:
        yield collector, server.url
    finally:
        await server.stop()
