"""The entry point of `vllm.general_plugins`: called in every process of vLLM, possibly more than once."""

from __future__ import annotations

import logging

from sternpost_engine.reporting import install_reports


def register() -> None:
    """Make answers carry reports; everything else is named in the engine's own flags."""
    logger = logging.getLogger("vllm.sternpost")
    try:
        from vllm.entrypoints.serve.engine.protocol import PromptTokenUsageInfo
        from vllm.v1.engine.output_processor import OutputProcessor
    except ImportError as error:
        logger.warning("answers carry no reuse report with this vLLM: %s", error)
        return
    install_reports(OutputProcessor, PromptTokenUsageInfo)
