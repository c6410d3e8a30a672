"""A Prometheus that answers every query with the figures that a test has set."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GOOD = {
    "requests": (1000.0, 1000.0),
    "sessions": (100.0, 100.0),
    "error_share": (0.0, 0.0),
    "shed_share": (0.0, 0.0),
    "abort_share": (0.0, 0.0),
    "ttft_p50": (0.2, 0.8),
    "ttft_p95": (0.3, 1.0),
    "reused_share": (0.8, 0.1),
}
"""Canary and control of a canary that is worth it."""


@dataclass(slots=True)
class FakePrometheus:
    """`arms` holds canary and control of each figure, `others` what has no arm; `queries` counts."""

    url: str = ""
    arms: Mapping[str, tuple[float, float]] = field(default_factory=lambda: dict(GOOD))
    others: Mapping[str, float] = field(default_factory=lambda: {"config_age": 1.0})
    queries: int = 0

    def result(self) -> list[dict[str, Any]]:
        """Return the vector that a query is answered with."""
        rows = [
            {"metric": {"figure": prefix + name, "arm": arm}, "value": [0, str(value)]}
            for name, both in self.arms.items()
            for arm, value in zip(("canary", "control"), both, strict=True)
            for prefix in ("", "step_")
        ]
        alone = [
            {"metric": {"figure": name}, "value": [0, str(value)]} for name, value in self.others.items()
        ]
        return [*rows, *alone]


@contextmanager
def running_prometheus() -> Iterator[FakePrometheus]:
    """Serve for the length of a block."""
    fake = FakePrometheus()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            fake.queries += 1
            data = {"resultType": "vector", "result": fake.result()}
            body = json.dumps({"status": "success", "data": data}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
