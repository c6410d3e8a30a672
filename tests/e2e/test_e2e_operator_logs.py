"""An operator's log as JSON, from its first line on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import yaml

from sternpost_running.ports import free_ports

END_SECONDS_MAX: Final = 20.0


def test_lines_are_json_before_there_is_an_api_server(tmp_path: Path) -> None:
    """With a cluster that nobody listens for, which is waited for and said so until it is told to end."""
    ports = free_ports(3)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(_kubeconfig(ports[0])))
    command = [sys.executable, "-m", "sternpost_core", "operator", "--kubeconfig", str(kubeconfig)]
    command += ["--log-format", "json", "--health-port", str(ports[1]), "--metrics-port", str(ports[2])]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = json.loads(process.stderr.readline())
            process.terminate()
            status = process.wait(END_SECONDS_MAX)
        finally:
            process.kill()
            process.wait(END_SECONDS_MAX)

    assert 0 == status
    assert ("WARNING", "sternpost_operator.app") == (line["level"], line["logger"])
    assert line["message"].startswith("waiting for the API server")


def _kubeconfig(port: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
