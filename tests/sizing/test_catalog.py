import pytest

from kvtide_sizing.errors import ModelNotFound
from kvtide_sizing.formats import Precision, bytes_per_token
from kvtide_sizing.models import catalog
from kvtide_sizing.models.model_uri import ModelUri

# parameters: what the hub shows of each model's safetensors files
# kv_bytes: 2 (key, value) · layers · KV heads · head size · 2 bytes
PUBLISHED = [
    ("llama-2-7b", 6_738_415_616, 2 * 32 * 32 * 128 * 2),
    ("llama-2-13b", 13_015_864_320, 2 * 40 * 40 * 128 * 2),
    ("llama-2-70b", 68_976_648_192, 2 * 80 * 8 * 128 * 2),
    ("llama-3.1-8b", 8_030_261_248, 2 * 32 * 8 * 128 * 2),
    ("llama-3.1-70b", 70_553_706_496, 2 * 80 * 8 * 128 * 2),
    ("llama-3.2-1b", 1_235_814_400, 2 * 16 * 8 * 64 * 2),
    ("llama-3.2-3b", 3_212_749_824, 2 * 28 * 8 * 128 * 2),
    ("smollm2-135m", 134_515_008, 2 * 30 * 3 * 64 * 2),
    ("smollm2-360m", 361_821_120, 2 * 32 * 5 * 64 * 2),
    ("smollm2-1.7b", 1_711_376_384, 2 * 24 * 32 * 64 * 2),
    ("tinyllama-1.1b", 1_100_048_384, 2 * 22 * 4 * 64 * 2),
]


@pytest.mark.parametrize(("name", "parameters", "kv_bytes"), PUBLISHED)
def test_built_in_models_have_their_published_sizes(name: str, parameters: int, kv_bytes: int) -> None:
    shape = catalog.builtin(name)
    assert shape.parameters == parameters
    assert shape.weights_bytes == 2 * parameters
    assert bytes_per_token(shape, Precision.BF16) == kv_bytes


def test_every_built_in_model_has_a_row_above() -> None:
    assert {name for name, *_ in PUBLISHED} == set(catalog.names())


@pytest.mark.parametrize(
    ("name", "tokens", "expected_bytes"),
    [
        ("llama-2-7b", 4096, 2_147_483_648),  # the seed case: 2 · 32 layers · 4096 hidden · 4096 tokens · 2 bytes
        ("llama-2-7b", 1, 524_288),
        ("llama-2-13b", 1, 819_200),
        ("llama-2-70b", 1, 327_680),
        ("llama-3.1-8b", 1, 131_072),
        ("smollm2-135m", 1, 23_040),
    ],
)
def test_a_sequence_costs_what_the_formula_says(name: str, tokens: int, expected_bytes: int) -> None:
    assert tokens * bytes_per_token(catalog.builtin(name), Precision.BF16) == expected_bytes


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("hf://HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m"),
        ("hf://huggingfacetb/smollm2-135m", "smollm2-135m"),
        ("hf://meta-llama/Llama-3.1-8B-Instruct@main", "llama-3.1-8b"),
        ("hf://meta-llama/Llama-2-7b-hf@a1b2c3", None),  # another revision may be another model
        ("hf://somebody/SmolLM2-135M-Instruct", None),  # a name is no proof
        ("pvc://models/SmolLM2-135M-Instruct.gguf", None),
        ("file:///smollm2-135m", None),
    ],
)
def test_only_known_repositories_are_recognised(uri: str, expected: str | None) -> None:
    shape = catalog.builtin_for(ModelUri.parse(uri))
    assert (shape.name if shape else None) == expected


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(ModelNotFound, match=r"'llama-9'.*smollm2-135m"):
        catalog.builtin("llama-9")
