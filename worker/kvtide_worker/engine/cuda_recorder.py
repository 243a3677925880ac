"""Launches as CUDA graphs. Not yet run on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch


class CudaRecorder:
    """`Recorder` of decode_graphs.py: graphs that share one pool of memory, and are replayed one after another.

    No tensor that a graph makes may be read once it is over: the next one lies in the same place.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        self._free_bytes = self._free()

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """As `Recorder.record`.

        It runs once before it is recorded, on the same stream: what compiles kernels, and takes workspaces for good,
        must not happen while launches are recorded.
        """
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            run()
        current.wait_stream(self._stream)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            run()
        return graph.replay

    def used_bytes(self) -> int:
        """As `Recorder.used_bytes`: what the driver has less than before, for a graph's launches lie outside torch's
        allocator. Kernels' code, which they would need without graphs too, is among it."""
        torch.cuda.empty_cache()
        return max(0, self._free_bytes - self._free())

    def _free(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0]
