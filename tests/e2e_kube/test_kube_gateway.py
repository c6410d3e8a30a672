"""Gateways with a real API server: what is applied counts, and what fails takes nothing away."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import helm_python as helm
import httpx
import pytest
import yaml

from sternpost_running.box import Box, running_box
from sternpost_running.gateway import GatewayProcess, running_gateways
from sternpost_running.kubernetes import Cluster, wait_for

pytestmark = pytest.mark.kube

CHART = Path(__file__).parents[2] / "charts" / "sternpost"
ARRIVAL_SECONDS_MAX = 3.0
"""Within which a change must have arrived; the goal is one second, and this machine is shared."""

GHOST_SECONDS_MAX = 30.0
"""For so long a pod that is gone may be known after an outage."""

DEAD_WATCH_SECONDS_MAX = 8.0
"""Within which a change must have arrived over a dead watch; the goal is seven seconds."""


class Engine(BaseHTTPRequestHandler):
    """Answers as an engine without the plugin."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer health checks and the list of models."""
        if self.path == "/sternpost/v1/info":
            self._answer(404, {"detail": "Not Found"})
        else:
            self._answer(200, {"data": []})

    def do_POST(self) -> None:
        """Answer a chat."""
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(200, {"choices": [{"message": {"role": "assistant", "content": "ahoy"}}]})

    def log_message(self, *words: object) -> None:
        """Say nothing."""

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def engine() -> Iterator[int]:
    """Run an engine for the length of a block; yields its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


@pytest.fixture(scope="module", autouse=True)
def role(cluster: Cluster) -> None:
    """Let gateways do exactly what the chart's role allows."""
    rendered = helm.Chart.load(CHART).render({}, name="sp", namespace="serving")
    texts = [text for path, text in rendered.items() if path.endswith(".yaml")]
    objects = [item for text in texts for item in yaml.safe_load_all(text) if item]
    rules = [
        rule
        for item in objects
        if item["kind"] == "ClusterRole" and item["metadata"]["name"].endswith("gateway")
        for rule in item["rules"]
    ]
    cluster.grant("gateway", rules)


@pytest.fixture(scope="module")
def box(cluster: Cluster) -> Iterator[Box]:
    """Put a box between the gateways and the API server."""
    with running_box(cluster.url) as running:
        yield running


@pytest.fixture(scope="module")
def gateways(
    cluster: Cluster, box: Box, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[GatewayProcess]]:
    """Run two gateways behind the box, for all tests: each test has a namespace of its own."""
    folder = tmp_path_factory.mktemp("gateways")
    config = yaml.safe_load(cluster.kubeconfig("gateway").read_text())
    config["clusters"][0]["cluster"]["server"] = box.url
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    with running_gateways(folder, 2, "--kubernetes", "--kubeconfig", str(kubeconfig)) as running:
        yield running


def policy(namespace: str, name: str = "support", **spec: Any) -> dict[str, Any]:
    """Return a CachePolicy for the model that is named after its namespace."""
    return {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CachePolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"match": {"models": [namespace]}, "poolRef": {"name": "tiny"}, **spec},
    }


def switch(name: str, level: str, namespace: str) -> dict[str, Any]:
    """Return a CacheKillSwitch for one namespace."""
    return {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CacheKillSwitch",
        "metadata": {"name": name},
        "spec": {"level": level, "selector": {"namespaces": [namespace]}, "reason": "drill"},
    }


def has_heard(gateway: GatewayProcess, since: float) -> bool:
    """Say whether a gateway has heard of all collections since a moment, and has no complaint."""
    seconds = time.monotonic() - since
    details = gateway.details()
    age: float = details.get("config_age_seconds", seconds)
    return age < seconds and not any("API server" in str(fault) for fault in details.get("faults", ()))


def everywhere(gateways: list[GatewayProcess], level: str | None, name: str) -> bool:
    """Say whether a level counts for a policy at all gateways."""
    return all(gateway.level(name) == level for gateway in gateways)


def test_what_kubectl_applies_counts_at_every_gateway(
    cluster: Cluster, namespace: str, gateways: list[GatewayProcess]
) -> None:
    """A policy that is applied, killed, cleared and deleted is so at all gateways at once."""
    full = f"{namespace}/support"
    for level in ("None", "NoSuffixReads", "None"):
        cluster.apply(policy(namespace, killLevel=level))
        wait_for(partial(everywhere, gateways, level, full), level, ARRIVAL_SECONDS_MAX)
    cluster.kubectl("delete", "-n", namespace, "cachepolicy", "support")
    wait_for(lambda: everywhere(gateways, None, full), "the policy is gone", ARRIVAL_SECONDS_MAX)


def test_a_kill_switch_counts_for_whom_it_selects(
    cluster: Cluster, namespace: str, gateways: list[GatewayProcess]
) -> None:
    """It is cluster-scoped, selects by namespace, and ends when it is deleted."""
    full = f"{namespace}/support"
    cluster.apply(policy(namespace))
    wait_for(lambda: everywhere(gateways, "None", full), "the policy is live", ARRIVAL_SECONDS_MAX)
    cluster.apply(switch(namespace, "NewEpoch", namespace))
    wait_for(lambda: everywhere(gateways, "NewEpoch", full), "killed", ARRIVAL_SECONDS_MAX)
    cluster.kubectl("delete", "cachekillswitch", namespace)
    wait_for(lambda: everywhere(gateways, "None", full), "cleared", ARRIVAL_SECONDS_MAX)


def test_a_bad_object_changes_nothing_and_is_told(
    cluster: Cluster, namespace: str, gateways: list[GatewayProcess]
) -> None:
    """What the schema cannot see, the gateway refuses by path; the last good form serves on."""
    full = f"{namespace}/support"
    cluster.apply(policy(namespace, killLevel="NoSuffixReads"))
    wait_for(lambda: everywhere(gateways, "NoSuffixReads", full), "live", ARRIVAL_SECONDS_MAX)
    bad = {"volatile": [{"name": "ticket", "pattern": "(", "action": "Relocate"}]}
    cluster.apply(policy(namespace, prompt=bad, killLevel="None"))

    def faults() -> list[str]:
        return [fault["path"] for gateway in gateways for fault in gateway.details().get("faults", ())]

    wait_for(lambda: len(faults()) == 2, "the fault is told", ARRIVAL_SECONDS_MAX)
    assert {f"CachePolicy {full}: spec.prompt.volatile[0].pattern"} == set(faults())
    assert everywhere(gateways, "NoSuffixReads", full)


def test_without_the_api_server_all_goes_on_also_after_a_sudden_restart(
    cluster: Cluster, namespace: str, gateways: list[GatewayProcess], box: Box
) -> None:
    """Policies and a kill level survive an outage and a SIGKILL within it; afterwards news arrive again."""
    full = f"{namespace}/support"
    cluster.apply(policy(namespace, killLevel="NoSuffixReads"))
    wait_for(lambda: everywhere(gateways, "NoSuffixReads", full), "killed", ARRIVAL_SECONDS_MAX)
    time.sleep(1.5)  # The snapshot on disk follows within a second.
    box.close()
    gateways[0].restart()
    assert everywhere(gateways, "NoSuffixReads", full)
    wait_for(
        lambda: all("API server" in str(gateway.details().get("faults")) for gateway in gateways),
        "the outage is told",
    )
    cluster.apply(policy(namespace, killLevel="None"))
    box.reopen()
    wait_for(lambda: everywhere(gateways, "None", full), "news arrive again", 20.0)


def test_a_watch_that_died_silently_delays_a_kill_by_a_poll(
    cluster: Cluster, namespace: str, gateways: list[GatewayProcess], box: Box
) -> None:
    """Packets are dropped, the connection stays open: the poll brings the level."""
    full = f"{namespace}/support"
    cluster.apply(policy(namespace))
    wait_for(lambda: everywhere(gateways, "None", full), "the policy is live", ARRIVAL_SECONDS_MAX)
    box.silence()
    cluster.apply(policy(namespace, killLevel="NoSuffixReads"))
    wait_for(lambda: everywhere(gateways, "NoSuffixReads", full), "killed", DEAD_WATCH_SECONDS_MAX)
    box.close()
    box.reopen()
    reopened = time.monotonic()
    wait_for(lambda: all(has_heard(gateway, reopened) for gateway in gateways), "all is heard again", 20.0)
    cluster.apply(policy(namespace, killLevel="None"))
    wait_for(lambda: everywhere(gateways, "None", full), "news arrive again", ARRIVAL_SECONDS_MAX)


def test_a_deletion_in_an_outage_is_not_missed(
    cluster: Cluster, namespace: str, gateways: list[GatewayProcess], box: Box
) -> None:
    """No ghost stays behind when the watch comes back."""
    full = f"{namespace}/support"
    cluster.apply(policy(namespace))
    wait_for(lambda: everywhere(gateways, "None", full), "the policy is live", ARRIVAL_SECONDS_MAX)
    box.close()
    cluster.kubectl("delete", "-n", namespace, "cachepolicy", "support")
    box.reopen()
    wait_for(lambda: everywhere(gateways, None, full), "the policy is gone", 20.0)


def test_the_command_kills_through_the_api_server_and_straight_where_it_is_away(
    cluster: Cluster, namespace: str, gateways: list[GatewayProcess], box: Box, tmp_path: Path
) -> None:
    """It says what the API server and each gateway answered."""
    full = f"{namespace}/support"
    cluster.apply(policy(namespace))
    wait_for(lambda: everywhere(gateways, "None", full), "the policy is live", ARRIVAL_SECONDS_MAX)

    def kill(level: str, kubeconfig: Path) -> subprocess.CompletedProcess[str]:
        urls = [f"--gateway={gateway.url}" for gateway in gateways]
        flags = ["--kubernetes", f"--kubeconfig={kubeconfig}", f"--token-file={gateways[0].token_file}"]
        program = str(Path(sys.executable).parent / "sternpost")
        command = [program, "kill", level, f"--policy={full}", *urls, *flags]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    through = kill("NoSuffixReads", cluster.kubeconfig())
    assert (0, True) == (through.returncode, "says NoSuffixReads" in through.stdout), through.stdout
    assert everywhere(gateways, "NoSuffixReads", full)
    cleared = kill("None", cluster.kubeconfig())
    assert "removed" in cleared.stdout
    wait_for(lambda: everywhere(gateways, "None", full), "cleared", ARRIVAL_SECONDS_MAX)
    nowhere = tmp_path / "nowhere"
    nowhere.write_text(cluster.kubeconfig().read_text().replace(cluster.url, "https://127.0.0.1:9"))
    straight = kill("NewEpoch", nowhere)
    assert (0, True) == (straight.returncode, "cannot be asked" in straight.stdout), straight.stdout
    assert everywhere(gateways, "NewEpoch", full)


def test_the_pods_of_a_pool_are_its_engines(
    cluster: Cluster, namespace: str, gateways: list[GatewayProcess]
) -> None:
    """A pod that becomes ready gets requests, and one that is deleted gets none."""
    with engine() as port:
        serve_by_a_pod(cluster, namespace, port)
        wait_for(lambda: all(gateway.details().get("ready") for gateway in gateways), "the engine is ready")
        answers = [chat(gateway, namespace) for gateway in gateways]
        delete_the_pod(cluster, namespace)
        wait_for(lambda: have_no_engine(gateways), "the engine is gone", ARRIVAL_SECONDS_MAX)

    assert [200, 200] == [answer.status_code for answer in answers]
    assert {f"{namespace}/support"} == {answer.headers["x-sternpost-policy"] for answer in answers}
    assert [503, 503] == [chat(gateway, namespace).status_code for gateway in gateways]


def test_a_pod_that_goes_in_an_outage_is_no_ghost(
    cluster: Cluster, namespace: str, gateways: list[GatewayProcess], box: Box
) -> None:
    """The watch never says that it went; the list afterwards does not have it."""
    with engine() as port:
        serve_by_a_pod(cluster, namespace, port)
        wait_for(lambda: all(gateway.details().get("ready") for gateway in gateways), "the engine is ready")
        box.close()
        delete_the_pod(cluster, namespace)
        assert not have_no_engine(gateways), "in the outage the pods that are known are used on"
        box.reopen()
        wait_for(lambda: have_no_engine(gateways), "no ghost is left", GHOST_SECONDS_MAX)


def serve_by_a_pod(cluster: Cluster, namespace: str, port: int) -> None:
    """Apply a pool, its policy, and a ready pod at this machine's own address."""
    pool = {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "EnginePool",
        "metadata": {"name": "tiny", "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": "vllm"}}, "port": port},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "vllm-0", "namespace": namespace, "labels": {"app": "vllm"}},
        "spec": {"nodeName": "by-hand", "containers": [{"name": "vllm", "image": "vllm"}]},
    }
    status = {"podIP": "127.0.0.1", "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    cluster.apply(pool, policy(namespace), pod)
    path = f"/api/v1/namespaces/{namespace}/pods/vllm-0/status"
    merge = {"content-type": "application/merge-patch+json"}
    patched = cluster.api.patch(path, json={"status": status}, headers=merge)
    assert patched.is_success, patched.text


def delete_the_pod(cluster: Cluster, namespace: str) -> None:
    """Delete the pod at once."""
    cluster.kubectl("delete", "-n", namespace, "pod", "vllm-0", "--force", "--grace-period=0")


def have_no_engine(gateways: list[GatewayProcess]) -> bool:
    """Say whether no gateway has any engine."""
    return all(gateway.details().get("engines") == [] for gateway in gateways)


def chat(gateway: GatewayProcess, model: str) -> httpx.Response:
    """Send a chat."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    return gateway.client.post("/v1/chat/completions", json=body)
