"""Certificates as their users check them."""

import ipaddress
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509 import verification
from cryptography.x509.oid import NameOID

from devcluster import certificates


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("pki")
        patch.setattr(certificates, "PKI", folder)
        patch.setattr(certificates, "SERVICE_ACCOUNT_KEY", folder / "service-account.key")
        certificates.issue_all()
        yield folder


def load(name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificates.certificate(name).read_bytes())


@pytest.mark.parametrize(
    ("name", "authority", "address"),
    [
        ("kube-apiserver", "cluster-ca", "127.0.0.1"),
        ("kube-apiserver", "cluster-ca", "10.96.0.1"),
        ("kube-apiserver", "cluster-ca", "10.200.0.1"),
        ("kubelet", "cluster-ca", "10.200.0.1"),
        ("kube-scheduler", "cluster-ca", "127.0.0.1"),
        ("etcd", "etcd-ca", "127.0.0.1"),
    ],
)
def test_a_client_trusts_the_server_at_its_address(name: str, authority: str, address: str) -> None:
    store = verification.Store([load(authority)])
    subject = x509.IPAddress(ipaddress.ip_address(address))
    verification.PolicyBuilder().store(store).build_server_verifier(subject).verify(load(name), [])


@pytest.mark.parametrize(
    ("name", "user", "groups"),
    [
        # kubernetes.io/docs/reference/access-authn-authz/rbac, "core component roles"; …/node, "system:nodes".
        ("admin", "kubernetes-admin", ["system:masters"]),
        ("kubelet", "system:node:devcluster", ["system:nodes"]),
        ("kube-scheduler", "system:kube-scheduler", []),
        ("kube-controller-manager", "system:kube-controller-manager", []),
        ("kube-proxy", "system:kube-proxy", []),
        ("prometheus", "kvtide:prometheus", []),
    ],
)
def test_rbac_reads_user_and_groups_from_the_subject(name: str, user: str, groups: list[str]) -> None:
    subject = load(name).subject
    assert [entry.value for entry in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [user]
    assert [entry.value for entry in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == groups


def test_the_store_does_not_trust_the_cluster_s_identities() -> None:
    verifier = verification.PolicyBuilder().store(verification.Store([load("etcd-ca")])).build_client_verifier()
    with pytest.raises(verification.VerificationError):
        verifier.verify(load("admin"), [])


def test_keys_are_for_their_owner_alone(folder: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.glob("*.key")}
    assert modes
    assert set(modes.values()) == {0o600}


def test_a_second_call_changes_nothing(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    certificates.issue_all()
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
