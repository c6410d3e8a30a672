"""The flags about TLS, towards clients and towards engines."""

from __future__ import annotations

import argparse
from pathlib import Path

from sternpost_core.errors import Fault, SettingsError
from sternpost_core.flag_numbers import member_of
from sternpost_gateway.settings import EngineTls, ServerTls, TlsVersion


def add_tls_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    for flag, text in (
        ("--tls-cert", "serve TLS with this certificate chain (PEM); edits go live within a second"),
        ("--tls-key", "the private key of --tls-cert (PEM)"),
        ("--tls-client-ca", "for engines' paths, clients need a certificate of these authorities (PEM)"),
        ("--engine-ca", "the authorities of engines with https URLs (PEM; default: the system's)"),
        ("--engine-cert", "certificate chain to show to engines (PEM)"),
        ("--engine-cert-key", "the private key of --engine-cert (PEM)"),
    ):
        parser.add_argument(flag, type=Path, metavar="FILE", help=text)
    parser.add_argument(
        "--tls-min-version",
        type=member_of(TlsVersion),
        choices=list(TlsVersion),
        default=TlsVersion.TLS_1_2,
        help="the oldest TLS that clients may speak (default: %(default)s)",
    )
    parser.add_argument(
        "--engine-tls-name",
        metavar="NAME",
        help="the name that engines' certificates are for (default: the host of each URL)",
    )


def server_tls_of(arguments: argparse.Namespace) -> ServerTls | None:
    """
    Return what clients see of TLS, None if they see none.

    Raises:
        SettingsError: a flag is there without another that it needs.
    """
    given = {"--tls-cert": arguments.tls_cert, "--tls-key": arguments.tls_key}
    if not any(given.values()):
        if arguments.tls_client_ca is not None:
            raise _half("--tls-client-ca", arguments.tls_client_ca, given)
        return None
    _check_pair(given)
    return ServerTls(
        cert=arguments.tls_cert,
        key=arguments.tls_key,
        client_ca=arguments.tls_client_ca,
        version_min=arguments.tls_min_version,
    )


def engine_tls_of(arguments: argparse.Namespace) -> EngineTls:
    """
    Return how engines are met.

    Raises:
        SettingsError: a flag is there without another that it needs.
    """
    _check_pair({"--engine-cert": arguments.engine_cert, "--engine-cert-key": arguments.engine_cert_key})
    return EngineTls(
        ca=arguments.engine_ca,
        server_name=arguments.engine_tls_name,
        cert=arguments.engine_cert,
        key=arguments.engine_cert_key,
    )


def _check_pair(given: dict[str, Path | None]) -> None:
    present = {flag: path for flag, path in given.items() if path is not None}
    for flag, path in present.items():
        if len(present) < len(given):
            raise _half(flag, path, given)


def _half(flag: str, path: Path, given: dict[str, Path | None]) -> SettingsError:
    return SettingsError("settings", [Fault(flag, str(path), "together with " + ", ".join(given))])
