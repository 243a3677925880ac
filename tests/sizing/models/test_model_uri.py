import pytest

from kvtide_sizing.errors import InvalidModelUri
from kvtide_sizing.models.model_uri import ModelUri, Scheme


@pytest.mark.parametrize(
    ("text", "expected", "local_path"),
    [
        ("hf://Org/Name", ModelUri(Scheme.HF, repo="Org/Name"), None),
        ("hf://Org/Na.me-1_2@v1.0", ModelUri(Scheme.HF, repo="Org/Na.me-1_2", revision="v1.0"), None),
        ("hf://Org/Name@refs/pr/3", ModelUri(Scheme.HF, repo="Org/Name", revision="refs/pr/3"), None),
        ("pvc://claim/model", ModelUri(Scheme.PVC, claim="claim", path="model"), "/models/pvc/claim/model"),
        (
            "pvc://my.claim/a/b.gguf",
            ModelUri(Scheme.PVC, claim="my.claim", path="a/b.gguf"),
            "/models/pvc/my.claim/a/b.gguf",
        ),
        ("file:///srv/m.gguf", ModelUri(Scheme.FILE, path="/srv/m.gguf"), "/srv/m.gguf"),
    ],
)
def test_uris_are_read_and_written_back(text: str, expected: ModelUri, local_path: str | None) -> None:
    uri = ModelUri.parse(text)
    assert uri == expected
    assert str(uri) == text
    assert uri.local_path() == local_path


def test_a_claim_is_found_where_it_was_mounted() -> None:
    assert ModelUri.parse("pvc://claim/model").local_path(pvc_root="/mnt") == "/mnt/claim/model"


def test_a_slash_at_the_end_names_the_same_folder() -> None:
    assert ModelUri.parse("file:///srv/model/") == ModelUri.parse("file:///srv/model")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("SmolLM2", "hf://ORG/NAME"),
        ("s3://bucket/model", "pvc://CLAIM/PATH"),
        ("HF://Org/Name", "hf://ORG/NAME"),
        ("hf://Name", "hf://ORG/NAME@REVISION"),
        ("hf://Org/Name/more", "hf://ORG/NAME@REVISION"),
        ("hf://Org/Name@", "hf://ORG/NAME@REVISION"),
        ("hf://../Name", "hf://ORG/NAME@REVISION"),
        ("hf://Org/Na me", "space"),
        ("hf://Org/Name\n", "control character"),
        ("pvc://claim", "path within it"),
        ("pvc://claim/", "path within it"),
        ("pvc://Claim/model", "claim's name"),
        ("pvc://claim/../other", "'..'"),
        ("pvc://claim/a//b", "empty parts"),
        ("pvc://claim/.", "'.'"),
        ("file://host/model", "three slashes"),
        ("file:///", "three slashes"),
        ("file:///a/../../etc/passwd", "'..'"),
    ],
)
def test_what_is_no_uri_is_refused_with_the_form_that_works(text: str, remedy: str) -> None:
    with pytest.raises(InvalidModelUri) as refused:
        ModelUri.parse(text)
    assert remedy in str(refused.value)
    assert f"'{text}'" in str(refused.value)
