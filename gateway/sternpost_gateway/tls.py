"""
TLS on both sides: the certificate that clients see, and what engines have to show and are shown.

Files are read again when they change, into the context that is in use: what is connected stays so, and new
connections get the new certificate. Files that do not go together change nothing.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sternpost_core.errors import Fault, SettingsError
from sternpost_gateway.settings import EngineTls, ServerTls, TlsVersion
from sternpost_gateway.watched_files import WatchedFiles

PROTOCOL: Final = "http/1.1"
"""The only protocol that is offered: clients of others fall back to it."""

VERSIONS: Final = {
    TlsVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2,
    TlsVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3,
}

ALLOWED_PAIR: Final = "a certificate chain and its private key, both in PEM, without a passphrase"
ALLOWED_CA: Final = "certificates in PEM"

Load = Callable[[ssl.SSLContext], None]


@dataclass(frozen=True, slots=True)
class Tls:
    """A context for connections, and what keeps it current; `server_name`: whom the other side has to be."""

    context: ssl.SSLContext
    files: WatchedFiles[None]
    server_name: str | None = None


def server_tls(settings: ServerTls) -> Tls:
    """
    Return how clients are met.

    Raises:
        SettingsError: a file cannot be read, or certificate and key do not go together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[settings.version_min]
    context.set_alpn_protocols([PROTOCOL])
    if settings.client_ca is not None:
        # Probes have no certificate: who needs one is decided by the path, when the request is there.
        context.verify_mode = ssl.CERT_OPTIONAL

    def load(into: ssl.SSLContext) -> None:
        _load_pair(into, "--tls-cert, --tls-key", settings.cert, settings.key)
        if settings.client_ca is not None:
            _load_ca(into, "--tls-client-ca", settings.client_ca)

    paths = [path for path in (settings.cert, settings.key, settings.client_ca) if path is not None]
    return Tls(context, _watched("--tls-cert", paths, context, ssl.PROTOCOL_TLS_SERVER, load))


def engine_tls(settings: EngineTls) -> Tls:
    """
    Return how engines are met: by the system's authorities, unless others are given.

    Raises:
        SettingsError: a file cannot be read, or certificate and key do not go together.
    """
    context = ssl.create_default_context()
    if settings.ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def load(into: ssl.SSLContext) -> None:
        if settings.ca is not None:
            _load_ca(into, "--engine-ca", settings.ca)
        if settings.cert is not None and settings.key is not None:
            _load_pair(into, "--engine-cert, --engine-cert-key", settings.cert, settings.key)

    paths = [path for path in (settings.ca, settings.cert, settings.key) if path is not None]
    files = _watched("--engine-ca", paths, context, ssl.PROTOCOL_TLS_CLIENT, load)
    return Tls(context, files, settings.server_name)


def _watched(
    what: str, paths: list[Path], context: ssl.SSLContext, protocol: int, load: Load
) -> WatchedFiles[None]:
    def read() -> None:
        # Tried on another context first: half of a change would be worse than none.
        load(ssl.SSLContext(protocol))
        load(context)

    return WatchedFiles(what, paths, read)


def _load_pair(context: ssl.SSLContext, flag: str, cert: Path, key: Path) -> None:
    try:
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise _error(flag, f"{cert}, {key}: {_reason(error)}", ALLOWED_PAIR) from None


def _load_ca(context: ssl.SSLContext, flag: str, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise _error(flag, f"{path}: {_reason(error)}", ALLOWED_CA) from None


def _no_passphrase() -> bytes:
    """Stand in for the terminal, where nobody would answer."""
    return b""


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__)


def _error(flag: str, value: str, allowed: str) -> SettingsError:
    return SettingsError("TLS", [Fault(flag, value, allowed)])
