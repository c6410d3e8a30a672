"""`sternpost engine`: how vLLM is started."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from sternpost_core.errors import SettingsError
from sternpost_engine.command_engine import (
    COMMAND,
    EngineSettings,
    check_model,
    engine_command,
    engine_environment,
    read_settings,
)

MODEL = Path("/models/small")


def settings(**changes: Any) -> EngineSettings:
    """Return settings for a model, with changes."""
    return EngineSettings(**{"model": MODEL, **changes})


def flag_value(command: list[str], flag: str) -> str:
    """Return the word after the last `flag`, which is the one that counts."""
    return command[len(command) - command[::-1].index(flag)]


def parsed(*words: str) -> EngineSettings:
    """Return the settings that `words` stand for."""
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    return read_settings(parser.parse_args(words))


@pytest.mark.parametrize(
    ("changes", "flag", "expected"),
    [
        pytest.param({}, "--model", "/models/small", id="model"),
        pytest.param({}, "--served-model-name", "small", id="name-of-the-folder"),
        pytest.param({"served_model_name": "s"}, "--served-model-name", "s", id="name-that-is-given"),
        pytest.param({"port": 9}, "--port", "9", id="port"),
        pytest.param({"host": "::1"}, "--host", "::1", id="host"),
        pytest.param({}, "--scheduler-cls", "sternpost_engine.scheduler.SternpostScheduler", id="scheduler"),
        pytest.param({}, "--dtype", "float32", id="exact-on-a-cpu"),
        pytest.param({"extra": ("--dtype", "bfloat16")}, "--dtype", "bfloat16", id="own-arguments-win"),
    ],
)
def test_command_carries_the_setting(changes: dict[str, Any], flag: str, expected: str) -> None:
    """Each setting becomes vLLM's flag."""
    assert expected == flag_value(engine_command(settings(**changes)), flag)


def test_command_names_the_connector() -> None:
    """vLLM loads the connector by its module, and computes what could not be loaded."""
    expected = {
        "kv_connector": "SternpostConnector",
        "kv_connector_module_path": "sternpost_engine.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
    }

    assert expected == json.loads(flag_value(engine_command(settings()), "--kv-transfer-config"))


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        pytest.param({"plain": True}, "--kv-transfer-config", id="plain-has-no-connector"),
        pytest.param({"plain": True}, "--scheduler-cls", id="plain-has-vllms-scheduler"),
        pytest.param({"cpu": False}, "--enforce-eager", id="gpu-compiles"),
        pytest.param({"cpu": False}, "--dtype", id="gpu-has-the-models-type"),
    ],
)
def test_command_leaves_out_what_does_not_apply(changes: dict[str, Any], absent: str) -> None:
    """Without the plugin, or on a GPU, vLLM is started as its own defaults say."""
    assert absent not in engine_command(settings(**changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, {"VLLM_PLUGINS": "sternpost"}, id="plugin"),
        pytest.param({"plain": True}, {"VLLM_PLUGINS": ""}, id="plain-loads-no-plugin-at-all"),
        pytest.param({"kv_cache_gib": 3}, {"VLLM_CPU_KVCACHE_SPACE": "3"}, id="kv-cache"),
        pytest.param(
            {"threads": 2}, {"OMP_NUM_THREADS": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}, id="threads"
        ),
        pytest.param({"log_level": "debug"}, {"VLLM_LOGGING_LEVEL": "DEBUG"}, id="log-level"),
        pytest.param({}, {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}, id="stays-offline"),
        pytest.param({}, {"PATH": "bin"}, id="callers-environment"),
    ],
)
def test_environment_carries_the_setting(changes: dict[str, Any], expected: dict[str, str]) -> None:
    """What vLLM reads from its environment is set, and the rest is the caller's."""
    environment = engine_environment(settings(**changes), {"PATH": "bin", "VLLM_PLUGINS": "other"})

    assert expected == {name: environment[name] for name in expected}


def test_environment_for_a_gpu_leaves_threads_alone() -> None:
    """On a GPU the CPU's settings are not touched."""
    environment = engine_environment(settings(cpu=False), {"OMP_NUM_THREADS": "7"})

    assert "7" == environment["OMP_NUM_THREADS"]
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["--device", "cpu"], settings(threads=2), id="defaults"),
        pytest.param(["--device", "gpu"], settings(threads=2, cpu=False), id="gpu"),
        pytest.param(
            ["--device", "cpu", "--port", "8101", "--", "--seed", "1"],
            settings(threads=2, port=8101, extra=("--seed", "1")),
            id="arguments-for-vllm",
        ),
    ],
)
def test_flags_become_settings(words: list[str], expected: EngineSettings) -> None:
    """Words on the command line become one frozen value."""
    assert expected == parsed("--model", str(MODEL), "--threads", "2", *words)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--port", "0"], id="port-0"),
        pytest.param(["--port", "65536"], id="port-over-the-limit"),
        pytest.param(["--port", "x"], id="port-no-number"),
        pytest.param(["--threads", "0"], id="no-threads"),
        pytest.param(["--kv-cache-gib", "-1"], id="negative-cache"),
        pytest.param(["--log-level", "loud"], id="unknown-log-level"),
    ],
)
def test_wrong_flags_name_the_flag(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong value ends with the flag's name, before anything starts."""
    with pytest.raises(SystemExit):
        parsed("--model", str(MODEL), *words)

    assert f"argument {words[0]}" in capsys.readouterr().err


def test_missing_model_names_the_command_that_gets_it(tmp_path: Path) -> None:
    """A folder without a model says what to do."""
    with pytest.raises(SettingsError, match=r"--model: .*/none is not allowed; .*`sternpost model fetch`"):
        check_model(tmp_path / "none")


def test_folder_with_a_configuration_is_a_model(tmp_path: Path) -> None:
    """vLLM itself judges the rest."""
    (tmp_path / "config.json").touch()
    check_model(tmp_path)


def test_stray_word_is_refused() -> None:
    """A word that is no flag would only make vLLM fail later."""
    with pytest.raises(
        SettingsError, match="ARGUMENT: small is not allowed; allowed: flags of vLLM, after --"
    ):
        parsed("--model", str(MODEL), "small")


@pytest.mark.parametrize("flag", ["--port", "--threads"])
def test_what_is_no_number_is_told_with_what_is_allowed(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As what is out of range is."""
    with pytest.raises(SystemExit):
        parsed("--model", str(MODEL), flag, "two")

    assert f"{flag}: two is not allowed; allowed: " in capsys.readouterr().err
