"""An operator as a process of its own, as it runs in a cluster, and what tests ask of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from sternpost_running.kubernetes import Cluster, die_with_parent, wait_for
from sternpost_running.ports import free_ports

STOP_SECONDS_MAX: Final = 20.0


@dataclass(frozen=True, slots=True)
class RunningOperator:
    """A running operator: its process, its log and its ports."""

    process: subprocess.Popen[bytes]
    log: Path
    health_port: int
    metrics_port: int

    def is_ready(self) -> bool:
        """Tell whether it has seen everything, and works."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.health_port}/readyz", trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a metric that have these labels."""
        page = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", trust_env=False).text
        samples = [one for family in text_string_to_metric_families(page) for one in family.samples]
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())

    def resident_bytes(self) -> int:
        """Return the memory that it takes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        """End it without a warning."""
        self.process.kill()
        self.process.wait(STOP_SECONDS_MAX)

    def text(self) -> str:
        """Return its log."""
        return self.log.read_text()


@contextlib.contextmanager
def running_operator(
    cluster: Cluster,
    *flags: str,
    name: str = "operator",
    user: str = "admin",
    kubeconfig: Path | None = None,
) -> Iterator[RunningOperator]:
    """Run an operator as a user, or by a kubeconfig of the test's own, and end it by SIGTERM."""
    health, metrics = free_ports(2)
    log = cluster.folder / f"{name}.log"
    command = [
        sys.executable,
        "-m",
        "sternpost_core",
        "operator",
        "--kubeconfig",
        str(kubeconfig or cluster.kubeconfig(user)),
    ]
    command += ["--health-port", str(health), "--metrics-port", str(metrics), *flags]
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, preexec_fn=die_with_parent)
    running = RunningOperator(process, log, health, metrics)
    try:
        wait_for(running.is_ready, "the operator is ready")
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS_MAX)
        process.kill()
        process.wait(STOP_SECONDS_MAX)
