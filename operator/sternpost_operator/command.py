"""`sternpost operator`: the Kubernetes operator, in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Final

from sternpost_core.flag_numbers import integer, port_number, port_or_zero
from sternpost_core.logs import add_log_format, configure_logs
from sternpost_core.policy_parse import URL_FORM, is_url
from sternpost_operator.app import OperatorSettings, run_operator

WORKERS_MAX: Final = 64
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
GATEWAY_LABELS: Final = "app.kubernetes.io/name=sternpost,app.kubernetes.io/component=gateway"
"""How the chart labels gateways."""


class OperatorCommand:
    """Runs the operator until it is told to stop."""

    summary = "Run the Kubernetes operator: engine pools, rollouts of policies, and who obeys a kill switch."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.add_argument(
            "--kubeconfig", help="default: KUBECONFIG, else the service account of the pod that this runs in"
        )
        parser.add_argument(
            "--prometheus-url",
            type=_url,
            help="where figures are for policies that do not say; default: nowhere",
        )
        parser.add_argument(
            "--gateway-labels",
            default=GATEWAY_LABELS,
            help="the label selector of gateways that are asked whether they obey (default: %(default)s)",
        )
        parser.add_argument(
            "--gateway-port",
            type=port_number,
            default=8080,
            help="where they are asked (default: %(default)s)",
        )
        parser.add_argument(
            "--gateway-certificate",
            type=Path,
            help="gateways serve TLS with the first certificate of this file (default: they do not)",
        )
        parser.add_argument(
            "--health-port",
            type=port_or_zero,
            default=8081,
            help="serves /healthz and /readyz; 0: does not (default: %(default)s)",
        )
        parser.add_argument(
            "--metrics-port",
            type=port_or_zero,
            default=9090,
            help="serves /metrics; 0: does not (default: %(default)s)",
        )
        parser.add_argument(
            "--workers",
            type=integer(1, WORKERS_MAX),
            default=4,
            help="objects looked at at once (default: %(default)s)",
        )
        parser.add_argument(
            "--separate-namespaces",
            action="store_true",
            help="each gateway sees one namespace: policies of two cannot stand in each other's way",
        )
        add_log_format(parser)
        parser.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="default: %(default)s")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run until SIGINT or SIGTERM; return 0 after an end in order."""
        configure_logs(arguments.log_format, arguments.log_level.upper())
        # Each single event and request is nothing that anybody wants to read about.
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        asyncio.run(_run(read_settings(arguments, os.environ.get("KUBECONFIG"))))
        return 0


async def _run(settings: OperatorSettings) -> None:
    stop = asyncio.Event()
    # kopf takes the signals over once it runs. Before, and as the first process of a container, nothing else
    # would end the operator but force.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run_operator(settings, stop)


def read_settings(arguments: argparse.Namespace, kubeconfig: str | None) -> OperatorSettings:
    """Turn parsed flags into settings; `kubeconfig` is used where no flag names one."""
    return OperatorSettings(
        kubeconfig=arguments.kubeconfig or kubeconfig,
        prometheus_url=arguments.prometheus_url,
        gateway_labels=arguments.gateway_labels,
        gateway_port=arguments.gateway_port,
        health_port=arguments.health_port,
        metrics_port=arguments.metrics_port,
        workers=arguments.workers,
        separate_namespaces=arguments.separate_namespaces,
        gateway_certificate=arguments.gateway_certificate,
    )


def _url(word: str) -> str:
    if not is_url(word):
        raise argparse.ArgumentTypeError(f"{word!r} is not allowed; allowed: {URL_FORM}")
    return word


COMMAND: Final = OperatorCommand()
"""What the entry point `operator` of the group `sternpost.commands` names."""
