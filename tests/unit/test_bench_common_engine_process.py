"""How the benchmarks start an engine."""

import json
import os
import sys
from pathlib import Path

import pytest

from bench.common.engine_process import ROOT, EngineSettings, engine_command, engine_environment

MODEL = Path("models/small")


def arguments_of(settings: EngineSettings) -> tuple[list[str], list[str]]:
    """Return what `sternpost engine` gets, and what vLLM itself gets."""
    command = engine_command(settings, 8200)
    place = command.index("--")
    return command[:place], command[place + 1 :]


def test_an_engine_is_started_by_the_products_own_command() -> None:
    """With one thread, on the port that is free."""
    own, rest = arguments_of(EngineSettings(name="a", model=MODEL, arguments=("--block-size", "32")))

    assert [sys.executable, "-m", "sternpost_core", "engine", "--model", str(MODEL)] == own[:6]
    assert {"8200", "--threads", "--kv-cache-gib"} <= set(own)
    assert ["--block-size", "32"] == rest


def test_a_plain_engine_has_no_plugin() -> None:
    """Nor settings of one."""
    own, rest = arguments_of(EngineSettings(name="a", model=MODEL, plain=True, plugin={"pool_bytes": 1}))

    assert "--plain" in own
    assert [] == rest


def test_the_plugins_settings_travel_in_vllms_own_flag() -> None:
    """All that the product sets by itself stays beside them."""
    _, rest = arguments_of(EngineSettings(name="a", model=MODEL, plugin={"tail_tokens_min": 64}))

    flag, value = rest
    transfer = json.loads(value)
    assert ("--kv-transfer-config", "SternpostConnector", {"tail_tokens_min": 64}) == (
        flag,
        transfer["kv_connector"],
        transfer["kv_connector_extra_config"],
    )


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        pytest.param({}, [str(ROOT)], id="nothing set"),
        pytest.param({"PYTHONPATH": f"a{os.pathsep}b"}, [str(ROOT), "a", "b"], id="behind it what was set"),
    ],
)
def test_an_engine_can_import_this_repository(base: dict[str, str], expected: list[str]) -> None:
    """The quality benchmark's logits processor lies in it."""
    environment = engine_environment(base)

    assert expected == environment["PYTHONPATH"].split(os.pathsep)
    assert "1" == environment["VLLM_SERVER_DEV_MODE"]
