"""The entry point of `vllm.general_plugins`: called in every process of vLLM, possibly more than once."""

from __future__ import annotations

import logging

from sternpost_engine.core_calls import install_calls
from sternpost_engine.core_end import end_samples_at_shutdown
from sternpost_engine.reporting import install_reports


def register() -> None:
    """Have answers carry reports, the store seen, and samples end; the rest is in the engine's own flags."""
    logger = logging.getLogger("vllm.sternpost")
    try:
        from vllm.entrypoints.serve.engine.protocol import PromptTokenUsageInfo
        from vllm.v1.engine.core import EngineCore, EngineCoreProc
        from vllm.v1.engine.output_processor import OutputProcessor
    except ImportError as error:
        logger.warning("answers carry no reuse report, and the store is not seen, with this vLLM: %s", error)
        return
    install_calls(EngineCore)
    end_samples_at_shutdown(EngineCoreProc)
    install_reports(OutputProcessor, PromptTokenUsageInfo)
