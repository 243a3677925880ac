// Rows times a matrix that is packed for them, on AVX-512: one pass over the weights for twelve rows.
//
// A matrix [outputs][inputs] comes in panels of 32 outputs, each of them so many dwords of inputs deep:
//     BF16   panel[k][32]   the weights of inputs 2 k and 2 k + 1, times rows of bfloat16 (vdpbf16ps)
//     INT8   panel[k][32]   those of inputs 4 k to 4 k + 3 as bytes + 128, times rows of digits (vpdpbusd; digits.h)
// Outputs beyond the last are zeros. A sum has one accumulator that takes dwords in order, however many rows there are:
// a row's result is the same in any company.
#pragma once

#include "digits.h"

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
    int depth() const { return inputs / (scales ? 4 : 2); }
    int64_t panel_bytes() const { return int64_t(4 * PANEL) * depth(); }
    const uint8_t* panel(int index) const { return weights + index * panel_bytes(); }

    // A row [inputs] becomes what the weights are multiplied with, where it lies.
    void take(uint16_t* row) const {
        if (scales) to_digits(row, inputs);
    }
};

// Where a panel's results go.
struct Outputs {
    uint16_t* to;  // of the first row and the panel's first output
    int64_t stride;
    const float* scales;
    const uint16_t* bias;
    __mmask16 some[2];

    INLINE void store(int row, int half, __m512 sum) const {
        if (bias) sum = _mm512_add_ps(sum, load_bf16(bias + 16 * half, some[half]));
        store_bf16(to + row * stride + 16 * half, some[half], sum);
    }

    INLINE void store(int row, int half, __m512i sum, float unit) const {
        const __m512 scale = _mm512_mul_ps(_mm512_loadu_ps(scales + 16 * half), _mm512_set1_ps(unit));
        store(row, half, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale));
    }
};

// What is summed up, of two columns of dwords and a row's dword.
struct Floats {
    using Sum = __m512;
    static Sum none(const uint32_t*, int) { return _mm512_setzero_ps(); }
    INLINE static Sum add(Sum sum, __m512i column, int x) {
        return _mm512_dpbf16_ps(sum, (__m512bh)column, (__m512bh)_mm512_set1_epi32(x));
    }
    INLINE static void store(const Outputs& outputs, int row, int half, Sum sum, const uint32_t*, int) {
        outputs.store(row, half, sum);
    }
};

struct Integers {
    using Sum = __m512i;
    // The 128 that each weight has too much.
    static Sum none(const uint32_t* x, int depth) { return _mm512_set1_epi32(digits_end(x, depth).offset); }
    INLINE static Sum add(Sum sum, __m512i column, int x) {
        return _mm512_dpbusd_epi32(sum, column, _mm512_set1_epi32(x));
    }
    INLINE static void store(const Outputs& outputs, int row, int half, Sum sum, const uint32_t* x, int depth) {
        outputs.store(row, half, sum, digits_end(x, depth).unit);
    }
};

// R rows of inputs, `stride` dwords apart, times a panel; asks for LINES lines from `ahead` on at every step.
template <class Kind, int R, int LINES>
void rows_by_panel(const uint8_t* panel, int depth, const uint32_t* x, int64_t stride, const uint8_t* ahead,
                   const Outputs& outputs) {
    // Three rows for each pointer: addresses of one base and twice a stride at most.
    const uint32_t* from[(R + 2) / 3];
    each<(R + 2) / 3>([&](auto i) INLINE { from[i] = x + 3 * i * stride; });
    typename Kind::Sum sums[R][2];
    each<R>([&](auto i) INLINE { sums[i][0] = sums[i][1] = Kind::none(x + i * stride, depth); });
    int k = 0;
    do {
        const __m512i column[2] = {_mm512_loadu_si512(panel), _mm512_loadu_si512(panel + 64)};
        panel += 128;
        each<LINES>([&](auto i) INLINE { _mm_prefetch(reinterpret_cast<const char*>(ahead + 64 * i), _MM_HINT_T1); });
        ahead += 64 * LINES;
        each<R>([&](auto i) INLINE {
            const int factors = int(from[i / 3][(i % 3) * stride]);
            sums[i][0] = Kind::add(sums[i][0], column[0], factors);
            sums[i][1] = Kind::add(sums[i][1], column[1], factors);
        });
        each<(R + 2) / 3>([&](auto i) INLINE { ++from[i]; });
    } while (++k < depth);
    each<R>([&](auto i) INLINE {
        each<2>([&](auto half) INLINE { Kind::store(outputs, i, half, sums[i][half], x + i * stride, depth); });
    });
}

template <class Kind, int LINES>
void some_rows_by_panel(int rows, const uint8_t* panel, int depth, const uint32_t* x, int64_t stride,
                        const uint8_t* ahead, const Outputs& outputs) {
    each<MOST_ROWS>([&](auto less) INLINE {
        if (rows == less + 1) rows_by_panel<Kind, less + 1, LINES>(panel, depth, x, stride, ahead, outputs);
    });
}

template <class Kind>
void all_rows_by_panel(const Linear& linear, int index, const uint16_t* x, int rows, uint16_t* y, const uint8_t* ahead) {
    const int depth = linear.depth(), first = index * PANEL, left = linear.outputs - first;
    const auto mask = [&](int from) { return left > from ? first_lanes(left - from) : __mmask16(0); };
    const auto pass = [&](auto lines, int row, int some, const uint8_t* then) {
        const Outputs outputs{y + int64_t(row) * linear.outputs + first, linear.outputs,
                              linear.scales ? linear.scales + first : nullptr,
                              linear.bias ? linear.bias + first : nullptr, {mask(0), mask(16)}};
        // A row of digits is as far from the next one as the bfloat16 that it was.
        const auto* from = reinterpret_cast<const uint32_t*>(x + int64_t(row) * linear.inputs);
        some_rows_by_panel<Kind, lines>(some, linear.panel(index), depth, from, linear.inputs / 2, then, outputs);
    };
    if (rows <= MOST_ROWS) return pass(Number<2>(), 0, rows, ahead);
    for (int row = 0, left_passes = (rows + MOST_ROWS - 1) / MOST_ROWS; row < rows; --left_passes) {
        const int some = (rows - row + left_passes - 1) / left_passes;
        // Half of what comes next at a time.
        pass(Number<1>(), row, some, ahead + (left_passes % 2) * 64 * int64_t(depth));
        row += some;
    }
}

// x [rows][inputs], as the weights take it, times one panel into y [rows][outputs]. ahead: the panel that comes next.
inline void multiply_panel(const Linear& linear, int index, const uint16_t* x, int rows, uint16_t* y,
                           const uint8_t* ahead) {
    if (linear.scales) all_rows_by_panel<Integers>(linear, index, x, rows, y, ahead);
    else all_rows_by_panel<Floats>(linear, index, x, rows, y, ahead);
}

}  // namespace
