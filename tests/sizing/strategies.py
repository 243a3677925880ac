"""Models, devices, workloads and policies that nobody thought of."""

from dataclasses import replace

from hypothesis import strategies as st

from kvtide_sizing.devices.device import Device, DeviceKind
from kvtide_sizing.plan import Policy, Workload
from kvtide_sizing.plan.workload import BLOCK_SIZES
from kvtide_sizing.shape import LayerShape, ModelShape, Split, WeightGroup

MIB = 1024**2

devices = st.builds(
    Device,
    st.just("some"),
    st.sampled_from(DeviceKind),
    st.integers(min_value=1, max_value=400 * 1024 * MIB),
)
workloads = st.builds(
    Workload,
    max_context_tokens=st.none() | st.integers(1, 4096),
    mean_prompt_tokens=st.none() | st.integers(1, 8192),
    mean_output_tokens=st.none() | st.integers(1, 8192),
    target_concurrency=st.none() | st.integers(1, 1000),
)
policies = st.builds(
    Policy,
    precision=st.sampled_from(["Auto", "BF16", "INT8", "Mixed", "K8V4", "INT4"]),
    block_size_tokens=st.none() | st.sampled_from(BLOCK_SIZES),
    max_quality_loss_percent=st.sampled_from([0.0, 0.5, 1.0, 5.0]),
)


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    """Full layers, layers with a window, and latents, in any order."""
    kv_heads = draw(st.sampled_from([1, 2, 3, 5, 8, 32]))
    head_dim = draw(st.sampled_from([32, 48, 64, 80, 96, 128, 256]))
    latent = draw(st.booleans())
    full = LayerShape(1, 576, 0) if latent else LayerShape(kv_heads, head_dim, head_dim)
    windowed = replace(full, window=draw(st.integers(1, 5000)))
    layers = draw(st.lists(st.sampled_from([full, windowed]), min_size=1, max_size=100))
    hidden, vocabulary = draw(st.integers(1, 8192)), draw(st.integers(1, 200_000))
    return ModelShape(
        name="some",
        architecture="some",
        layers=tuple(layers),
        query_heads=kv_heads * draw(st.integers(1, 8)),
        hidden_size=hidden,
        intermediate_size=draw(st.integers(1, 30_000)),
        vocab_size=vocabulary,
        max_context_tokens=draw(st.integers(4096, 131_072)),
        tied_embeddings=True,
        weights=(
            WeightGroup("embedding", vocabulary * hidden, Split.SHARDED),
            WeightGroup("matrices", draw(st.integers(0, 10**11)), Split.SHARDED, channels=draw(st.integers(0, 10**6))),
            WeightGroup("key and value", kv_heads * draw(st.integers(1, 10**7)), Split.KV_HEADS, channels=kv_heads),
            WeightGroup("norms", hidden, Split.COPIED),
        ),
    )
