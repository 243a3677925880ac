"""Certificates that Python's own ssl, with X.509's strict rules, accepts for the Service's names, and only those."""

import datetime
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from kvtide_operator.admission.certificates import Certificates, flaw, issue, renewal_due, service_names

NAMES = service_names("kvtide-admission", "kvtide-system")
NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
Shake = Callable[[ssl.SSLContext, bytes, str], None]


def serving(certificates: Certificates, folder: Path) -> ssl.SSLContext:
    (folder / "pair.pem").write_bytes(certificates.key + certificates.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "pair.pem")
    return context


@pytest.mark.parametrize(
    "name",
    ["kvtide-admission", "kvtide-admission.kvtide-system", "kvtide-admission.kvtide-system.svc"],
)
def test_the_service_is_trusted_under_its_names(shakes_hands: Shake, tmp_path: Path, name: str) -> None:
    made = issue(NAMES, NOW)
    shakes_hands(serving(made, tmp_path), made.authorities, name)


def test_under_another_name_or_by_another_authority_it_is_not(shakes_hands: Shake, tmp_path: Path) -> None:
    made, other = issue(NAMES, NOW), issue(NAMES, NOW)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shakes_hands(serving(made, tmp_path), made.authorities, "other.kvtide-system.svc")
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        shakes_hands(serving(made, tmp_path), other.authorities, NAMES[-1])


def test_the_longest_names_that_kubernetes_allows(shakes_hands: Shake, tmp_path: Path) -> None:
    names = service_names("s" * 63, "n" * 63)
    made = issue(names, NOW)
    shakes_hands(serving(made, tmp_path), made.authorities, names[-1])


def test_a_renewal_trusts_the_earlier_authority_while_it_is_valid(shakes_hands: Shake, tmp_path: Path) -> None:
    first = issue(NAMES, NOW - 300 * DAY)
    second = issue(NAMES, NOW, trusted=first.authorities)
    for served in (first, second):
        shakes_hands(serving(served, tmp_path), second.authorities, NAMES[-1])
    third = issue(NAMES, NOW + 240 * DAY, trusted=second.authorities)
    subjects = x509.load_pem_x509_certificates(third.authorities)
    # of the three authorities the first has ended after 365 days
    assert len(subjects) == 2
    assert min(authority.not_valid_before_utc for authority in subjects) > NOW - DAY


def test_no_key_that_could_sign_is_kept() -> None:
    made = issue(NAMES, NOW)
    assert made.key.count(b"PRIVATE KEY-----") == 2  # one: its BEGIN and its END
    assert b"PRIVATE" not in made.authorities + made.certificate
    kept = x509.load_pem_x509_certificate(made.certificate)
    assert not kept.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize(
    ("days", "due"),
    # two thirds of 365 days are 243.3
    [(0, False), (243, False), (244, True), (364, True)],
)
def test_renewal_is_due_after_two_thirds_of_its_life(days: int, due: bool) -> None:
    assert renewal_due(issue(NAMES, NOW), NOW + days * DAY) is due


def test_what_was_stored_is_read_back() -> None:
    made = issue(NAMES, NOW)
    assert Certificates.from_secret({"data": made.to_data()}) == made


@pytest.mark.parametrize(
    "secret",
    [None, {}, {"data": None}, {"data": {"tls.crt": "YQ==", "tls.key": "YQ=="}}]
    + [{"data": {"tls.crt": "YQ==", "tls.key": "YQ==", "ca.crt": broken}} for broken in ("%", None)],
)
def test_a_secret_that_holds_no_certificates(secret: dict[str, object] | None) -> None:
    assert Certificates.from_secret(secret) is None


def test_nothing_is_wrong_with_a_fresh_one() -> None:
    assert flaw(issue(NAMES, NOW), NAMES, NOW) is None


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda made, other: replace(made, certificate=b"nonsense"), "cannot be read"),
        (lambda made, other: replace(made, key=b"nonsense"), "cannot be read"),
        (lambda made, other: replace(made, authorities=b"nonsense"), "cannot be read"),
        (lambda made, other: replace(made, authorities=b""), "authority is not in ca.crt"),
        (lambda made, other: replace(made, key=other.key), "another certificate"),
        (lambda made, other: replace(made, authorities=other.authorities), "authority is not in ca.crt"),
        (lambda made, other: issue(["elsewhere.svc"], NOW), "not for kvtide-admission"),
        (lambda made, other: issue(NAMES, NOW - 366 * DAY), "valid from"),
        (lambda made, other: issue(NAMES, NOW + DAY), "valid from"),
    ],
)
def test_what_cannot_be_served_says_why(spoil: Callable[..., Certificates], words: str) -> None:
    found = flaw(spoil(issue(NAMES, NOW), issue(NAMES, NOW)), NAMES, NOW)
    assert found is not None
    assert words in found
