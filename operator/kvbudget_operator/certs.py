"""The webhook's certificate: made once, kept in a Secret, renewed before it ends. This file is the pure part.

A pair is one fresh CA and one server certificate signed by it; the CA's key is thrown away, so that a renewal makes a
new CA. The bundle that the API server trusts then holds the new CA and the old one: replicas that still serve the old
certificate and replicas that serve the new one are both trusted at every moment.
"""

import base64
import binascii
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = timedelta(days=365)
RENEW_BEFORE = timedelta(days=90)
_SKEW = timedelta(hours=1)
"""A clock behind ours must not find the certificate unborn."""
_BUNDLE_SIZE = 2

KEY_CERTIFICATE = "tls.crt"
KEY_PRIVATE = "tls.key"
KEY_BUNDLE = "ca.crt"


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM texts: server certificate, its private key, and the CAs to trust (newest first)."""

    certificate: bytes
    key: bytes
    bundle: bytes

    def secret_data(self) -> dict[str, str]:
        """``data`` of the Secret: the names of type kubernetes.io/tls, and the bundle under cert-manager's name."""
        parts = {KEY_CERTIFICATE: self.certificate, KEY_PRIVATE: self.key, KEY_BUNDLE: self.bundle}
        return {name: base64.b64encode(part).decode() for name, part in parts.items()}

    @classmethod
    def from_secret(cls, secret: Mapping[str, Any]) -> "Pair | None":
        """The pair in a Secret; None where it is incomplete or no base64."""
        data = secret.get("data") or {}
        try:
            parts = [base64.b64decode(data[name], validate=True) for name in (KEY_CERTIFICATE, KEY_PRIVATE, KEY_BUNDLE)]
        except (KeyError, binascii.Error):
            return None
        return cls(*parts)


def service_names(service: str, namespace: str, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """DNS names under which the API server may call the Service.

    >>> service_names("kvbudget-admission", "kvbudget-system")[0]
    'kvbudget-admission.kvbudget-system.svc'
    """
    base = f"{service}.{namespace}.svc"
    return (base, f"{service}.{namespace}", f"{base}.cluster.local", *extra)


def issue(names: Sequence[str], now: datetime, old: Pair | None = None) -> Pair:
    """A new pair for the DNS ``names``, valid from ``now`` (aware) for VALID. ``old``: its newest CAs stay trusted."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"kvbudget webhook CA {now:%Y-%m-%d}")])
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    leaf = (
        _builder(subject, ca_name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    trusted = [ca, *(_certificates(old.bundle, now) if old else [])][:_BUNDLE_SIZE]
    return Pair(
        leaf.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in trusted),
    )


def must_renew(pair: Pair, names: Sequence[str], now: datetime) -> str | None:
    """Why ``pair`` must be replaced (ends soon, wrong names, broken); None: it is good."""
    try:
        leaf = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, None)
        covered = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        return f"it cannot be read ({error})"
    if key.public_key() != leaf.public_key():
        return "its key belongs to another certificate"
    if not _issued_by_any(leaf, _certificates(pair.bundle, now)):
        return "no valid CA of its bundle signed it"
    missing = set(names) - set(covered.get_values_for_type(x509.DNSName))
    if missing:
        return f"it does not cover {', '.join(sorted(missing))}"
    if leaf.not_valid_after_utc - now < RENEW_BEFORE:
        return f"it ends at {leaf.not_valid_after_utc:%Y-%m-%d}"
    return None


def not_after(pair: Pair) -> datetime:
    """When the server certificate ends. Raises ValueError where it cannot be read."""
    return x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc


def load(context: ssl.SSLContext, pair: Pair) -> None:
    """Serve ``pair`` from now on: connections opened later use it, open ones go on, the listener stays up.

    Raises ssl.SSLError where the key is not the certificate's, as when files are read in the middle of their renewal;
    ``context`` then serves what it did. The ssl module reads files only, so both parts are written to a private folder
    for the moment.
    """
    with tempfile.TemporaryDirectory(prefix="kvbudget-tls-") as folder:
        certificate, key = Path(folder, KEY_CERTIFICATE), Path(folder, KEY_PRIVATE)
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        server_context().load_cert_chain(certificate, key)  # a context that this fails on has lost its key
        context.load_cert_chain(certificate, key)


def server_context() -> ssl.SSLContext:
    """TLS 1.2 and later; no client certificates, since an answer reveals only what the caller sent."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + VALID)
    )


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _certificates(bundle: bytes, now: datetime) -> list[x509.Certificate]:
    """Certificates of a PEM bundle that have not ended; none where the bundle cannot be read."""
    try:
        certificates = x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return []
    return [certificate for certificate in certificates if certificate.not_valid_after_utc > now]


def _issued_by_any(leaf: x509.Certificate, authorities: Sequence[x509.Certificate]) -> bool:
    for authority in authorities:
        try:
            leaf.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False
