"""The webhook's certificates: one that it serves with, and the authorities that the API server is to trust.

Every serving certificate has an authority of its own, whose key signs once and is then forgotten: nothing that is
kept can sign. At a renewal the earlier authority stays trusted until it ends, for replicas that still serve with its
certificate:

    ca.crt    authority of tls.crt, then the earlier one while it is valid
    tls.crt   the serving certificate            tls.key   its key, ECDSA P-256
"""

import base64
import binascii
import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = datetime.timedelta(days=365)
# A clock that is a little behind must not find a fresh certificate "not yet valid".
BACKDATED = datetime.timedelta(minutes=10)


@dataclass(frozen=True)
class Certificates:
    """PEM texts, as they stand in the Secret. `authorities` may be several, the one of `certificate` first."""

    certificate: bytes
    key: bytes
    authorities: bytes

    @classmethod
    def from_secret(cls, secret: Mapping[str, Any] | None) -> "Certificates | None":
        """What a live Secret holds, None where something is missing or is no base64."""
        data = (secret or {}).get("data") or {}
        try:
            certificate, key, authorities = (
                base64.b64decode(data[name], validate=True) for name in ("tls.crt", "tls.key", "ca.crt")
            )
        except (KeyError, TypeError, binascii.Error):
            return None
        return cls(certificate, key, authorities)

    def to_data(self) -> dict[str, str]:
        """The `data` of a Secret of type kubernetes.io/tls."""
        texts = {"tls.crt": self.certificate, "tls.key": self.key, "ca.crt": self.authorities}
        return {name: base64.b64encode(text).decode() for name, text in texts.items()}


def authorities_in(bundle: str) -> bytes:
    """The authorities of a caBundle as a configuration has it, in base64; none where it cannot be read."""
    try:
        return b"".join(map(_pem, _each(base64.b64decode(bundle, validate=True))))
    except ValueError:
        return b""


def service_names(service: str, namespace: str) -> list[str]:
    """The names that a Service is called by inside the cluster; the API server asks for the last one."""
    return [service, f"{service}.{namespace}", f"{service}.{namespace}.svc"]


def issue(names: list[str], now: datetime.datetime, trusted: bytes = b"") -> Certificates:
    """A new authority and a certificate by it for these DNS names, valid from now on for LIFE.

    trusted: authorities that stay trusted as long as they are valid.
    """
    signer, private = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = _named("kvtide admission authority")
    authority = (
        _valid(authority_name, authority_name, signer.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    certificate = (
        _valid(_named("kvtide admission"), authority_name, private.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    still_valid = (other for other in _each(trusted) if now < other.not_valid_after_utc)
    return Certificates(
        certificate=_pem(certificate),
        key=private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        authorities=b"".join(map(_pem, [authority, *still_valid])),
    )


def flaw(found: Certificates, names: list[str], now: datetime.datetime) -> str | None:
    """Why these cannot be served under these names now; None where they can."""
    try:
        certificate = x509.load_pem_x509_certificate(found.certificate)
        private = serialization.load_pem_private_key(found.key, password=None)
        authorities = list(_each(found.authorities))
        served = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        missing = set(names) - set(served.get_values_for_type(x509.DNSName))
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        return f"it cannot be read: {error}"
    if private.public_key() != certificate.public_key():
        return "its key is of another certificate"
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
        return f"it is valid from {certificate.not_valid_before_utc} to {certificate.not_valid_after_utc}"
    if missing:
        return f"it is not for {', '.join(sorted(missing))}"
    if not any(_signed_by(certificate, authority) for authority in authorities):
        return "its authority is not in ca.crt"
    return None


def renewal_due(found: Certificates, now: datetime.datetime) -> bool:
    """Whether two thirds of the certificate's life have passed. The certificate must be readable: see `flaw`."""
    certificate = x509.load_pem_x509_certificate(found.certificate)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now - begin >= (end - begin) * 2 / 3


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _valid(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + LIFE)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _each(bundle: bytes) -> Iterator[x509.Certificate]:
    if bundle:
        yield from x509.load_pem_x509_certificates(bundle)


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
