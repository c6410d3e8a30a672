"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files in PEM."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; its own is at `path`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self.path = directory / f"{name}.pem"
        self._directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._serial = 0
        own = self._sign(self._name, self._key.public_key(), x509.BasicConstraints(True, None))
        self.path.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, file: str = "") -> Pair:
        """Return a new certificate for a host name and for 127.0.0.1, in files of that name or of `file`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName(
            [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        certificate = self._sign(subject, key.public_key(), names)
        pair = Pair(self._directory / f"{file or name}.crt", self._directory / f"{file or name}.key")
        pair.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        self._serial += 1
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        builder = builder.serial_number(self._serial).not_valid_before(now - VALID)
        builder = builder.not_valid_after(now + VALID).add_extension(extension, critical=False)
        return builder.sign(self._key, hashes.SHA256())
