"""The entry point of `vllm.general_plugins`: called in every process of vLLM, possibly more than once."""

from __future__ import annotations

import logging

from sternpost_engine.core_calls import install_calls
from sternpost_engine.reporting import install_reports


def register() -> None:
    """Make answers carry reports, and the store be seen; the rest is named in the engine's own flags."""
    logger = logging.getLogger("vllm.sternpost")
    try:
        from vllm.entrypoints.serve.engine.protocol import PromptTokenUsageInfo
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.engine.output_processor import OutputProcessor
    except ImportError as error:
        logger.warning("answers carry no reuse report, and the store is not seen, with this vLLM: %s", error)
        return
    install_calls(EngineCore)
    install_reports(OutputProcessor, PromptTokenUsageInfo)
