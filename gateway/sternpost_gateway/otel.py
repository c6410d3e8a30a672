"""
Traces by OpenTelemetry; the only module that knows its packages, which only tracing needs.

One span a request, of the kind of a server, beneath the client's own where it sends one. Who samples, how
much is held and how it is exported is said by OpenTelemetry's own variables (`OTEL_TRACES_SAMPLER`,
`OTEL_BSP_*`, `OTEL_EXPORTER_OTLP_*`, `OTEL_RESOURCE_ATTRIBUTES`); what cannot be exported is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import Thread
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sternpost_gateway.headers import Headers
from sternpost_gateway.settings import Traces
from sternpost_gateway.tracing import TRACE_ID, Fact, Stage, Trace, text_headers

logger = logging.getLogger(__name__)

SERVICE: Final = "sternpost-gateway"
"""The name of the service, unless OpenTelemetry's variables give another."""

TRACES_PATH: Final = "/v1/traces"
"""Below an endpoint, where OTLP takes traces over HTTP."""

CONTEXT_HEADERS: Final = (b"traceparent", b"tracestate")
"""The headers of W3C Trace Context."""

CLOSE_SECONDS_MAX: Final = 3.0
"""For what is still held at the end: a collector that is gone holds up no shutdown."""

CLOSE_POLL_SECONDS: Final = 0.02

HTTP_METHOD: Final = "http.request.method"
URL_PATH: Final = "url.path"


class OtelTrace:
    """One request's span."""

    __slots__ = ("_propagator", "_span", "exemplar", "is_recording", "trace_id")

    def __init__(self, span: Span, propagator: TraceContextTextMapPropagator) -> None:
        context = span.get_span_context()
        self._span = span
        self._propagator = propagator
        self.is_recording = span.is_recording()
        self.trace_id = format_trace_id(context.trace_id)
        # A trace that nobody has kept could not be looked up.
        self.exemplar: Mapping[str, str] | None = None
        if context.trace_flags.sampled:
            self.exemplar = {TRACE_ID: self.trace_id}

    def named(self, name: str) -> None:
        """Name the span."""
        self._span.update_name(name)

    def event(self, stage: Stage, facts: Mapping[str, Fact] | None = None) -> None:
        """Add an event to the span."""
        self._span.add_event(stage.value, facts)

    def know(self, facts: Mapping[str, Fact]) -> None:
        """Set attributes of the span."""
        self._span.set_attributes(facts)

    def failed(self, kind: str) -> None:
        """Set the span's status, without a description: it could repeat what a user wrote."""
        self._span.set_status(Status(StatusCode.ERROR))
        self._span.set_attribute("error.type", kind)

    def propagated(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the headers with the span's context; an engine's spans are beneath this one then."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(self._span))
        own = [(name.encode(), value.encode()) for name, value in carrier.items()]
        return [item for item in headers if item[0] not in CONTEXT_HEADERS] + own


class OtelTracing:
    """Makes spans, and hands them to a processor."""

    def __init__(self, processor: SpanProcessor) -> None:
        # What is named first counts least.
        resource = Resource.create({SERVICE_NAME: SERVICE}).merge(OTELResourceDetector().detect())
        # The process ends in an order of its own, which flushes; a second hook would wait twice.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("sternpost")
        self._propagator = TraceContextTextMapPropagator()

    def request(self, method: str, path: str, headers: Headers) -> AbstractContextManager[Trace]:
        """Trace a request, beneath the client's span where it sends one."""
        return self._request(method, path, headers)

    @contextmanager
    def _request(self, method: str, path: str, headers: Headers) -> Iterator[Trace]:
        context = self._propagator.extract(text_headers(headers, CONTEXT_HEADERS))
        facts = {HTTP_METHOD: method, URL_PATH: path}
        span = self._tracer.start_span(method, context, SpanKind.SERVER, facts)
        try:
            yield OtelTrace(span, self._propagator)
        finally:
            span.end()

    async def close(self) -> None:
        """Export what is still held, and stop; a collector that does not answer is given up."""
        # The process does not wait for such a thread at its end, as it would for one of a pool.
        thread = Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        for _ in range(int(CLOSE_SECONDS_MAX / CLOSE_POLL_SECONDS)):
            if not thread.is_alive():
                return
            await asyncio.sleep(CLOSE_POLL_SECONDS)
        logger.warning("the last spans were not taken within %g s", CLOSE_SECONDS_MAX)


def make_tracing(traces: Traces) -> OtelTracing:
    """Return tracing that exports in batches; without an endpoint it goes where the variables say."""
    endpoint = None if traces.endpoint is None else traces.endpoint.rstrip("/") + TRACES_PATH
    return OtelTracing(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
