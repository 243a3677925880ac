"""The rotation of a vector that is packed to 4 bits: the Walsh-Hadamard transform, in registers."""

import triton
import triton.language as tl


@triton.jit
def hadamard(x, ROWS: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr):
    """Each run of RUN elements of float32 [ROWS, WIDTH], times Sylvester's matrix / sqrt(RUN): its own inverse.

    Each stage adds and subtracts neighbours, and puts the sums before the differences. log2(RUN) stages have then
    transformed every bit of the index once, and turned it back to its own place.
    """
    x = tl.reshape(x, (ROWS * WIDTH // RUN, RUN))
    for stage in tl.static_range(8):
        if (1 << stage) < RUN:
            even, odd = tl.split(tl.reshape(x, (ROWS * WIDTH // RUN, RUN // 2, 2)))
            x = tl.reshape(
                tl.permute(tl.join(even + odd, even - odd), (0, 2, 1)),
                (ROWS * WIDTH // RUN, RUN),
            )
    return tl.reshape(x * (RUN**-0.5), (ROWS, WIDTH))
