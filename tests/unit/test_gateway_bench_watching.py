"""What the bench asks engines beside the requests that it measures."""

import asyncio
import json
from dataclasses import dataclass

import pytest

from sternpost_core.errors import OperatingError
from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.fake_http import Reply, Seen
from sternpost_gateway.bench import watching
from sternpost_gateway.bench.client import open_session
from sternpost_gateway.bench.watching import RESET_PATH, RESET_TRIES_MAX, forget_prefixes, says_no

METRICS = "/metrics"


@dataclass(slots=True)
class WatchedEngine(FakeEngine):
    """An engine that refuses so many resets, as vLLM does, and whose gauge falls with each scrape."""

    refusals: int = 0

    async def handle(self, seen: Seen) -> Reply:
        """Answer one request."""
        if seen.target == METRICS:
            return Reply(pieces=(f"vllm:kv_cache_usage_perc {1 / len(self.scrapes)}\n".encode(),))
        self.refusals -= 1
        return Reply(pieces=(json.dumps({"success": self.refusals < 0}).encode(),))

    @property
    def scrapes(self) -> list[Seen]:
        """Return the scrapes seen so far."""
        return [seen for seen in self.server.seen if seen.target == METRICS]


async def test_a_short_block_is_scraped_before_and_after_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape at its beginning would disturb the first request; the one before tells a peak, too."""
    monkeypatch.setattr(watching, "POLL_SECONDS", 60.0)
    engine = WatchedEngine()
    async with running_engine(engine), open_session() as http:
        async with watching.watching(http, [engine.url]) as seen:
            await asyncio.sleep(0.05)
        assert 2 == len(engine.scrapes)

    assert {"vllm:kv_cache_usage_perc": 1.0} == seen.peak


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(b'{"success": false}', True, id="refused"),
        pytest.param(b'{"success": true}', False, id="done"),
        pytest.param(b"", False, id="a release that says nothing"),
        pytest.param(b"[false]", False, id="another answer"),
    ],
)
def test_an_engine_may_say_that_it_emptied_nothing(answer: bytes, expected: bool) -> None:
    """With status 200."""
    assert expected == says_no(answer)


async def test_an_engine_that_is_busy_for_a_moment_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request's blocks may be freed a moment after its answer."""
    monkeypatch.setattr(watching, "RESET_PAUSE_SECONDS", 0.0)
    async with running_engine(WatchedEngine(refusals=2)) as engine, open_session() as http:
        await forget_prefixes(http, [engine.url])

    assert 3 == len(engine.posts(RESET_PATH))


async def test_an_engine_that_stays_busy_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures with what another target has left would be wrong."""
    monkeypatch.setattr(watching, "RESET_PAUSE_SECONDS", 0.0)
    async with running_engine(WatchedEngine(refusals=10**6)) as engine, open_session() as http:
        with pytest.raises(OperatingError, match="requests hold blocks of it"):
            await forget_prefixes(http, [engine.url])

    assert RESET_TRIES_MAX == len(engine.posts(RESET_PATH))
