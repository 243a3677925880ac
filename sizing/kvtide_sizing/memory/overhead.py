"""What the processes take of a device before they hold a model, and at the peak of loading one.

Estimates from above, rounded up from what was measured; docs/sizing.md says how, on which machine. What a worker
measures takes their place.
"""

from __future__ import annotations

from kvtide_sizing.devices.device import Device, DeviceKind
from kvtide_sizing.memory.key_bases import calibration_bytes
from kvtide_sizing.memory.matrices import converting_bytes
from kvtide_sizing.memory.pooling import pooling_bytes
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.quantity import MIB
from kvtide_sizing.shape import ModelShape

# The engine's private memory beside weights and pool: 320 MiB at rest (torch's CUDA build imported, its CPU kernels
# used), 364 MiB under load, a step's tensors and oneDNN's generated code among them. Attention's kernels keep less than
# 1 MiB for each thread.
CPU_ENGINE_BYTES = 400 * MIB
# The API server without its tokenizer has 59 MiB, 62 under load, and its helper process 6; the rest is for connections.
CPU_SERVER_BYTES = 96 * MIB
# A tokenizer takes 0.30 KiB an entry for SmolLM2's 49,152 and 0.63 KiB for Gemma 3's 262,144, with its merges; at the
# peak of reading it, 0.72 and 1.13 KiB.
CPU_SERVER_BYTES_PER_VOCAB_ENTRY = 768
CPU_SERVER_LOAD_BYTES_PER_VOCAB_ENTRY = 512
# A chunk of a weight in float32 twice, as it is dequantised on the way to its place.
CPU_LOAD_CHUNK_BYTES = 16 * MIB
# A chunk of a matrix in float32 three times, and its bytes three times, as it is quantised; 25.7 MiB were measured.
QUANTISING_CHUNK_BYTES = 28 * MIB
# Not measured: CUDA's context and the kernels' code (about 0.5 GiB on today's cards), cuBLAS's workspaces and captured
# graphs. What the allocator loses between its segments is the reserve's.
GPU_BYTES = 1024 * MIB
# Of these, what graphs of decode steps may take: a worker that has recorded so much records no more.
GRAPHS_BYTES = 256 * MIB
# Not measured either: the buffers that devices exchange sums through.
GPU_COLLECTIVES_BYTES = 512 * MIB


def overhead_bytes(shape: ModelShape, device: Device) -> int:
    """Bytes of one device that neither model nor step take: as measured for this model, or an estimate from above."""
    if device.measured_overhead_bytes is not None:
        return device.measured_overhead_bytes
    if device.kind is DeviceKind.GPU:
        return GPU_BYTES + (GPU_COLLECTIVES_BYTES if device.count > 1 else 0)
    return CPU_ENGINE_BYTES + CPU_SERVER_BYTES + shape.vocab_size * CPU_SERVER_BYTES_PER_VOCAB_ENTRY


def load_bytes(
    shape: ModelShape, device: Device, *, key_bases: bool = False, weights: WeightFormat = WeightFormat.BF16
) -> int:
    """Bytes that loading takes beside weights and overhead at its peak; the pool is not there yet.

    Of a GPU what fitting the keys' bases takes, where there are any, or what matrices take until they are quantised:
    a checkpoint's are dequantised in the host's memory. Pooled heads are compared with all before the bases are fitted.
    """
    fitting = calibration_bytes(shape) if key_bases else 0
    quantised, packed = weights is WeightFormat.INT8, device.kind is DeviceKind.CPU
    converting = converting_bytes(shape, quantised=quantised, packed=packed)
    if quantised:
        converting += QUANTISING_CHUNK_BYTES
    elif packed:
        converting += CPU_LOAD_CHUNK_BYTES
    taken = max(converting + pooling_bytes(shape), fitting)
    return taken if device.kind is DeviceKind.GPU else taken + shape.vocab_size * CPU_SERVER_LOAD_BYTES_PER_VOCAB_ENTRY
