"""What the planner needs to know of vLLM's request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sternpost_core.hint import HINT_FIELD
from sternpost_engine.adapters import AdapterDigests
from sternpost_engine.rules import Facts

if TYPE_CHECKING:
    from vllm.v1.request import Request


def facts_of(request: Request, adapters: AdapterDigests) -> Facts:
    """Gather what the planner needs to know of vLLM's request."""
    sampling = request.sampling_params
    transfer = request.kv_transfer_params
    remote = isinstance(transfer, dict) and bool(
        transfer.get("do_remote_prefill") or transfer.get("do_remote_decode")
    )
    # Only where a tail is asked for: an adapter's files may be large, and the scheduler waits meanwhile.
    hinted = isinstance(transfer, dict) and HINT_FIELD in transfer
    adapter = adapters.identify(request.lora_request) if hinted else ""
    return Facts(
        request_id=request.request_id,
        prompt=request.prompt_token_ids or (),
        transfer=transfer,
        salt=request.cache_salt or "",
        lora=adapter or "",
        adapter=request.lora_request,
        adapter_unknown=adapter is None,
        cache_off=request.skip_reading_prefix_cache,
        pooling=request.pooling_params is not None,
        prompt_logprobs=sampling is not None and sampling.prompt_logprobs is not None,
        multimodal=bool(request.mm_features) or request.prompt_embeds is not None,
        remote_kv=remote,
        resumable=request.resumable,
        answer_tokens=request.max_tokens,
    )
