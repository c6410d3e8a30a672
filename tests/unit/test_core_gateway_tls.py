"""Gateways that serve TLS are met by the certificate that they serve, and nobody else is believed."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from sternpost_core.errors import OperatingError
from sternpost_core.gateway_tls import GatewayCertificate
from sternpost_fakes.certificates import Authority, Pair
from sternpost_fakes.fake_http import FakeServer, Reply, Seen
from sternpost_operator.gateways import GatewayReport, HttpGatewayProbe, gateway_client

PAGE = b'sternpost_gateway_kill_level{policy=""} 1\nsternpost_gateway_config_age_seconds 1\n'
OBEYS = GatewayReport({"": 1}, 1.0)


async def answer(seen: Seen) -> Reply:
    """Answer as a gateway's page of metrics."""
    return Reply(pieces=(PAGE,))


async def ask(served: Pair, certificate: GatewayCertificate) -> GatewayReport:
    """Ask a gateway that serves a certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(served.cert, served.key)
    server = FakeServer(answer)
    server.tls = context
    await server.start()
    try:
        async with gateway_client(certificate) as client:
            reports = await HttpGatewayProbe(client, certificate).ask({"a": server.url})
    finally:
        await server.stop()
    return reports["a"]


async def test_the_certificate_is_enough(tmp_path: Path) -> None:
    """No name and no authority is asked for, since pods are asked by address."""
    pair = Authority(tmp_path).issue("llm.example")

    assert OBEYS == await ask(pair, GatewayCertificate(pair.cert))


async def test_another_certificate_of_the_same_authority_is_not(tmp_path: Path) -> None:
    """Also where the file has the authority's behind the gateway's own."""
    authority = Authority(tmp_path)
    pair, other = authority.issue("llm.example"), authority.issue("llm.example", "other")
    pair.cert.write_text(pair.cert.read_text() + authority.path.read_text())
    report = await ask(other, GatewayCertificate(pair.cert))

    assert "no answer: ConnectError" == report.fault


async def test_a_renewed_certificate_counts_from_the_next_question_on(tmp_path: Path) -> None:
    """The operator need not be started again; a file that is half written changes nothing."""
    authority = Authority(tmp_path)
    old = authority.issue("llm.example", "old")
    shown = tmp_path / "tls.crt"
    shown.write_bytes(old.cert.read_bytes())
    certificate = GatewayCertificate(shown)
    new = authority.issue("llm.example", "new")
    shown.write_text("-----BEGIN CERTIFICATE-----")
    before = await ask(old, certificate)
    shown.write_bytes(new.cert.read_bytes())

    assert (OBEYS, OBEYS) == (before, await ask(new, certificate))


@pytest.mark.parametrize(
    "content",
    [None, "", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"],
    ids=["missing", "empty", "text", "broken"],
)
def test_what_is_no_certificate_is_told_by_its_flag(tmp_path: Path, content: str | None) -> None:
    """The flag, the file, and what is allowed."""
    file = tmp_path / "tls.crt"
    if content is not None:
        file.write_text(content)

    with pytest.raises(OperatingError, match=r"--gateway-certificate .*tls\.crt: .*; allowed: a certificate"):
        GatewayCertificate(file)
