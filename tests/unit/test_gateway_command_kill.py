"""The subcommand that sets and shows kill levels: its flags, its table and its status."""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from sternpost_core.clock import SystemClock
from sternpost_core.command import EXIT_FAILED, apply_environment
from sternpost_core.errors import OperatingError, SettingsError
from sternpost_core.kill import KillLevel
from sternpost_fakes.certificates import Authority, Pair
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.engine import running_engine
from sternpost_fakes.fake_http import FakeServer, Reply, Seen
from sternpost_fakes.gateway import ADMIN_TOKEN, RunningGateway, running_gateway
from sternpost_gateway.cluster.api import KubernetesApi
from sternpost_gateway.cluster.kill_object import gateway_urls
from sternpost_gateway.cluster.resources import Listing
from sternpost_gateway.command_kill import COMMAND, GATEWAY_DEFAULT, order_of, table
from sternpost_gateway.kill_client import (
    DETAIL_LENGTH_MAX,
    KillClient,
    Outcome,
    Wanted,
    one_line,
    read_answer,
)
from sternpost_gateway.settings import Settings

POLICY = "agents/support"
CLOSED = "http://127.0.0.1:9"
"""Nobody listens there."""


def parse(directory: Path, *words: str, environment: dict[str, str] | None = None) -> argparse.Namespace:
    """Parse a command line; the token file is given."""
    (directory / "token").write_text(ADMIN_TOKEN)
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    apply_environment(parser, environment or {})
    return parser.parse_args([*words, "--token-file", str(directory / "token")])


async def run(directory: Path, *words: str) -> int:
    """Run the command as the console does, beside the gateways of this test."""
    return await asyncio.to_thread(COMMAND.run, parse(directory, *words))


@asynccontextmanager
async def gateways(directory: Path) -> AsyncIterator[tuple[RunningGateway, RunningGateway]]:
    """Run two gateways with the admin interface."""

    def settings(given: Settings) -> Settings:
        return replace(given, admin_token=ADMIN_TOKEN)

    for name in ("one", "two"):
        (directory / name).mkdir()
    async with (
        running_engine() as engine,
        running_gateway(directory / "one", [engine.url], settings=settings) as one,
        running_gateway(directory / "two", [engine.url], settings=settings) as two,
    ):
        yield one, two


@pytest.mark.parametrize("word", ["NoSuffixReads", "K1", "k1"])
def test_level_reaches_the_order(tmp_path: Path, word: str) -> None:
    """Without more, it is for all policies, at the gateway of this machine, with the user's name."""
    order = order_of(parse(tmp_path, word, "--reason", "incident 4711"))

    assert ((GATEWAY_DEFAULT,), ADMIN_TOKEN, None) == (order.gateways, order.token, order.policy)
    assert order.wanted is not None and KillLevel.NO_SUFFIX_READS is order.wanted.level
    assert order.wanted.reason.startswith("incident 4711 (")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param((), {"level": "NoRewrite", "policy": None}, id="ramped"),
        pytest.param(("--force",), {"level": "NoRewrite", "policy": None, "force": True}, id="forced"),
    ],
)
def test_force_is_asked_for_by_a_flag(
    tmp_path: Path, words: tuple[str, ...], expected: dict[str, object]
) -> None:
    """A gateway that knows no force is not asked for it by who does not want it."""
    wanted = order_of(parse(tmp_path, "K3", *words)).wanted

    assert wanted is not None
    assert expected == {name: item for name, item in wanted.to_mapping().items() if name != "reason"}


def test_status_wants_nothing(tmp_path: Path) -> None:
    """Looking sets no level."""
    assert None is order_of(parse(tmp_path, "status")).wanted


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        pytest.param(("--policy", POLICY), POLICY, id="policy"),
        pytest.param(("--all",), None, id="all"),
        pytest.param((), None, id="neither"),
    ],
)
def test_policy_is_chosen(tmp_path: Path, words: tuple[str, ...], policy: str | None) -> None:
    """A level is for one policy, or for all."""
    order = order_of(parse(tmp_path, "K1", *words))

    assert order.wanted is not None
    assert (policy, policy) == (order.policy, order.wanted.policy)


def test_flags_may_come_from_the_environment(tmp_path: Path) -> None:
    """Whoever has many gateways names them once; a flag goes before a variable."""
    environment = {"STERNPOST_GATEWAY": "http://a:1,http://b:2", "STERNPOST_POLICY": POLICY}
    order = order_of(parse(tmp_path, "K1", environment=environment))
    for_all = order_of(parse(tmp_path, "K1", "--all", environment=environment))

    assert (("http://a:1", "http://b:2"), POLICY) == (order.gateways, order.policy)
    assert None is for_all.policy


@pytest.mark.parametrize("words", [("Off",), ("K6",), ("",), ("K1", "--policy", POLICY, "--all"), ()])
def test_wrong_usage_says_what_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """A level that is none ends with those that are."""
    with pytest.raises(SystemExit):
        parse(tmp_path, *words)
    errors = capsys.readouterr().err

    assert "usage:" in errors
    assert words[:1] not in (("Off",), ("K6",)) or "None, NoSuffixReads, NewEpoch" in errors


@pytest.mark.parametrize(
    ("words", "named"),
    [
        pytest.param(("--gateway", "gateway:8080"), "--gateway", id="no-url"),
        pytest.param(("--gateway", "http://gateway/sternpost"), "--gateway", id="url-with-path"),
        pytest.param(tuple(f"--gateway=http://g{n}" for n in range(257)), "--gateway", id="too-many"),
        pytest.param(("--policy", "support"), "--policy", id="no-namespace"),
        pytest.param(("--reason", "x" * 1024), "--reason", id="long-reason"),
    ],
)
def test_wrong_flag_is_named(tmp_path: Path, words: tuple[str, ...], named: str) -> None:
    """Nothing is sent when anything is wrong."""
    with pytest.raises(SettingsError) as refused:
        order_of(parse(tmp_path, "K1", *words))

    assert [named] == [fault.path for fault in refused.value.faults]


async def test_level_is_set_at_every_gateway(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All answered: the status is 0, and the table says so."""
    async with gateways(tmp_path) as (one, two):
        urls = ("--gateway", one.url, "--gateway", two.url)
        status = await run(tmp_path, "K3", "--policy", POLICY, "--reason", "drill", *urls)
        lines = capsys.readouterr().out.splitlines()
        levels = [gateway.metric("sternpost_gateway_kill_level", policy=POLICY) for gateway in (one, two)]

    assert (0, [3.0, 3.0]) == (status, levels)
    assert ["GATEWAY", "ANSWERED", "AFTER", "LEVEL", "DETAIL"] == lines[0].split()
    assert all("NoRewrite" in line and "http" in line and "drill" in line for line in lines[1:])
    assert [one.url, two.url] == [line.split()[0] for line in lines[1:]]


async def test_gateway_that_does_not_answer_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are killed all the same; the status says that one is missing."""
    async with gateways(tmp_path) as (one, _):
        status = await run(tmp_path, "K1", "--gateway", CLOSED, "--gateway", one.url)
        captured = capsys.readouterr()
        level = one.metric("sternpost_gateway_kill_level", policy="")
    missing, answered = captured.out.splitlines()[1:]

    assert (EXIT_FAILED, 1.0) == (status, level)
    assert missing.startswith(CLOSED) and "unknown" in missing and "no answer" in missing
    assert "NoSuffixReads" in answered
    assert "1 of 2 gateways failed" in captured.err


async def test_status_shows_what_counts_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each gateway's own level is shown."""
    async with gateways(tmp_path) as (one, two):
        await run(tmp_path, "K2", "--gateway", one.url, "--reason", "drill")
        capsys.readouterr()
        status = await run(tmp_path, "status", "--gateway", one.url, "--gateway", two.url)
        lines = capsys.readouterr().out.splitlines()

    assert 0 == status
    assert [True, False] == ["NewEpoch" in line and "drill" in line for line in lines[1:]]
    assert "None" == lines[2].split()[-2]


async def test_wrong_token_is_a_refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gateway that refuses has not done what it was asked for."""
    async with gateways(tmp_path) as (one, _):
        arguments = parse(tmp_path, "K1", "--gateway", one.url)
        (tmp_path / "token").write_text("another token, long enough")
        status = await asyncio.to_thread(COMMAND.run, arguments)

    assert EXIT_FAILED == status
    assert "refused with 403: the admin token is missing or wrong" in capsys.readouterr().out


SOURCES = [
    {"policy": None, "source": "http", "level": "NoRewrite"},
    {"policy": None, "source": "file", "level": "None"},
    {"policy": POLICY, "source": "http", "level": "NoRewrite"},
    {"policy": POLICY, "source": "policy", "level": "NewEpoch"},
]
LATCHES = [
    {"policy": POLICY, "source": "http", "level": "NoSuffixReads", "reason": "less", "by": "http a"},
    {"policy": None, "source": "http", "level": "NoRewrite", "reason": "incident", "by": "http b"},
]
STATE: dict[str, Any] = {
    "level": "NoRewrite",
    "policies": {POLICY: "NoRewrite"},
    "sources": SOURCES,
    "latches": LATCHES,
    "trips": [],
    "file": None,
}


@pytest.mark.parametrize(
    ("status", "body", "policy", "expected"),
    [
        pytest.param(200, STATE, None, ("NoRewrite", "http NoRewrite by http b: incident", True), id="all"),
        pytest.param(
            200,
            STATE,
            POLICY,
            ("NoRewrite", "http NoRewrite by http b: incident; policy NewEpoch", True),
            id="policy",
        ),
        pytest.param(
            500,
            {**STATE, "persisted": False, "sources": []},
            None,
            ("NoRewrite", "would not survive a restart; ", False),
            id="not-persisted",
        ),
        pytest.param(
            200,
            {**STATE, "sources": [], "trips": [{"engine": "http://e", "reason": "5xx"}]},
            None,
            ("NoRewrite", "http://e tripped: 5xx", True),
            id="tripped",
        ),
        pytest.param(
            200,
            {**STATE, "sources": [], "file": {"fault": {"value": "'K9' in the first line"}}},
            None,
            ("NoRewrite", "kill file refused: 'K9' in the first line", True),
            id="file-refused",
        ),
        pytest.param(
            200,
            {**STATE, "sources": [], "transitions": [{"policy": None, "to": "NoRewrite", "share": 12}]},
            None,
            ("NoRewrite", "NoRewrite has reached 12% of the sessions", True),
            id="on-the-way",
        ),
        pytest.param(
            200,
            STATE,
            "agents/other",
            (None, "answered, but it has no policy agents/other", False),
            id="other-policy",
        ),
        pytest.param(200, [], None, (None, "answered, but no kill state", False), id="no-object"),
        pytest.param(200, {"level": 3}, None, (None, "answered, but no kill state", False), id="no-level"),
        pytest.param(
            200, {"level": "Off"}, None, (None, "answered, but no kill state", False), id="unknown-level"
        ),
        pytest.param(
            200, {**STATE, "sources": 3, "latches": {}}, None, ("NoRewrite", "", True), id="odd-lists"
        ),
        pytest.param(
            404,
            {"error": {"message": "no such path"}},
            None,
            (None, "refused with 404: no such path", False),
            id="refused",
        ),
        pytest.param(502, "gone", None, (None, "refused with 502: no reason given", False), id="no-reason"),
    ],
)
def test_answers_are_read(
    status: int, body: object, policy: str | None, expected: tuple[str | None, str, bool]
) -> None:
    """What a gateway says is understood, and what is no gateway's answer is not taken for one."""
    assert expected == read_answer(httpx.Response(status, json=body), policy)


def test_page_is_no_answer() -> None:
    """Something else that listens there has not been killed."""
    assert (None, "answered, but no kill state", False) == read_answer(
        httpx.Response(200, text="<html>"), None
    )


async def test_hanging_gateway_is_given_up() -> None:
    """One that takes the request and says nothing holds nobody up."""

    async def hang(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")

    async with httpx.AsyncClient(transport=httpx.MockTransport(hang), timeout=None) as client:
        outcomes = await KillClient(client, FakeClock(), 0.05).ask(
            ["http://gateway"], Wanted(KillLevel.NO_SUFFIX_READS, None, "drill")
        )

    assert [(None, "no answer within 0.05 s", False)] == [
        (outcome.level, outcome.detail, outcome.complete) for outcome in outcomes
    ]


def test_words_of_a_gateway_cannot_disturb_the_terminal() -> None:
    """Control characters and endless texts stay out of the table."""
    shown = one_line("a\x1b[2J\nb" + "x" * 1000)

    assert shown.isprintable() and DETAIL_LENGTH_MAX == len(shown)


def test_table_tells_when_each_answered() -> None:
    """The time is in UTC; who did not answer has none."""
    answered = Outcome(
        gateway="http://a",
        at=1_700_000_000.25,
        seconds=0.012,
        level="NewEpoch",
        detail="",
        complete=True,
    )
    missing = replace(answered, gateway="http://long", level=None, detail="no answer", complete=False)

    assert [
        "GATEWAY      ANSWERED       AFTER  LEVEL     DETAIL",
        "http://a     22:13:20.250Z  12 ms  NewEpoch  -",
        "http://long  no             12 ms  unknown   no answer",
    ] == table([answered, missing])


async def test_a_level_that_arrives_by_itself_is_waited_for(tmp_path: Path) -> None:
    """What a gateway learns from elsewhere is seen there; where it does not arrive, the wait has an end."""
    async with gateways(tmp_path) as (one, two), httpx.AsyncClient(trust_env=False) as client:
        client.headers["authorization"] = f"Bearer {ADMIN_TOKEN}"
        kills = KillClient(client, SystemClock(), 10.0)
        wanted = Wanted(KillLevel.NO_SUFFIX_READS, None, "drill")
        waiting = asyncio.create_task(kills.arrive([one.url], wanted, 60.0))
        await asyncio.sleep(0.2)
        await kills.ask([one.url], Wanted(KillLevel.NEW_EPOCH, None, "drill"))
        (arrived,) = await waiting
        (missing,) = await kills.arrive([two.url], wanted, 0.3)

    assert (True, "NewEpoch") == (arrived.complete, arrived.level)
    assert (False, "None") == (missing.complete, missing.level)
    assert missing.seconds >= 0.3


@asynccontextmanager
async def tls_gateway(served: Pair) -> AsyncIterator[str]:
    """Run what answers as a gateway does that serves a certificate; yield its URL."""

    async def answer(seen: Seen) -> Reply:
        return Reply(pieces=(json.dumps({"level": "NoRewrite", "policies": {}}).encode(),))

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(served.cert, served.key)
    server = FakeServer(answer, tls=context)
    await server.start()
    try:
        yield server.url
    finally:
        await server.stop()


async def test_gateway_that_serves_tls_is_met_by_its_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever name it is for, since pods are asked by address; another one, or none, is not enough."""
    authority = Authority(tmp_path)
    served, other = authority.issue("llm.example", "served"), authority.issue("llm.example", "other")
    async with tls_gateway(served) as url:
        found = {
            file: await run(tmp_path, "status", "--gateway", url, *words)
            for file, words in {
                "served": ("--gateway-certificate", str(served.cert)),
                "other": ("--gateway-certificate", str(other.cert)),
                "none": (),
            }.items()
        }
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("https")]

    assert {"served": 0, "other": EXIT_FAILED, "none": EXIT_FAILED} == found
    assert ["NoRewrite", "unknown", "unknown"] == [line.split()[4] for line in lines]
    assert all("CERTIFICATE_VERIFY_FAILED" in line for line in lines[1:])


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    """Before anything is sent: who has to switch off at once finds out at once."""
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("a key")

    with pytest.raises(OperatingError, match=r"--gateway-certificate .*wrong\.pem"):
        order_of(parse(tmp_path, "K1", "--gateway-certificate", str(wrong)))


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_gateways_are_found_by_their_pods(tmp_path: Path, scheme: str) -> None:
    """They are asked over TLS where a certificate says that they serve it."""

    class Pods:
        async def list(self, kind: object, *, cached: bool, seconds: float) -> Listing:
            meta = {"name": "gateway-0", "namespace": "sternpost"}
            return Listing(1, ({"metadata": meta, "status": {"podIP": "10.0.0.7"}},))

    files = ["--gateway-certificate", str(Authority(tmp_path).path)] if scheme == "https" else []
    order = order_of(parse(tmp_path, "K1", *files))

    assert scheme == order.scheme
    assert [f"{scheme}://10.0.0.7:8080"] == await gateway_urls(
        cast(KubernetesApi, Pods()), None, order.scheme
    )
