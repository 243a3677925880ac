"""The cluster's certificates: three small authorities, and one certificate for each component that speaks TLS.

cluster      every component's identity; RBAC reads user and groups from its subject
etcd         who may open the store, which obeys no RBAC: the API server alone
front-proxy  who may speak in another's name to the API server
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from devcluster import netns
from devcluster.paths import PKI

LIFETIME = timedelta(days=365)
SERVICE_ACCOUNT_KEY = PKI / "service-account.key"
NODE = "devcluster"


@dataclass(frozen=True)
class Identity:
    """Whom a certificate names: authority, user, groups, and the names it may serve under beside loopback."""

    authority: str
    user: str
    groups: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


IDENTITIES = {
    "kube-apiserver": Identity(
        "cluster",
        "kube-apiserver",
        names=(
            netns.NODE_ADDRESS,
            netns.API_SERVICE_ADDRESS,
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ),
    ),
    "kube-apiserver-to-kubelet": Identity("cluster", "kube-apiserver-to-kubelet", ("system:masters",)),
    "kube-controller-manager": Identity("cluster", "system:kube-controller-manager"),
    "kube-scheduler": Identity("cluster", "system:kube-scheduler"),
    "kube-proxy": Identity("cluster", "system:kube-proxy"),
    "kubelet": Identity("cluster", f"system:node:{NODE}", ("system:nodes",), (NODE, netns.NODE_ADDRESS)),
    "admin": Identity("cluster", "kubernetes-admin", ("system:masters",)),
    "prometheus": Identity("cluster", "kvtide:prometheus"),
    "etcd": Identity("etcd", "etcd"),
    "kube-apiserver-to-etcd": Identity("etcd", "kube-apiserver"),
    "front-proxy-client": Identity("front-proxy", "front-proxy-client"),
}


def certificate(name: str) -> Path:
    """The file of a certificate: of a component, or of an authority by `NAME-ca`."""
    return PKI / f"{name}.crt"


def key(name: str) -> Path:
    """The file of the private key to `certificate(name)`."""
    return PKI / f"{name}.key"


def issue_all() -> None:
    """Make what is not there yet: authorities, certificates, and the key that signs service account tokens."""
    PKI.mkdir(parents=True, exist_ok=True)
    PKI.chmod(0o700)
    for authority in {identity.authority for identity in IDENTITIES.values()}:
        if not certificate(f"{authority}-ca").exists():
            _write_authority(f"{authority}-ca")
    for name, identity in IDENTITIES.items():
        if not certificate(name).exists():
            _write_certificate(name, identity)
    if not SERVICE_ACCOUNT_KEY.exists():
        # RSA, because clients that check these tokens (OpenID Connect) know RS256 first of all.
        _write_key(SERVICE_ACCOUNT_KEY, rsa.generate_private_key(public_exponent=65537, key_size=2048))


def _write_authority(name: str) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"devcluster {name}")])
    built = (
        _builder(subject, private.public_key())
        .issuer_name(subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
    )
    _write_key(key(name), private)
    certificate(name).write_bytes(built.sign(private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _write_certificate(name: str, identity: Identity) -> None:
    authority = f"{identity.authority}-ca"
    issuer = x509.load_pem_x509_certificate(certificate(authority).read_bytes())
    signer = serialization.load_pem_private_key(key(authority).read_bytes(), password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in identity.groups),
            x509.NameAttribute(NameOID.COMMON_NAME, identity.user),
        ]
    )
    served = [_general_name(served) for served in ("localhost", "127.0.0.1", *identity.names)]
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    built = (
        _builder(subject, private.public_key())
        .issuer_name(issuer.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName(served), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    _write_key(key(name), private)
    certificate(name).write_bytes(built.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        # A clock that is set back a little must not make a fresh certificate "not yet valid".
        .not_valid_before(now - timedelta(minutes=10))
        .not_valid_after(now + LIFETIME)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_key(path: Path, private: CertificateIssuerPrivateKeyTypes) -> None:
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.touch(mode=0o600)
    path.write_bytes(pem)
