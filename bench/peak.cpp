// What the processor multiplies at most: the instructions of the AVX-512 kernels on registers. Twelve sums, which is more
// than the instructions' latency; in assembly, for a compiler may drop what nobody reads.
#include <cstdint>

#define SUMS(INSTRUCTION)                                                                                          \
    INSTRUCTION "0\n" INSTRUCTION "1\n" INSTRUCTION "2\n" INSTRUCTION "3\n" INSTRUCTION "4\n" INSTRUCTION "5\n"      \
    INSTRUCTION "6\n" INSTRUCTION "7\n" INSTRUCTION "8\n" INSTRUCTION "9\n" INSTRUCTION "10\n" INSTRUCTION "11\n"
#define REPEAT(INSTRUCTION)                                                                                        \
    for (int64_t i = 0; i < times; ++i)                                                                            \
        asm volatile(SUMS(INSTRUCTION) ::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
                     "xmm9", "xmm10", "xmm11")

extern "C" {

// times * 12 instructions of 32 products of bfloat16 each
void peak_bf16(int64_t times) { REPEAT("vdpbf16ps %%zmm31, %%zmm31, %%zmm"); }

// times * 12 instructions of 64 products of bytes each
void peak_bytes(int64_t times) { REPEAT("vpdpbusd %%zmm31, %%zmm31, %%zmm"); }
}
