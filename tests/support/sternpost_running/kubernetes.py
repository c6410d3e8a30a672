"""
A real control plane on loopback: etcd, kube-apiserver and kube-controller-manager, without nodes.

`tests/support/apiserver/build.sh` makes the binaries. What a kubelet would do, `kubelet.FakeKubelet` does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from sternpost_running.ports import free_ports

BINARIES: Final = ("etcd", "kube-apiserver", "kube-controller-manager")
BUILD: Final = Path(__file__).parents[1] / "apiserver" / "build.sh"
ADMIN: Final = "admin"
USERS: Final = ("operator", "gateway", "stranger")
"""Users without any right; a test binds a role to one, and acts as it."""

CONTROLLERS: Final = ("deployment", "disruption", "endpoint", "garbagecollector", "namespace", "replicaset")
READY_SECONDS_MAX: Final = 60.0
SERVER_SECONDS_MAX: Final = 180.0
"""For an API server to start: after an outage all its clients want it at once, on the same machine."""

END_SECONDS_MAX: Final = 15.0
POLL_SECONDS: Final = 0.1
CEL_MINOR: Final = 25
"""The minor version from which CEL rules count without a feature gate."""

PR_SET_PDEATHSIG: Final = 1


@dataclass(slots=True)
class ServerProcess:
    """A program that can be started again, with the same flags; its log is in `folder`."""

    program: Path
    flags: Sequence[str]
    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start it."""
        with (self.folder / f"{self.program.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.program), *self.flags],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    def end(self) -> None:
        """End it, by force where it must be."""
        self.process.terminate()
        try:
            self.process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it without a warning."""
        self.process.kill()
        self.process.wait(END_SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running control plane; `folder` holds its logs and a kubeconfig for each user."""

    url: str
    folder: Path
    minor: int
    api: httpx.Client = field(repr=False)
    """Speaks as the administrator."""
    server: ServerProcess = field(repr=False)
    """The API server, which a test may freeze and take away."""

    @property
    def has_cel(self) -> bool:
        """Whether CEL rules count."""
        return self.minor >= CEL_MINOR

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """Return a user's kubeconfig."""
        return self.folder / f"{user}.kubeconfig"

    def kubectl(
        self, *words: str, stdin: str | None = None, user: str = ADMIN
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as a user, whatever comes of it."""
        command = [str(Path(sys.executable).parent / "kubectl"), "--kubeconfig", str(self.kubeconfig(user))]
        environment = {**os.environ, "KUBECACHEDIR": str(self.folder / "kubectl-cache")}
        return subprocess.run(
            [*command, *words], input=stdin, env=environment, capture_output=True, text=True, check=False
        )

    def apply(self, *objects: Mapping[str, Any] | Path) -> None:
        """Apply objects or files of them, by one kubectl for all; a refusal fails the test."""
        texts = [value.read_text() if isinstance(value, Path) else json.dumps(value) for value in objects]
        # The first line tells kubectl that documents of YAML follow, which JSON is, too.
        documents = "".join(f"---\n{text}\n" for text in texts)
        # Servers before CEL know neither its rules nor strict validation of fields.
        validate = "strict" if self.has_cel else "false"
        done = self.kubectl("apply", f"--validate={validate}", "-f", "-", stdin=documents)
        assert done.returncode == 0, done.stderr

    def apply_crds(self, folder: Path) -> None:
        """Apply every CRD of a folder and wait until each is served."""
        files = sorted(folder.glob("*.yaml"))
        self.apply(*files)
        names = [yaml.safe_load(file.read_text())["metadata"]["name"] for file in files]
        self.wait(lambda: all(map(self._is_established, names)), f"established: {', '.join(names)}")

    def _is_established(self, name: str) -> bool:
        crd = self.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        conditions = crd.get("status", {}).get("conditions", [])
        return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

    def get(self, path: str) -> dict[str, Any]:
        """Get an object by its path; an empty one where there is none."""
        response = self.api.get(path)
        if response.status_code == httpx.codes.NOT_FOUND:
            return {}
        assert response.is_success, response.text
        found: dict[str, Any] = response.json()
        return found

    def namespace(self, name: str) -> None:
        """Make a namespace, if there is none of the name; without kubectl, which each test would wait for."""
        response = self.api.post("/api/v1/namespaces", json={"metadata": {"name": name}})
        assert response.is_success or response.status_code == httpx.codes.CONFLICT, response.text

    def grant(self, user: str, rules: Sequence[Mapping[str, Any]]) -> None:
        """Give a user exactly the rights of a ClusterRole with these rules."""
        group = "rbac.authorization.k8s.io"
        named = {"metadata": {"name": user}}
        subject = {"kind": "User", "name": user, "apiGroup": group}
        role = {"kind": "ClusterRole", "name": user, "apiGroup": group}
        self.apply(
            {"apiVersion": f"{group}/v1", "kind": "ClusterRole", **named, "rules": list(rules)},
            {
                "apiVersion": f"{group}/v1",
                "kind": "ClusterRoleBinding",
                **named,
                "subjects": [subject],
                "roleRef": role,
            },
        )

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Have the API server keep all its connections, and answer nothing, for the length of a block."""
        self.server.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.server.process.send_signal(signal.SIGCONT)
            self.wait(lambda: _is_ready(self.api), "the API server is ready again", SERVER_SECONDS_MAX)

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Have no API server for the length of a block; it ends without a warning, and keeps all objects."""
        self.server.kill()
        try:
            yield
        finally:
            self.server.start()
            self.wait(lambda: _is_ready(self.api), "the API server is ready again", SERVER_SECONDS_MAX)

    def wait(self, holds: Callable[[], object], what: str, seconds_max: float = READY_SECONDS_MAX) -> None:
        """Wait until something holds, which is asked for again and again."""
        wait_for(holds, what, seconds_max)


def wait_for(holds: Callable[[], object], what: str, seconds_max: float = READY_SECONDS_MAX) -> None:
    """
    Wait until something holds.

    Raises:
        AssertionError: when it does not within `seconds_max`.
    """
    end = time.monotonic() + seconds_max
    while not holds():
        assert time.monotonic() < end, f"not within {seconds_max:g} s: {what}"
        time.sleep(POLL_SECONDS)


def find_binaries(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of the binaries where the build script would find it, or None."""
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(environment.get("KUBEBUILDER_ASSETS") or cache / "sternpost" / "kube-1.20.2")
    return folder if all(os.access(folder / name, os.X_OK) for name in BINARIES) else None


@contextlib.contextmanager
def running_cluster(binaries: Path, folder: Path) -> Iterator[Cluster]:
    """Run a control plane, its files in `folder`, and end it."""
    etcd, peer, secure, manager = free_ports(4)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_running(binaries / "etcd", _etcd_flags(folder, etcd, peer), folder))
        _write_credentials(folder, secure)
        minor = _minor(binaries)
        server = stack.enter_context(
            _running(binaries / "kube-apiserver", _api_flags(folder, etcd, secure), folder)
        )
        url = f"https://127.0.0.1:{secure}"
        client = httpx.Client(base_url=url, headers=_bearer(ADMIN), verify=False, trust_env=False, timeout=30)
        stack.enter_context(client)
        wait_for(lambda: _is_ready(client), "the API server is ready", SERVER_SECONDS_MAX)
        flags = _manager_flags(folder, manager, minor)
        stack.enter_context(_running(binaries / "kube-controller-manager", flags, folder))
        yield Cluster(url, folder, minor, client, server)


@contextlib.contextmanager
def _running(program: Path, flags: Sequence[str], folder: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(program, flags, folder)
    try:
        yield server
    finally:
        server.end()


def program_environment() -> dict[str, str]:
    """Return the environment of programs that are modules beside this one, wherever they are started."""
    here = str(Path(__file__).parents[1])
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([here, path] if path else [here])}


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _etcd_flags(folder: Path, port: int, peer: int) -> list[str]:
    client_url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    return [
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        "--unsafe-no-fsync",
        "--log-level=error",
    ]


def _api_flags(folder: Path, etcd: int, port: int) -> list[str]:
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        f"--cert-dir={folder / 'certs'}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={folder / 'sa.key'}",
        f"--service-account-key-file={folder / 'sa.key'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.96.0.0/16",
        # Pods need no service account here, since no kubelet would give them its token.
        "--disable-admission-plugins=ServiceAccount",
    ]


def _manager_flags(folder: Path, port: int, minor: int) -> list[str]:
    flags = [
        f"--kubeconfig={folder / f'{ADMIN}.kubeconfig'}",
        f"--controllers={','.join([*CONTROLLERS, 'statefulset'])}",
        f"--secure-port={port}",
        f"--cert-dir={folder / 'certs'}",
        "--bind-address=127.0.0.1",
        "--use-service-account-credentials=false",
        "--leader-elect=false",
    ]
    # The insecure port went away with 1.24; before, its default would keep two clusters from running.
    return [*flags, "--port=0"] if minor < 24 else flags


def _write_credentials(folder: Path, port: int) -> None:
    key = ["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"]
    subprocess.run(key, check=True, capture_output=True)
    rows = [f'{_token(ADMIN)},{ADMIN},{ADMIN},"system:masters"']
    rows += [f"{_token(user)},{user},{user}" for user in USERS]
    (folder / "tokens.csv").write_text("\n".join(rows) + "\n")
    for user in (ADMIN, *USERS):
        (folder / f"{user}.kubeconfig").write_text(json.dumps(_kubeconfig(user, port)))


def _kubeconfig(user: str, port: int) -> dict[str, Any]:
    server = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": user, "user": {"token": _token(user)}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        "current-context": "test",
    }


def _token(user: str) -> str:
    return f"{user}-token"


def _bearer(user: str) -> dict[str, str]:
    return {"authorization": f"Bearer {_token(user)}"}


def _minor(binaries: Path) -> int:
    shown = subprocess.run(
        [binaries / "kube-apiserver", "--version"], check=True, capture_output=True, text=True
    )
    # For example "Kubernetes v1.31.0"; a build without version flags says v0.0.0, and is the built 1.20.
    major, minor = shown.stdout.split("v", 1)[1].split(".")[:2]
    return int(minor) if major == "1" else 20


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").is_success
    except httpx.TransportError:
        return False
