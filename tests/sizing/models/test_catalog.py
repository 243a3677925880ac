import json

import pytest

from kvtide_sizing.errors import ModelNotFound
from kvtide_sizing.formats import Precision, bytes_per_token
from kvtide_sizing.models import catalog
from kvtide_sizing.models.model_uri import ModelUri
from kvtide_sizing.shape import ModelShape

# parameters: what the hub shows of each model's safetensors files, less what is there twice: a tied head, or what is
#             not run (the 14 B of DeepSeek-V3's layer that guesses ahead)
# kv_bytes:   2 (key, value) · layers · KV heads · head size · 2 bytes, from the model's config.json
PUBLISHED = [
    ("llama-2-7b", 6_738_415_616, 2 * 32 * 32 * 128 * 2),
    ("llama-2-13b", 13_015_864_320, 2 * 40 * 40 * 128 * 2),
    ("llama-2-70b", 68_976_648_192, 2 * 80 * 8 * 128 * 2),
    ("llama-3-8b", 8_030_261_248, 2 * 32 * 8 * 128 * 2),
    ("llama-3-70b", 70_553_706_496, 2 * 80 * 8 * 128 * 2),
    ("llama-3.1-8b", 8_030_261_248, 2 * 32 * 8 * 128 * 2),
    ("llama-3.1-70b", 70_553_706_496, 2 * 80 * 8 * 128 * 2),
    ("llama-3.1-405b", 405_853_388_800, 2 * 126 * 8 * 128 * 2),
    ("llama-3.2-1b", 1_235_814_400, 2 * 16 * 8 * 64 * 2),
    ("llama-3.2-3b", 3_212_749_824, 2 * 28 * 8 * 128 * 2),
    ("llama-3.3-70b", 70_553_706_496, 2 * 80 * 8 * 128 * 2),
    ("smollm2-135m", 134_515_008, 2 * 30 * 3 * 64 * 2),
    ("smollm2-360m", 361_821_120, 2 * 32 * 5 * 64 * 2),
    ("smollm2-1.7b", 1_711_376_384, 2 * 24 * 32 * 64 * 2),
    ("tinyllama-1.1b", 1_100_048_384, 2 * 22 * 4 * 64 * 2),
    ("mistral-7b", 7_248_023_552, 2 * 32 * 8 * 128 * 2),
    ("mistral-7b-v0.1", 7_241_732_096, 2 * 32 * 8 * 128 * 2),
    ("mistral-nemo-12b", 12_247_782_400, 2 * 40 * 8 * 128 * 2),  # head size 128, not 5120 / 32
    ("mistral-small-24b", 23_572_403_200, 2 * 40 * 8 * 128 * 2),
    ("mixtral-8x7b", 46_702_792_704, 2 * 32 * 8 * 128 * 2),  # experts share attention
    ("mixtral-8x22b", 140_620_634_112, 2 * 56 * 8 * 128 * 2),
    ("qwen2-7b", 7_615_616_512, 2 * 28 * 4 * 128 * 2),
    ("qwen2.5-0.5b", 494_032_768, 2 * 24 * 2 * 64 * 2),
    ("qwen2.5-1.5b", 1_543_714_304, 2 * 28 * 2 * 128 * 2),
    ("qwen2.5-3b", 3_085_938_688, 2 * 36 * 2 * 128 * 2),
    ("qwen2.5-7b", 7_615_616_512, 2 * 28 * 4 * 128 * 2),
    ("qwen2.5-14b", 14_770_033_664, 2 * 48 * 8 * 128 * 2),
    ("qwen2.5-32b", 32_763_876_352, 2 * 64 * 8 * 128 * 2),
    ("qwen2.5-72b", 72_706_203_648, 2 * 80 * 8 * 128 * 2),
    ("qwen3-0.6b", 596_049_920, 2 * 28 * 8 * 128 * 2),  # head size 128, not 1024 / 16
    ("qwen3-1.7b", 1_720_574_976, 2 * 28 * 8 * 128 * 2),
    ("qwen3-4b", 4_022_468_096, 2 * 36 * 8 * 128 * 2),  # head size 128, not 2560 / 32
    ("qwen3-8b", 8_190_735_360, 2 * 36 * 8 * 128 * 2),
    ("qwen3-14b", 14_768_307_200, 2 * 40 * 8 * 128 * 2),
    ("qwen3-32b", 32_762_123_264, 2 * 64 * 8 * 128 * 2),  # head size 128, not 5120 / 64
    ("qwen1.5-moe-a2.7b", 14_315_784_192, 2 * 24 * 16 * 128 * 2),
    ("qwen3-30b-a3b", 30_532_122_624, 2 * 48 * 4 * 128 * 2),
    ("qwen3-235b-a22b", 235_093_634_560, 2 * 94 * 4 * 128 * 2),
    ("gemma-2-2b", 2_614_341_888, 2 * 26 * 4 * 256 * 2),
    ("gemma-2-9b", 9_241_705_984, 2 * 42 * 8 * 256 * 2),
    ("gemma-2-27b", 27_227_128_320, 2 * 46 * 16 * 128 * 2),
    ("gemma-3-270m", 268_098_176, 2 * 18 * 1 * 256 * 2),
    ("gemma-3-1b", 999_885_952, 2 * 26 * 1 * 256 * 2),
    ("gemma-3-4b", 4_300_079_472, 2 * 34 * 4 * 256 * 2),  # the weights that see, and the tokens that read
    ("gemma-3-12b", 12_187_325_040, 2 * 48 * 8 * 256 * 2),
    ("gemma-3-27b", 27_432_406_640, 2 * 62 * 16 * 128 * 2),
    ("phi-2", 2_779_683_840, 2 * 32 * 32 * 80 * 2),
    ("phi-3-mini", 3_821_079_552, 2 * 32 * 32 * 96 * 2),
    ("phi-3-mini-128k", 3_821_079_552, 2 * 32 * 32 * 96 * 2),
    ("phi-4", 14_659_507_200, 2 * 40 * 10 * 128 * 2),
    ("falcon-7b", 6_921_720_704, 2 * 32 * 1 * 64 * 2),  # one KV head for 71 query heads
    ("falcon-40b", 41_303_293_952, 2 * 60 * 8 * 64 * 2),
    ("gpt2", 124_439_808, 2 * 12 * 12 * 64 * 2),
    ("gpt2-xl", 1_557_611_200, 2 * 48 * 25 * 64 * 2),
    ("pythia-160m", 162_322_944, 2 * 12 * 12 * 64 * 2),
    ("pythia-6.9b", 6_857_302_016, 2 * 32 * 32 * 128 * 2),
    ("pythia-12b", 11_846_072_320, 2 * 36 * 40 * 128 * 2),
    ("deepseek-v2-lite", 15_706_484_224, 27 * (512 + 64) * 2),  # one latent of 512 and a rotated key of 64
    ("deepseek-v2", 235_741_434_880, 60 * (512 + 64) * 2),
    ("deepseek-v3", 671_026_419_200, 61 * (512 + 64) * 2),
    ("gpt-oss-20b", 20_914_757_184, 2 * 24 * 8 * 64 * 2),
    ("gpt-oss-120b", 116_829_156_672, 2 * 36 * 8 * 64 * 2),
]


@pytest.mark.parametrize(("name", "parameters", "kv_bytes"), PUBLISHED)
def test_built_in_models_have_their_published_sizes(name: str, parameters: int, kv_bytes: int) -> None:
    shape = catalog.builtin(name)
    assert shape.parameters == parameters
    assert bytes_per_token(shape, Precision.BF16) == kv_bytes


def test_every_built_in_model_has_a_row_above() -> None:
    assert [name for name, *_ in PUBLISHED] == list(catalog.names())


# Full layers of all layers, and the window of the others, from each config.json.
WINDOWS = [
    ("mistral-7b", 32, 32, None),
    ("mistral-7b-v0.1", 0, 32, 4096),
    ("qwen2.5-7b", 28, 28, None),  # sliding_window is in its file, use_sliding_window is false
    ("gemma-2-9b", 21, 42, 4096),  # every other layer
    ("gemma-3-270m", 3, 18, 512),  # every sixth layer is full
    ("gemma-3-1b", 4, 26, 512),
    ("gemma-3-27b", 10, 62, 1024),
    ("phi-3-mini", 0, 32, 2047),
    ("phi-3-mini-128k", 32, 32, None),  # a window of 262144 tokens, of a context of 131072
    ("gpt-oss-20b", 12, 24, 128),  # every other layer
]


@pytest.mark.parametrize(("name", "full", "layers", "window"), WINDOWS)
def test_windows_are_in_the_layers_that_have_them(name: str, full: int, layers: int, window: int | None) -> None:
    windows = [layer.window for layer in catalog.builtin(name).layers]
    assert (windows.count(None), len(windows)) == (full, layers)
    assert {size for size in windows if size is not None} == ({window} if window else set())


@pytest.mark.parametrize(("name", "first_full"), [("gemma-2-2b", 1), ("gemma-3-270m", 5), ("gpt-oss-20b", 1)])
def test_the_first_layers_slide(name: str, first_full: int) -> None:
    assert [layer.window for layer in catalog.builtin(name).layers].index(None) == first_full


@pytest.mark.parametrize(
    ("name", "widest"),
    [
        ("llama-3.1-8b", 14336),
        ("mixtral-8x7b", 2 * 14336),  # two experts of eight
        ("qwen1.5-moe-a2.7b", 4 * 1408 + 5632),  # four small experts and the shared one
        ("qwen3-30b-a3b", 8 * 768),
        ("deepseek-v3", 18432),  # its first layers: 8 experts of 2048 and the shared one are as wide
        ("gpt-oss-20b", 4 * 2880),
    ],
)
def test_a_mixture_is_as_wide_as_what_a_token_goes_through(name: str, widest: int) -> None:
    assert catalog.builtin(name).intermediate_size == widest


@pytest.mark.parametrize(
    ("name", "dtype"), [("deepseek-v3", "FP8"), ("gpt-oss-20b", "MXFP4"), ("gpt-oss-120b", "MXFP4"), ("gpt2", None)]
)
def test_models_that_are_published_quantised_say_so(name: str, dtype: str | None) -> None:
    assert catalog.builtin(name).weights_dtype == dtype


def test_what_is_not_served_says_what_is() -> None:
    served = {name for name in catalog.names() if catalog.builtin(name).unserved is None}
    assert served == {
        name
        for name in catalog.names()
        if name.startswith(("llama", "smollm", "tinyllama", "mistral", "qwen2", "gemma-3-270m", "gemma-3-1b", "phi-3"))
        or name in ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "phi-4")
    }
    assert catalog.builtin("falcon-7b").unserved == (
        "falcon-7b is FalconForCausalLM, which this release plans but does not serve; LlamaForCausalLM, "
        "MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Gemma3ForCausalLM, Phi3ForCausalLM are served"
    )


@pytest.mark.parametrize("name", catalog.names())
def test_a_shape_fits_a_termination_message(name: str) -> None:
    """Kubernetes keeps 4096 bytes of pod.spec.containers.terminationMessagePath."""
    text = json.dumps(catalog.builtin(name).to_json())
    assert len(text.encode()) < 4096
    assert ModelShape.from_json(json.loads(text)) == catalog.builtin(name)


@pytest.mark.parametrize(
    ("name", "tokens", "expected_bytes"),
    [
        ("llama-2-7b", 4096, 2_147_483_648),  # the seed case: 2 · 32 layers · 4096 hidden · 4096 tokens · 2 bytes
        ("llama-2-7b", 1, 524_288),
        ("llama-2-13b", 1, 819_200),
        ("llama-2-70b", 1, 327_680),
        ("llama-3.1-8b", 1, 131_072),
        ("smollm2-135m", 1, 23_040),
        ("gemma-3-270m", 1, 18_432),
        ("deepseek-v3", 1, 70_272),
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
        ("hf://openai/gpt-oss-20b", "gpt-oss-20b"),
        ("hf://deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("hf://Qwen/Qwen2.5-7B", None),  # its context is four times that of Qwen2.5-7B-Instruct
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
