"""Traces go where a flag or OpenTelemetry's own variables say; what there is not is refused by name."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from sternpost_core.errors import SettingsError
from sternpost_gateway.settings import Settings, Traces, check_settings
from sternpost_gateway.telemetry_flags import add_telemetry_arguments, traces_of

FLAG = ["--otlp-endpoint", "http://collector:4318"]
PLACE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


def read(flags: list[str], environment: dict[str, str]) -> Traces | None:
    """Return where flags and environment send traces."""
    parser = argparse.ArgumentParser()
    add_telemetry_arguments(parser)
    return traces_of(parser.parse_args(flags), environment)


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        pytest.param([], {}, None, id="off by default"),
        pytest.param(FLAG, {}, Traces("http://collector:4318"), id="the flag"),
        pytest.param([], PLACE, Traces(), id="the variable"),
        pytest.param(
            [], {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, Traces(), id="the one for traces"
        ),
        pytest.param([], PLACE | {"OTEL_SDK_DISABLED": "TRUE"}, None, id="all of it is off"),
        pytest.param([], PLACE | {"OTEL_TRACES_EXPORTER": "none"}, None, id="traces are off"),
        pytest.param([], PLACE | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, Traces(), id="our way"),
        pytest.param(FLAG, {"OTEL_SDK_DISABLED": "true"}, None, id="all of it is off, whatever a flag says"),
        pytest.param(
            FLAG, {"OTEL_TRACES_EXPORTER": "none"}, Traces("http://collector:4318"), id="a flag counts more"
        ),
    ],
)
def test_where_traces_go(flags: list[str], environment: dict[str, str], expected: Traces | None) -> None:
    """Nowhere, unless somebody says so."""
    assert expected == read(flags, environment)


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_another_protocol_is_refused(name: str) -> None:
    """With the variable, what it says, and what it may say."""
    with pytest.raises(SettingsError, match=f"{name}: grpc is not allowed; allowed: http/protobuf"):
        read([], PLACE | {name: "grpc"})


def test_an_endpoint_that_is_no_url_is_refused(tmp_path: Path) -> None:
    """With the flag's name, before anything is sent."""
    settings = Settings(policies=tmp_path, engines=("http://engine",), traces=Traces("collector:4317"))

    with pytest.raises(SettingsError, match="--otlp-endpoint: collector:4317 is not allowed"):
        check_settings(settings)
