"""The flags that say which Kubernetes cluster is meant, alike for every command that talks to one."""

from __future__ import annotations

import argparse
from pathlib import Path

from sternpost_core.errors import Fault, SettingsError
from sternpost_gateway.settings import Cluster


def add_cluster_arguments(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Declare the flags; `purpose` says what the cluster is for."""
    parser.add_argument("--kubernetes", action="store_true", help=purpose)
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="the cluster and the credentials for --kubernetes (default: those of the pod that this runs in)",
    )
    parser.add_argument(
        "--namespace", metavar="NAME", help="the only namespace of the cluster that counts (default: all)"
    )


def cluster_of(arguments: argparse.Namespace) -> Cluster | None:
    """
    Return the cluster that the flags mean, if they mean one.

    Raises:
        SettingsError: a flag speaks of a cluster that nothing asks for.
    """
    if arguments.kubernetes:
        return Cluster(kubeconfig=arguments.kubeconfig, namespace=arguments.namespace)
    given = {"--kubeconfig": arguments.kubeconfig, "--namespace": arguments.namespace}
    faults = [
        Fault(flag, str(value), "nothing without --kubernetes") for flag, value in given.items() if value
    ]
    if faults:
        raise SettingsError("settings", faults)
    return None
