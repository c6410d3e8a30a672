"""
How gateways that serve TLS are met: by the very certificate that they serve.

Pods are asked by their addresses, which no certificate names. That it is this certificate, whose key only
gateways have, says more than a name would.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Final

from sternpost_core.errors import OperatingError

logger = logging.getLogger(__name__)

END: Final = "-----END CERTIFICATE-----"
ALLOWED: Final = "a certificate in PEM"


class GatewayCertificate:
    """The first certificate of a file, the others being those of its authorities; it may be renewed there."""

    def __init__(self, file: Path) -> None:
        """
        Read the certificate.

        Raises:
            OperatingError: the file cannot be read, or holds no certificate.
        """
        self._file = file
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname = False
        # The certificate itself is what is trusted, whoever has signed it.
        self.context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        self._trusted = ""
        self._trust(_read(file))

    def renew(self) -> None:
        """Trust another certificate that the file holds by now; what cannot be read changes nothing."""
        try:
            self._trust(_read(self._file))
        except OperatingError as error:
            logger.warning("%s; the last one counts", error)

    def _trust(self, certificate: str) -> None:
        if certificate == self._trusted:
            return
        try:
            self.context.load_verify_locations(cadata=certificate)
        except (ssl.SSLError, ValueError) as error:
            raise _wrong(self._file, "what is none") from error
        self._trusted = certificate


def _read(file: Path) -> str:
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(file, str(error)) from error
    first, end, _ = text.partition(END)
    if not end:
        raise _wrong(file, "what is none")
    return first + end + "\n"


def _wrong(file: Path, found: str) -> OperatingError:
    return OperatingError(f"--gateway-certificate {file}: {found}; allowed: {ALLOWED}")
