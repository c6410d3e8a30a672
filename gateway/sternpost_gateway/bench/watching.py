"""What engines' metrics say about a unit: how much counters grew, and how high gauges were at most."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from sternpost_core.errors import OperatingError

COUNTERS: Final = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "sternpost_suffix_reused_tokens_total",
)

GAUGES: Final = (
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_waiting",
    "process_resident_memory_bytes",
    "sternpost_suffix_pool_bytes",
)

POLL_SECONDS: Final = 1.0
RESET_PAUSE_SECONDS: Final = 0.1
RESET_TRIES_MAX: Final = 50
SCRAPE_SECONDS_MAX: Final = 5.0

RESET_PATH: Final = "/reset_prefix_cache"


@dataclass(slots=True)
class Watched:
    """What has been seen: how much counters grew, and the gauges' peaks; of several engines the sums."""

    counted: dict[str, float] = field(default_factory=dict)
    peak: dict[str, float] = field(default_factory=dict)


@contextlib.asynccontextmanager
async def watching(http: aiohttp.ClientSession, engines: Sequence[str]) -> AsyncIterator[Watched]:
    """Watch engines for the length of a block; what they do not expose is left out."""
    seen = Watched()
    before = await scrape(http, engines)
    raise_peaks(seen.peak, before)
    polling = asyncio.create_task(_poll(http, engines, seen))
    try:
        yield seen
    finally:
        polling.cancel()
        after = await scrape(http, engines)
        raise_peaks(seen.peak, after)
        seen.counted.update(growth(before, after))


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return how much each counter grew; one that began anew has grown by what it is."""
    return {
        name: after[name] - before.get(name, 0.0) if after[name] >= before.get(name, 0.0) else after[name]
        for name in COUNTERS
        if name in after
    }


def raise_peaks(peak: dict[str, float], found: Mapping[str, float]) -> None:
    """Raise the gauges' peaks to what was found."""
    for name in GAUGES:
        if name in found:
            peak[name] = max(peak.get(name, 0.0), found[name])


async def scrape(http: aiohttp.ClientSession, engines: Sequence[str]) -> dict[str, float]:
    """Return the metrics that are looked at, summed over engines; a silent engine adds nothing."""
    found: dict[str, float] = {}
    for text in await asyncio.gather(*(_metrics(http, engine) for engine in engines)):
        for name, value in parse_metrics(text):
            found[name] = found.get(name, 0.0) + value
    return found


def parse_metrics(exposition: str) -> list[tuple[str, float]]:
    """Return name and value of each sample of the metrics that are looked at, labels left out."""
    wanted = {*COUNTERS, *GAUGES}
    pairs = [line.rpartition(" ") for line in exposition.splitlines() if not line.startswith("#")]
    return [(name, float(value)) for text, _, value in pairs if (name := text.partition("{")[0]) in wanted]


async def forget_prefixes(http: aiohttp.ClientSession, engines: Sequence[str]) -> None:
    """
    Empty the engines' prefix caches, so that no target finds what another one left.

    Raises:
        OperatingError: an engine does not do that, or something keeps it busy for seconds.
    """
    for engine in engines:
        try:
            await _forget(http, engine)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise OperatingError(
                f"{engine}{RESET_PATH} did not empty the prefix cache ({error}); vLLM has this path with "
                "VLLM_SERVER_DEV_MODE=1"
            ) from error


async def _forget(http: aiohttp.ClientSession, engine: str) -> None:
    for _ in range(RESET_TRIES_MAX):
        async with http.post(engine + RESET_PATH) as response:
            response.raise_for_status()
            if not says_no(await response.read()):
                return
        await asyncio.sleep(RESET_PAUSE_SECONDS)
    raise OperatingError(
        f"{engine}{RESET_PATH} did not empty the prefix cache in {RESET_TRIES_MAX} tries, because requests "
        "hold blocks of it; nobody else may ask an engine that is measured"
    )


def says_no(answer: bytes) -> bool:
    """Tell whether an engine says that it emptied nothing; releases that say nothing did."""
    try:
        found = json.loads(answer)
    except ValueError:
        return False
    # vLLM answers so, with status 200, while a request holds blocks.
    return isinstance(found, dict) and found.get("success") is False


async def _poll(http: aiohttp.ClientSession, engines: Sequence[str], seen: Watched) -> None:
    while engines:
        # A scrape at once would say what the one before the block has said, and disturb the first request.
        await asyncio.sleep(POLL_SECONDS)
        raise_peaks(seen.peak, await scrape(http, engines))


async def _metrics(http: aiohttp.ClientSession, engine: str) -> str:
    timeout = aiohttp.ClientTimeout(total=SCRAPE_SECONDS_MAX)
    try:
        async with http.get(f"{engine}/metrics", timeout=timeout) as response:
            return await response.text() if response.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError):
        return ""
