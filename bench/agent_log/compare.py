"""What lint predicts of a log beside what vLLM's own parts then count, as it is and as a gateway sends it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from bench.agent_log.vllm_parts import VllmCache, VllmPrompts, write_tokenizer
from sternpost_core.policy import Policy
from sternpost_gateway.bench.agents import agent_bodies
from sternpost_gateway.lint.analysis import Options, analyse
from sternpost_gateway.lint.fixes import PolicyNames
from sternpost_gateway.lint.log import LineCounts, Log
from sternpost_gateway.lint.model_tokenizer import load_model_tokenizer
from sternpost_gateway.lint.prompt import TemplatePrompts
from sternpost_gateway.lint.report import Report
from sternpost_gateway.lint.rewrite import Rewriter
from sternpost_gateway.lint.simulate import CacheShape

SHAPE: Final = CacheShape(block_tokens=16, cache_tokens=262_144)
"""Fewer tokens than all that differ, so that the cache has to forget."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A log's report, and the share of prompt tokens, from 0 to 1, that vLLM counts as reused."""

    report: Report
    today: float
    fixed: float

    @property
    def differences(self) -> tuple[float, float]:
        """Return by how much the predictions are off, today and fixed."""
        return abs(self.report.reuse - self.today), abs(self.report.reuse_fixed - self.fixed)


def compare(tokenizer: Path, folder: Path, requests: int, seed: int) -> Comparison:
    """Make a log in `folder`, predict, and count; `tokenizer` is the directory of a model."""
    model = write_tokenizer(tokenizer, folder / "model")
    path = folder / "log.jsonl"
    path.write_bytes(b"\n".join(agent_bodies(requests, seed)) + b"\n")
    report, takes_later_system = predict(path, model)
    assert report.policy is not None, "the requests are full of what a policy mends"
    prompts = VllmPrompts(model)
    rewritten = as_sent(path, report.policy, takes_later_system=takes_later_system)
    return Comparison(
        report,
        _counted(prompts, ((body, None) for body in path.read_bytes().splitlines())),
        _counted(prompts, rewritten),
    )


def predict(path: Path, model: Path, shape: CacheShape = SHAPE) -> tuple[Report, bool]:
    """Return what lint says of a log, and whether the template takes a later system message as it comes."""
    prompts = TemplatePrompts(load_model_tokenizer(model, datetime.now()), "chat template and tokenizer")
    options = Options(shape=shape, names=PolicyNames(), plain_engine=True)
    with ExitStack() as stack:
        log = Log([str(path)], None, stack, io.BytesIO())
        return analyse(log, prompts, options, lambda name, count: None), prompts.takes_later_system


def as_sent(path: Path, policy: Policy, *, takes_later_system: bool) -> Iterator[tuple[bytes, str | None]]:
    """Yield body and salt of each request as a gateway with this policy sends it."""
    rewriter = Rewriter(policy, takes_later_system=takes_later_system)
    with ExitStack() as stack:
        log = Log([str(path)], None, stack, io.BytesIO())
        for _, request in log.requests(LineCounts(), lambda count: None):
            rewritten = rewriter.rewrite(request)
            yield rewritten.document.body, rewritten.salt


def _counted(prompts: VllmPrompts, sent: Iterable[tuple[bytes, str | None]]) -> float:
    cache = VllmCache(SHAPE.cache_tokens // SHAPE.block_tokens, SHAPE.block_tokens)
    for body, salt in sent:
        cache.take(prompts.tokens(body), salt)
    return cache.reuse
