"""The gateway's own paths, and what is refused there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sternpost_fakes.engine import running_engine
from sternpost_fakes.gateway import running_gateway


@pytest.mark.parametrize(
    ("method", "target", "status", "code", "allowed"),
    [
        pytest.param("PUT", "/sternpost/v1/kill", 405, "method_not_allowed", "GET, HEAD, POST", id="kill"),
        pytest.param("DELETE", "/healthz", 405, "method_not_allowed", "GET, HEAD", id="health"),
        pytest.param("GET", "/sternpost/v1/warm", 405, "method_not_allowed", "POST", id="warm"),
        pytest.param("GET", "/nothing", 404, "not_found", None, id="no-path"),
        pytest.param("GET", "/healthz/", 404, "not_found", None, id="another-path"),
        pytest.param("OPTIONS", "*", 404, "not_found", None, id="no-path-at-all"),
    ],
)
async def test_what_is_not_taken_is_refused_as_everything_is(
    tmp_path: Path, method: str, target: str, status: int, code: str, allowed: str | None
) -> None:
    """Clients read one shape of errors, and learn what would have been taken."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{method} {target} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()

    lines = head.decode().lower().split("\r\n")
    found = next((line.removeprefix("allow: ") for line in lines if line.startswith("allow: ")), None)
    assert f" {status} " in lines[0]
    assert "content-type: application/json" in lines
    assert f'"code": "{code}"'.encode() in body
    assert (allowed.lower().split(", ") if allowed else []) == sorted(found.split(", ") if found else [])
