"""Head and block sizes that the kernels serve, on the CPU and on a GPU alike. Plain torch serves any."""

SERVED_HEAD_DIMS = (64, 80, 96, 112, 128, 192, 256)
SERVED_BLOCK_SIZES = (16, 32, 64, 128, 256)  # tokens
