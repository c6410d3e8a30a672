"""What a kubelet would do for the pods of a test: bind them, run their programs, say if they are ready."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from sternpost_running.kubernetes import Cluster, die_with_parent, program_environment

NODE: Final = "fake-node"
POLL_SECONDS: Final = 0.2
END_SECONDS_MAX: Final = 10.0
PODS_MAX: Final = 250
NETWORKS_MAX: Final = 250
"""Each pod has an address of 127.1.N.0/24; N is this process's, so that two runs of tests do not meet."""

Pod = Mapping[str, Any]
Programs = Callable[[Pod, str], Sequence[str] | None]
"""Given a pod and its address, return the command to run for it; None for a pod that is ready at once."""


@dataclass(slots=True)
class FakePod:
    """
    A pod that has been started; `process` is None where nothing runs for it.

    `start` runs the program again, `words` is its command.
    """

    address: str
    process: subprocess.Popen[bytes] | None
    start: Callable[[], subprocess.Popen[bytes]] | None = None
    words: Sequence[str] = ()
    is_ready: bool | None = None
    ending_since: float | None = None


@dataclass(slots=True)
class FakeKubelet:
    """Plays the kubelet of one node for every pod of the cluster, in a thread."""

    cluster: Cluster
    programs: Programs
    by_namespace: dict[str, Programs] = field(default_factory=dict)
    """In these namespaces pods run other programs."""
    pods: dict[str, FakePod] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    _addresses: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look at all pods again and again until told to stop."""
        with self._client() as api, self._client(timeout=1.0) as probe:
            while not self._stop.wait(POLL_SECONDS):
                try:
                    self._look(api, probe)
                except (httpx.HTTPError, OSError) as error:
                    self.failures.append(repr(error))

    def stop(self) -> None:
        """Stop looking."""
        self._stop.set()

    def kill(self, uid: str) -> None:
        """End a pod's program without a warning."""
        process = self.pods[uid].process
        assert process is not None, "the pod has a program"
        process.kill()
        process.wait(END_SECONDS_MAX)

    def restart(self, uid: str) -> None:
        """End a pod's program without a warning and run it again, which a kubelet asks nobody for."""
        self.kill(uid)
        pod = self.pods[uid]
        assert pod.start is not None, "the pod has a program"
        pod.process = pod.start()

    def _client(self, timeout: float = 10.0) -> httpx.Client:
        headers = self.cluster.api.headers
        return httpx.Client(
            base_url=self.cluster.url, headers=headers, verify=False, trust_env=False, timeout=timeout
        )

    def _look(self, api: httpx.Client, probe: httpx.Client) -> None:
        for pod in api.get("/api/v1/pods").raise_for_status().json()["items"]:
            uid = pod["metadata"]["uid"]
            if "deletionTimestamp" in pod["metadata"]:
                self._remove(api, pod)
            elif not pod["spec"].get("nodeName"):
                self._bind(api, pod)
            elif uid not in self.pods:
                self.pods[uid] = self._start(pod)
            else:
                self._report(api, probe, pod, self.pods[uid])

    def _bind(self, api: httpx.Client, pod: Pod) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod["metadata"]["name"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
        }
        api.post(f"{_path(pod)}/binding", json=binding)

    def _start(self, pod: Pod) -> FakePod:
        self._addresses = self._addresses % PODS_MAX + 1
        address = f"127.1.{os.getpid() % NETWORKS_MAX}.{self._addresses}"
        programs = self.by_namespace.get(pod["metadata"]["namespace"], self.programs)
        command = programs(pod, address)
        if command is None:
            return FakePod(address, None)
        container = pod["spec"]["containers"][0]
        variables = {item["name"]: item["value"] for item in container.get("env", []) if "value" in item}
        log = self.cluster.folder / f"pod-{pod['metadata']['name']}.log"
        start = partial(_start_program, command, {**program_environment(), **variables}, log)
        return FakePod(address, start(), start, command)

    def _report(self, api: httpx.Client, probe: httpx.Client, pod: Pod, fake: FakePod) -> None:
        if _has_ended(pod, fake):
            self._report_end(api, pod, fake)
            return
        is_ready = fake.process is None or (fake.process.poll() is None and _answers(probe, pod, fake))
        if is_ready != fake.is_ready:
            status = pod_status(pod, fake.address, is_ready)
            merge = {"content-type": "application/merge-patch+json"}
            if api.patch(f"{_path(pod)}/status", json={"status": status}, headers=merge).is_success:
                fake.is_ready = is_ready

    def _report_end(self, api: httpx.Client, pod: Pod, fake: FakePod) -> None:
        assert fake.process is not None, "a pod that has ended had a program"
        phase = "Failed" if fake.process.returncode else "Succeeded"
        if pod["status"].get("phase") != phase:
            status = {**pod_status(pod, fake.address, is_ready=False), "phase": phase}
            merge = {"content-type": "application/merge-patch+json"}
            api.patch(f"{_path(pod)}/status", json={"status": status}, headers=merge)

    def _remove(self, api: httpx.Client, pod: Pod) -> None:
        """Tell a pod's program to end; once it has, or has had its time, the pod goes. No other pod waits."""
        uid = pod["metadata"]["uid"]
        fake = self.pods.get(uid)
        if fake is not None and fake.process is not None:
            if fake.ending_since is None:
                fake.ending_since = time.monotonic()
                fake.process.terminate()
            is_late = time.monotonic() - fake.ending_since > END_SECONDS_MAX
            if fake.process.poll() is None and not is_late:
                return
            end_program(fake.process)
        self.pods.pop(uid, None)
        api.request("DELETE", _path(pod), json={"gracePeriodSeconds": 0})


@contextmanager
def running_kubelet(
    cluster: Cluster, programs: Programs = lambda pod, address: None
) -> Iterator[FakeKubelet]:
    """Run a kubelet for the length of a block, and end every program that it started."""
    kubelet = FakeKubelet(cluster, programs)
    thread = threading.Thread(target=kubelet.run, name="kubelet", daemon=True)
    thread.start()
    try:
        yield kubelet
    finally:
        kubelet.stop()
        thread.join(END_SECONDS_MAX)
        # Whatever still runs has nobody left who could see how it ends.
        for fake in kubelet.pods.values():
            if fake.process is not None:
                end_program(fake.process)


def pod_status(pod: Pod, address: str, is_ready: bool) -> dict[str, Any]:
    """Return the status of a pod that runs."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    word = "True" if is_ready else "False"
    kinds = {"Initialized": "True", "PodScheduled": "True", "ContainersReady": word, "Ready": word}
    return {
        "phase": "Running",
        "podIP": address,
        "hostIP": "127.0.0.1",
        "podIPs": [{"ip": address}],
        "startTime": pod["metadata"]["creationTimestamp"],
        "conditions": [
            {"type": kind, "status": status, "lastTransitionTime": now} for kind, status in kinds.items()
        ],
        "containerStatuses": [
            _container_status(container, is_ready) for container in pod["spec"]["containers"]
        ],
    }


def _container_status(container: Mapping[str, Any], is_ready: bool) -> dict[str, Any]:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": is_ready,
        "restartCount": 0,
        "state": {"running": {}},
    }


def _start_program(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            list(command),
            env=dict(environment),
            stdout=file,
            stderr=file,
            preexec_fn=die_with_parent,
            start_new_session=True,
        )


def end_program(process: subprocess.Popen[bytes]) -> None:
    """End a program by force, and whatever processes it has left behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(END_SECONDS_MAX)


def _answers(probe: httpx.Client, pod: Pod, fake: FakePod) -> bool:
    """Do what the first container's readiness probe asks for; without one a running pod is ready."""
    container = pod["spec"]["containers"][0]
    request = container.get("readinessProbe", {}).get("httpGet")
    if request is None:
        return True
    port = _number_of(request["port"], container, fake.words)
    try:
        return probe.get(f"http://{fake.address}:{port}{request['path']}").is_success
    except httpx.HTTPError:
        return False


def _number_of(port: int | str, container: Mapping[str, Any], words: Sequence[str]) -> int:
    """Return a port's number: what the flag of the port's name tells the program, else the container's."""
    if isinstance(port, int):
        return port
    flag = f"--{port}-port="
    told = next((word.removeprefix(flag) for word in words if word.startswith(flag)), None)
    if told is not None:
        return int(told)
    return next(int(item["containerPort"]) for item in container["ports"] if item.get("name") == port)


def _has_ended(pod: Pod, fake: FakePod) -> bool:
    """Tell whether a pod that runs once has run; others are down, and nobody starts them again."""
    is_once = pod["spec"].get("restartPolicy") == "Never"
    return is_once and fake.process is not None and fake.process.poll() is not None


def _path(pod: Pod) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
