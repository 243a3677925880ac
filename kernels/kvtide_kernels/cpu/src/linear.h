// Rows of bfloat16 times a matrix that is packed for them, on AVX-512: one pass over the weights for twelve rows.
//
// A matrix [outputs][inputs] comes in panels of 32 outputs, each of them K pairs of inputs deep:
//     BF16   panel[k][32]        dwords: the weights of inputs 2 k and 2 k + 1
//     INT8   panel[k][4][2][4]   pairs of bytes, sign and size: of output 16 j + 4 i + l in place i, j, l, so that
//                                interleaving two tables' halves gives outputs in order
// Outputs beyond the last are zeros. A sum has one accumulator that takes pairs in order, however many rows there are:
// a row's result is the same in any company.
#pragma once

#include <memory>

#include "lanes.h"

namespace {

constexpr int PANEL = 32, MOST_ROWS = 12;
// Rows that pass over a panel before the next one comes: they stay in the second level's cache.
constexpr int ROW_BLOCK = 12 * MOST_ROWS;

// outputs = weights [outputs][inputs] times inputs, plus bias; of INT8 times a scale for each output.
struct Linear {
    const uint8_t* weights;  // packed
    const float* scales;     // [outputs rounded up to PANEL]; null: the weights are BF16
    const uint16_t* bias;    // bfloat16 [outputs], or null
    int32_t inputs, outputs;

    int panels() const { return (outputs + PANEL - 1) / PANEL; }
    int depth() const { return inputs / 2; }
    int64_t panel_bytes() const { return int64_t(PANEL) * inputs * (scales ? 1 : 2); }
    const uint8_t* panel(int index) const { return weights + index * panel_bytes(); }
};

// Columns of a panel at a depth, as they are.
struct Floats {
    static constexpr int LINES = 2;
    const uint8_t* panel;

    INLINE void load(int k, __m512bh* column) const {
        column[0] = (__m512bh)_mm512_loadu_si512(panel + 128 * int64_t(k));
        column[1] = (__m512bh)_mm512_loadu_si512(panel + 128 * int64_t(k) + 64);
    }
};

// Bytes of sign and size become bfloat16, which has room for all 127 sizes, by looking up both of its bytes.
struct Integers {
    static constexpr int LINES = 1;
    const uint8_t* panel;
    __m512i high[2], low[2], sign = _mm512_set1_epi8(char(0x80));

    explicit Integers(const uint8_t* from) : panel(from) {
        alignas(64) static const Tables tables;
        for (int i = 0; i < 2; ++i) {
            high[i] = _mm512_load_si512(tables.high + 64 * i);
            low[i] = _mm512_load_si512(tables.low + 64 * i);
        }
    }

    INLINE void load(int k, __m512bh* column) const {
        const __m512i q = _mm512_loadu_si512(panel + 64 * int64_t(k));
        const __m512i size = _mm512_permutex2var_epi8(high[0], q, high[1]);
        const __m512i upper = _mm512_ternarylogic_epi32(size, q, sign, 0xf8);  // size | q & sign
        const __m512i lower = _mm512_permutex2var_epi8(low[0], q, low[1]);
        column[0] = (__m512bh)_mm512_unpacklo_epi8(lower, upper);
        column[1] = (__m512bh)_mm512_unpackhi_epi8(lower, upper);
    }

  private:
    struct Tables {
        uint8_t high[128], low[128];
        Tables() {
            for (int size = 0; size < 128; ++size) {
                const uint16_t x = bf16_of(float(size));
                high[size] = uint8_t(x >> 8), low[size] = uint8_t(x);
            }
        }
    };
};

inline __mmask16 first_lanes(int count) { return count >= 16 ? 0xffff : __mmask16((1 << count) - 1); }

INLINE inline __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

INLINE inline __m512 load_bf16(const uint16_t* from, __mmask16 some) {
    return widen(_mm256_maskz_loadu_epi16(some, from));
}

INLINE inline void store_bf16(uint16_t* to, __mmask16 some, __m512 x) {
    _mm256_mask_storeu_epi16(to, some, (__m256i)_mm512_cvtneps_pbh(x));
}

// Where a panel's results go.
struct Outputs {
    uint16_t* to;  // of the first row and the panel's first output
    int64_t stride;
    const float* scales;
    const uint16_t* bias;
    __mmask16 some[2];

    INLINE void store(int row, int half, __m512 sum) const {
        if (scales) sum = _mm512_mul_ps(sum, _mm512_loadu_ps(scales + 16 * half));
        if (bias) sum = _mm512_add_ps(sum, load_bf16(bias + 16 * half, some[half]));
        store_bf16(to + row * stride + 16 * half, some[half], sum);
    }
};

// R rows of inputs, `stride` dwords apart, times a panel; asks for LINES lines from `ahead` on at every step.
template <int R, int LINES, class Weights>
void rows_by_panel(const Weights& weights, int depth, const uint32_t* x, int64_t stride, const uint8_t* ahead,
                   const Outputs& outputs) {
    // Three rows for each pointer: addresses of one base and twice a stride at most.
    const uint32_t* from[(R + 2) / 3];
    each<(R + 2) / 3>([&](auto i) INLINE { from[i] = x + 3 * i * stride; });
    __m512 sums[R][2];
    each<R>([&](auto i) INLINE { sums[i][0] = sums[i][1] = _mm512_setzero_ps(); });
    for (int k = 0; k < depth; ++k) {
        __m512bh column[2];
        weights.load(k, column);
        each<LINES>([&](auto i) INLINE { _mm_prefetch(reinterpret_cast<const char*>(ahead + 64 * i), _MM_HINT_T1); });
        ahead += 64 * LINES;
        each<R>([&](auto i) INLINE {
            const auto pair = (__m512bh)_mm512_set1_epi32(int(from[i / 3][(i % 3) * stride]));
            sums[i][0] = _mm512_dpbf16_ps(sums[i][0], column[0], pair);
            sums[i][1] = _mm512_dpbf16_ps(sums[i][1], column[1], pair);
        });
        each<(R + 2) / 3>([&](auto i) INLINE { ++from[i]; });
    }
    each<R>([&](auto i) INLINE { outputs.store(i, 0, sums[i][0]), outputs.store(i, 1, sums[i][1]); });
}

template <int LINES, class Weights>
void some_rows_by_panel(int rows, const Weights& weights, int depth, const uint32_t* x, int64_t stride,
                        const uint8_t* ahead, const Outputs& outputs) {
    each<MOST_ROWS>([&](auto less) INLINE {
        if (rows == less + 1) rows_by_panel<less + 1, LINES>(weights, depth, x, stride, ahead, outputs);
    });
}

// A panel of INT8 as BF16, for more rows than go at once.
struct Unpacked {
    std::unique_ptr<uint8_t[]> bytes;
    size_t size = 0;

    const uint8_t* panel(const Integers& weights, int depth) {
        if (size_t(depth) * 128 > size) bytes.reset(new uint8_t[size = size_t(depth) * 128]);
        for (int k = 0; k < depth; ++k) {
            __m512bh column[2];
            weights.load(k, column);
            _mm512_storeu_si512(bytes.get() + 128 * int64_t(k), (__m512i)column[0]);
            _mm512_storeu_si512(bytes.get() + 128 * int64_t(k) + 64, (__m512i)column[1]);
        }
        return bytes.get();
    }
};

// x [rows][inputs] times one panel into y [rows][outputs]. ahead: the panel that comes next.
inline void multiply_panel(const Linear& linear, int index, const uint16_t* x, int rows, uint16_t* y,
                           const uint8_t* ahead) {
    const int depth = linear.depth(), first = index * PANEL, left = linear.outputs - first;
    const auto mask = [&](int from) { return left > from ? first_lanes(left - from) : __mmask16(0); };
    const auto outputs_from = [&](int row) {
        return Outputs{y + int64_t(row) * linear.outputs + first, linear.outputs,
                       linear.scales ? linear.scales + first : nullptr, linear.bias ? linear.bias + first : nullptr,
                       {mask(0), mask(16)}};
    };
    const auto pass = [&](auto lines, const auto& weights, int row, int some, const uint8_t* then) {
        const auto* from = reinterpret_cast<const uint32_t*>(x + int64_t(row) * linear.inputs);
        some_rows_by_panel<lines>(some, weights, depth, from, depth, then, outputs_from(row));
    };
    const uint8_t* panel = linear.panel(index);
    if (rows <= MOST_ROWS && linear.scales) return pass(Number<Integers::LINES>(), Integers(panel), 0, rows, ahead);
    if (rows <= MOST_ROWS) return pass(Number<Floats::LINES>(), Floats{panel}, 0, rows, ahead);
    thread_local Unpacked unpacked;
    if (linear.scales) panel = unpacked.panel(Integers(panel), depth);
    for (int row = 0, left_passes = (rows + MOST_ROWS - 1) / MOST_ROWS; row < rows; --left_passes) {
        const int some = (rows - row + left_passes - 1) / left_passes;
        // Half of what comes next at a time.
        pass(Number<1>(), Floats{panel}, row, some, ahead + (left_passes % 2) * 64 * int64_t(depth));
        row += some;
    }
}

}  // namespace
