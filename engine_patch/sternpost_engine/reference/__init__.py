"""
The reference engine: the splice of a stored tail on Hugging Face transformers, without vLLM.

In float32 it is exact: a splice of KV from a request's own context gives the logits of full prefill. So it
is the oracle that tests compare with, the engine that `sternpost calibrate` measures with, and a way to time
large shapes on a GPU. It shares the plugin's arithmetic: rotation, means, their interpolation, and matching.

    model = load_model(Path("model"), torch.float32, torch.device("cpu"))
    tail = build_tail(model, scaffold, tail_tokens)
    cache = model.new_cache(len(front) + len(tail_tokens))
    logits = splice(model, cache, tail, Splice(front, runs=computed_runs(len(tail_tokens), last=32)))
"""

from __future__ import annotations

from sternpost_engine.reference.cache import Rows, SlotCache
from sternpost_engine.reference.model import ReferenceModel, load_model, wrap
from sternpost_engine.reference.splice import Splice, computed_runs, prefill, splice
from sternpost_engine.reference.support import UnsupportedModelError
from sternpost_engine.reference.tails import add_means, build_tail, encode_tail

__all__ = [
    "ReferenceModel",
    "Rows",
    "SlotCache",
    "Splice",
    "UnsupportedModelError",
    "add_means",
    "build_tail",
    "computed_runs",
    "encode_tail",
    "load_model",
    "prefill",
    "splice",
    "wrap",
]
