"""Prometheus' own programs: promtool, and a server that scrapes what a test runs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from sternpost_running.kubernetes import die_with_parent, wait_for
from sternpost_running.ports import free_ports

INSTALL: Final = Path(__file__).parents[1] / "prometheus" / "install.sh"
PROMTOOL_SECONDS_MAX: Final = 100.0
ANSWER_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 20.0

INTERVAL: Final = "1s"
"""Between two scrapes, and between two evaluations of the rules."""


@lru_cache(maxsize=1)
def prometheus_folder() -> Path:
    """Return the folder of prometheus and promtool."""
    done = subprocess.run([INSTALL], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool; what it says is in the result, and so is its status."""
    command = [prometheus_folder() / "promtool", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROMTOOL_SECONDS_MAX, check=False)


@dataclass(frozen=True, slots=True)
class Target:
    """What is scraped: `address` as HOST:PORT, and the labels that a monitor would add."""

    address: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server that runs."""

    client: httpx.Client

    def query(self, text: str) -> list[dict[str, Any]]:
        """
        Return the vector that a query gives now.

        Raises:
            AssertionError: when Prometheus refuses the query.
        """
        answer = self.client.get("/api/v1/query", params={"query": text}).json()
        assert answer["status"] == "success", f"{text}: {answer}"
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def number(self, text: str) -> float | None:
        """Return the only value that a query gives now, or None."""
        found = self.query(text)
        return float(found[0]["value"][1]) if len(found) == 1 else None

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules with their state."""
        groups = self.client.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@contextmanager
def running_prometheus(
    folder: Path, groups: list[dict[str, Any]], targets: list[Target]
) -> Iterator[Prometheus]:
    """Run a server with these rules for the length of a block; its files are in `folder`."""
    (port,) = free_ports(1)
    config = {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {
                "job_name": "sternpost",
                "static_configs": [{"targets": [one.address], "labels": dict(one.labels)} for one in targets],
            }
        ],
    }
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    command = [
        str(prometheus_folder() / "prometheus"),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=ANSWER_SECONDS_MAX)
    try:
        with client:
            wait_for(lambda: _is_ready(client), "Prometheus is ready")
            yield Prometheus(client)
    finally:
        process.terminate()
        process.wait(END_SECONDS_MAX)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False
