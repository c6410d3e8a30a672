"""The flags of logs and traces, and what OpenTelemetry's own variables say where a flag does not."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from sternpost_core.errors import Fault, SettingsError
from sternpost_core.logs import add_log_format
from sternpost_gateway.settings import Traces

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
DISABLED: Final = "OTEL_SDK_DISABLED"
EXPORTER: Final = "OTEL_TRACES_EXPORTER"
"""OpenTelemetry's variables; of two the first counts."""

PROTOCOL: Final = "http/protobuf"
"""How traces are exported."""


def add_telemetry_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_log_format(parser)
    parser.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="send traces to this OpenTelemetry collector by OTLP over HTTP"
        f" (default: what {ENDPOINTS[1]} says; without it there are none)",
    )


def traces_of(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Traces | None:
    """
    Return where traces go, None where there are to be none.

    Raises:
        SettingsError: a variable asks for a way of export that there is not.
    """
    is_named = any(environment.get(name) for name in ENDPOINTS) and environment.get(EXPORTER) != "none"
    is_disabled = environment.get(DISABLED, "").lower() == "true"
    if is_disabled or (arguments.otlp_endpoint is None and not is_named):
        return None
    protocol = next((name for name in PROTOCOLS if environment.get(name)), None)
    if protocol is not None and environment[protocol] != PROTOCOL:
        allowed = f"{PROTOCOL}, or {DISABLED}=true for no traces"
        raise SettingsError("settings", [Fault(protocol, environment[protocol], allowed)])
    return Traces(arguments.otlp_endpoint)
