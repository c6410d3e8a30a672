"""What a kubelet gives the chart's pods: volumes, their service account's token, and their own program."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sternpost_running.kubernetes import Cluster
from sternpost_running.ports import free_ports

TOKEN_SECONDS: Final = 3600
EVERY_ADDRESS: Final = "--host=0.0.0.0"
SERVICE_URL: Final = re.compile(r"http://(?P<name>[^./]+)\.(?P<namespace>[^./]+)\.svc:[0-9]+")
PORT_FLAGS: Final = ("--health-port=", "--metrics-port=")
"""Ports that are opened on all addresses: pods share those of one machine here, so each gets its own."""


@dataclass(frozen=True, slots=True)
class ChartPods:
    """
    Starts a pod's only container as a process, by exactly its own arguments.

    Only what names a path or an address of the pod is translated. It acts as its service account, and may do
    what that may. `folder` holds the volumes.
    """

    cluster: Cluster
    folder: Path

    def program(self, pod: Mapping[str, Any], address: str) -> list[str]:
        """Return the command of a pod of the chart."""
        home = self.folder / pod["metadata"]["uid"]
        container = pod["spec"]["containers"][0]
        paths = {
            mount["mountPath"]: str(self._volume(pod, mount["name"], home))
            for mount in container.get("volumeMounts", ())
        }
        words = [self._resolve(_translate(word, paths, address)) for word in container["args"]]
        program = str(Path(sys.executable).parent / "sternpost")
        return [program, *words, *self._credentials(pod, home)]

    def _resolve(self, word: str) -> str:
        """Put the address of a service's pod in the place of its name, as a cluster's network does."""
        found = SERVICE_URL.search(word)
        if found is None:
            return word
        return word.replace(found[0], ready_addresses(self.cluster, found["namespace"], found["name"])[0])

    def _volume(self, pod: Mapping[str, Any], name: str, home: Path) -> Path:
        volume = next(one for one in pod["spec"]["volumes"] if one["name"] == name)
        folder = home / name
        folder.mkdir(parents=True, exist_ok=True)
        if "secret" in volume:
            self._fill(folder, pod["metadata"]["namespace"], volume["secret"])
        return folder

    def _fill(self, folder: Path, namespace: str, source: Mapping[str, Any]) -> None:
        secret = self.cluster.get(f"/api/v1/namespaces/{namespace}/secrets/{source['secretName']}")
        for item in source["items"]:
            (folder / item["path"]).write_bytes(base64.b64decode(secret["data"][item["key"]]))

    def _credentials(self, pod: Mapping[str, Any], home: Path) -> list[str]:
        account = pod["spec"].get("serviceAccountName")
        if account is None:
            return []
        token = account_token(self.cluster, pod["metadata"]["namespace"], account)
        config = json.loads(self.cluster.kubeconfig().read_text())
        config["users"][0]["user"] = {"token": token}
        home.mkdir(parents=True, exist_ok=True)
        file = home / "kubeconfig"
        file.write_text(json.dumps(config))
        return [f"--kubeconfig={file}"]


def account_token(cluster: Cluster, namespace: str, name: str) -> str:
    """Return a token of a service account, as the server gives it to a kubelet."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_SECONDS},
    }
    response = cluster.api.post(path, json=request)
    assert response.is_success, response.text
    token: str = response.json()["status"]["token"]
    return token


def _translate(word: str, paths: Mapping[str, str], address: str) -> str:
    if word == EVERY_ADDRESS:
        return f"--host={address}"
    flag = next((flag for flag in PORT_FLAGS if word.startswith(flag)), None)
    if flag is not None:
        return f"{flag}{free_ports(1)[0]}"
    name, is_flag, value = word.partition("=")
    mount = next((path for path in paths if is_flag and Path(value).is_relative_to(path)), None)
    return word if mount is None else f"{name}={paths[mount]}{value.removeprefix(mount)}"


def ready_addresses(cluster: Cluster, namespace: str, service: str) -> Sequence[str]:
    """
    Return the base URLs of the pods that a service stands for now.

    The pods are asked, because the server allows no endpoints with addresses of this machine alone.
    """
    selector = cluster.get(f"/api/v1/namespaces/{namespace}/services/{service}")["spec"]["selector"]
    labels = ",".join(f"{key}={value}" for key, value in selector.items())
    pods = cluster.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={quote(labels)}")["items"]
    return [_address(pod) for pod in pods if _is_used(pod)]


def _address(pod: Mapping[str, Any]) -> str:
    port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
    return f"http://{pod['status']['podIP']}:{port}"


def _is_used(pod: Mapping[str, Any]) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]
