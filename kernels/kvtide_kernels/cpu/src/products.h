// AVX-512 with VNNI and BF16: rows of queries or weights times what is packed.
//
// The packed operand is B[k][column] of dwords, four (or for BF16 two) factors in each:
//     scores   column = token, k = elements of the key      a transpose of 16 tokens by 16 dwords
//     values   column = element, k = tokens                 an interleave of 4 (2) tokens
#pragma once

#include "lanes.h"

namespace {

// What rows are made of, and columns with it: pairs of bfloat16; or bytes, signed for columns without a sign, and the
// other way round.
enum class Factors { FLOATS, SIGNED, UNSIGNED };

// Rows of factors, `stride` bytes apart; of integers with two digits, 256 * high + low.
struct Rows {
    int count;
    const void *high, *low;
    int stride;

    const uint8_t* high_of(int row) const { return static_cast<const uint8_t*>(high) + row * stride; }
    const uint8_t* low_of(int row) const { return static_cast<const uint8_t*>(low) + row * stride; }
};

template <Factors FACTORS>
INLINE inline __m512i dot(__m512i sum, __m512i column, __m512i factor) {
    return FACTORS == Factors::SIGNED ? _mm512_dpbusd_epi32(sum, column, factor)
                                      : _mm512_dpbusd_epi32(sum, factor, column);
}

// The sums of a column vector and R rows, in registers: every index is a constant before the compiler looks.
template <Factors FACTORS, int DIGITS, int R, int V>
struct Sums {
    static constexpr bool FLOATS = FACTORS == Factors::FLOATS;
    using Sum = std::conditional_t<FLOATS, __m512, __m512i>;
    Sum high[R * V] = {}, low[DIGITS == 2 ? R * V : 1] = {};

    // Column j's dword k.
    template <class Column>
    INLINE void add(const Rows& rows, int row, int k, const Column& column) {
        each<R>([&](auto i) INLINE {
            const __m512i first = _mm512_set1_epi32(dword(rows.high_of(row + i), k));
            if constexpr (FLOATS) {
                each<V>([&](auto j) INLINE {
                    high[i * V + j] = _mm512_dpbf16_ps(high[i * V + j], (__m512bh)column[j], (__m512bh)first);
                });
            } else {
                each<V>([&](auto j) INLINE { high[i * V + j] = dot<FACTORS>(high[i * V + j], column[j], first); });
                if constexpr (DIGITS == 2) {
                    const __m512i second = _mm512_set1_epi32(dword(rows.low_of(row + i), k));
                    each<V>([&](auto j) INLINE { low[i * V + j] = dot<FACTORS>(low[i * V + j], column[j], second); });
                }
            }
        });
    }

    // store(row, vector, sum)
    template <class Store>
    INLINE void give(int row, int v, Store&& store) const {
        each<R>([&](auto i) INLINE {
            each<V>([&](auto j) INLINE {
                if constexpr (DIGITS == 2)
                    store(row + i, v + j, _mm512_add_epi32(_mm512_slli_epi32(high[i * V + j], 8), low[i * V + j]));
                else
                    store(row + i, v + j, high[i * V + j]);
            });
        });
    }
};

template <Factors FACTORS, int DIGITS, int R, int V, class Store>
inline void packed_block(const uint32_t* packed, int ldb, int depth, const Rows& rows, int row, int v, Store&& store) {
    const uint32_t* from = packed + 16 * v;
    Sums<FACTORS, DIGITS, R, V> sums;
    int k = 0;
    do {
        __m512i column[V];
        each<V>([&](auto j) INLINE { column[j] = _mm512_load_si512(from + 16 * j); });
        sums.add(rows, row, k, column);
        from += ldb;
    } while (++k < depth);
    sums.give(row, v, store);
}

// store(row, v, sums) for every row and vector v of 16 columns of packed [depth][ldb].
// Asks for what `ahead` has left, some of it before each block.
template <Factors FACTORS, int DIGITS, class Store>
inline void multiply(const uint32_t* packed, int ldb, int depth, int vectors, const Rows& rows, Ahead ahead,
                     Store&& store) {
    // As many sums as there are registers for.
    constexpr int MOST = DIGITS == 2 ? 3 : 6;
    ahead.share((rows.count + MOST - 1) / MOST * ((vectors + 3) / 4));
    const auto with = [&](auto nr, int row) {
        int v = 0;
        const auto block = [&](auto nv) INLINE {
            ahead.ask();
            packed_block<FACTORS, DIGITS, nr, nv>(packed, ldb, depth, rows, row, v, store);
            v += nv;
        };
        while (v + 4 <= vectors) block(Number<4>());
        while (v + 2 <= vectors) block(Number<2>());
        if (v < vectors) block(Number<1>());
    };
    for (int row = 0; row < rows.count;) {
        const int left = rows.count - row;
        if (left >= MOST && left != 8) with(Number<MOST>(), row), row += MOST;
        else if (MOST > 4 && left >= 4) with(Number<4>(), row), row += 4;
        else if (left >= MOST) with(Number<MOST>(), row), row += MOST;
        else if (left >= 2) with(Number<2>(), row), row += 2;
        else with(Number<1>(), row), row += 1;
    }
}

}  // namespace
