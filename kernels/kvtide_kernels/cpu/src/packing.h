// AVX-512: stored tokens as the operand of products.h. INT8 and INT4 are never converted to anything wider.
//
//     keys     unsigned bytes: INT8 + 128, which is taken off by the row's sum; INT4 as it is
//     values   signed bytes: INT8 as it is; INT4 as 16 (n - 8), which its zero point is moved for. What weights lose by
//              rounding then multiplies something around zero
#pragma once

#include "products.h"

namespace {

constexpr int NIBBLE_UNIT = 16;  // what values of INT4 are multiplied with
constexpr int NIBBLE_MIDDLE = 8;

// The even and the odd elements of bytes of INT4 keys.
INLINE inline __m512i even_keys(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
INLINE inline __m512i odd_keys(__m512i x) { return even_keys(_mm512_srli_epi16(x, 4)); }

// And of values: the upper half of a byte, its highest bit turned over.
INLINE inline __m512i odd_values(__m512i x) {
    return _mm512_ternarylogic_epi32(x, _mm512_set1_epi8(char(0xf0)), _mm512_set1_epi8(char(0x80)), 0x6a);
}
INLINE inline __m512i even_values(__m512i x) { return odd_values(_mm512_slli_epi16(x, 4)); }

// Columns of values, as interleaving 64 bytes at a time leaves and may pad them: of INT4 all even elements, then the odd.
inline int columns_of(int format, int dim) {
    const int bytes = vector_bytes(format, dim), padded = (bytes + 31) / 32 * 32;
    return format == BF16 ? bytes / 2 : format == INT8 ? padded : 2 * padded;
}

// body(element, column) for each four that stay together; of INT4, for the even ones of eight elements.
template <int FORMAT, class Body>
INLINE inline void each_four(int dim, Body&& body) {
    constexpr int PARTS = FORMAT == INT4 ? 2 : 1;
    constexpr int per_chunk = FORMAT == BF16 ? 32 : 64, per_lane = per_chunk / 4;  // columns of 64 and of 16 bytes
    const int whole = columns_of(FORMAT, dim) / PARTS, places = dim / PARTS;
    for (int place = 0; place < places; place += 4) {
        const int chunk = place / per_chunk * per_chunk, lanes = whole - chunk >= per_chunk ? 4 : 2;
        const int lane = (place - chunk) / per_lane, output = place % per_lane / 4;
        body(PARTS * place, chunk + output * 4 * lanes + lane * 4);
    }
}

// A row's sums in the order of its elements, and back; `more` is added to each.
template <int FORMAT>
inline void columns_to_elements(int dim, const float* columns, float more, float* x) {
    const int odd = columns_of(FORMAT, dim) / 2;
    const __m128 add = _mm_set1_ps(more);
    each_four<FORMAT>(dim, [&](int element, int column) INLINE {
        const __m128 four = _mm_add_ps(_mm_loadu_ps(columns + column), add);
        if (FORMAT != INT4) return _mm_storeu_ps(x + element, four);
        const __m128 others = _mm_add_ps(_mm_loadu_ps(columns + odd + column), add);
        _mm_storeu_ps(x + element, _mm_unpacklo_ps(four, others));
        _mm_storeu_ps(x + element + 4, _mm_unpackhi_ps(four, others));
    });
}

template <int FORMAT>
inline void elements_to_columns(int dim, const float* x, float* columns) {
    const int odd = columns_of(FORMAT, dim) / 2;
    each_four<FORMAT>(dim, [&](int element, int column) INLINE {
        const __m128 a = _mm_loadu_ps(x + element);
        if (FORMAT != INT4) return _mm_storeu_ps(columns + column, a);
        const __m128 b = _mm_loadu_ps(x + element + 4);
        _mm_storeu_ps(columns + column, _mm_shuffle_ps(a, b, 0x88));
        _mm_storeu_ps(columns + odd + column, _mm_shuffle_ps(a, b, 0xdd));
    });
}

inline void put(uint32_t* to, __m512i x) { _mm512_store_si512(to, x); }

// Of 32 bytes only the lower halves hold anything.
INLINE inline void put_pair(uint32_t* to, __m512i a, __m512i b, bool half) {
    if (half) return put(to, _mm512_inserti64x4(a, _mm512_castsi512_si256(b), 1));
    put(to, a), put(to + 16, b);
}

INLINE inline void put_quad(uint32_t* to, __m512i a, __m512i b, __m512i c, __m512i d, bool half) {
    put_pair(to, a, b, half);
    put_pair(to + (half ? 16 : 32), c, d, half);
}

// Group g of a tile's keys, as columns 16 g to 16 g + 15 of packed [dwords][TILE].
template <bool WHOLE>
inline void pack_keys(const Tokens& some, const Tokens& next, int format, int bytes, int g, uint32_t* packed) {
    for (int at = 0; at < bytes; at += 64) {
        __m512i r[16];
        const __mmask64 mask = first_bytes(bytes - at);
        prefetch(next, 16 * at, HALF_LINES);
        for (int t = 0; t < 16; ++t) r[t] = load<WHOLE>(some, t, at, mask);
        transpose(r);
        const int rows = bytes - at < 64 ? (bytes - at) / 4 : 16;
        for (int j = 0; j < rows; ++j) {
            const int row = at / 4 + j;
            if (format == INT4) {
                put(packed + 2 * row * TILE + 16 * g, even_keys(r[j]));
                put(packed + (2 * row + 1) * TILE + 16 * g, odd_keys(r[j]));
            } else {
                put(packed + row * TILE + 16 * g,
                    format == INT8 ? _mm512_xor_si512(r[j], _mm512_set1_epi8(char(0x80))) : r[j]);
            }
        }
    }
}

// Group g of a tile's values, as rows of packed [tokens / 4 or 2][width].
template <bool WHOLE>
inline void pack_values(const Tokens& some, const Tokens& next, int format, int bytes, int width, int g,
                        uint32_t* packed) {
    for (int at = 0; at < bytes; at += 64) {
        const __mmask64 mask = first_bytes(bytes - at);
        const bool half = bytes - at <= 32;
        for (int t = 0; t < 16; t += 4) {
            prefetch(next, 16 * at + 16 * HALF_LINES * (t / 4), HALF_LINES / 4);
            const __m512i t0 = load<WHOLE>(some, t, at, mask), t1 = load<WHOLE>(some, t + 1, at, mask);
            const __m512i t2 = load<WHOLE>(some, t + 2, at, mask), t3 = load<WHOLE>(some, t + 3, at, mask);
            if (format == BF16) {
                uint32_t* to = packed + (8 * g + t / 2) * width + at / 4 * 2;
                put_pair(to, _mm512_unpacklo_epi16(t0, t1), _mm512_unpackhi_epi16(t0, t1), half);
                put_pair(to + width, _mm512_unpacklo_epi16(t2, t3), _mm512_unpackhi_epi16(t2, t3), half);
                continue;
            }
            const __m512i a = _mm512_unpacklo_epi8(t0, t1), b = _mm512_unpackhi_epi8(t0, t1);
            const __m512i c = _mm512_unpacklo_epi8(t2, t3), d = _mm512_unpackhi_epi8(t2, t3);
            const __m512i o0 = _mm512_unpacklo_epi16(a, c), o1 = _mm512_unpackhi_epi16(a, c);
            const __m512i o2 = _mm512_unpacklo_epi16(b, d), o3 = _mm512_unpackhi_epi16(b, d);
            uint32_t* to = packed + (4 * g + t / 4) * width + at;
            if (format == INT8) {
                put_quad(to, o0, o1, o2, o3, half);
            } else {
                put_quad(to, even_values(o0), even_values(o1), even_values(o2), even_values(o3), half);
                put_quad(to + width / 2, odd_values(o0), odd_values(o1), odd_values(o2), odd_values(o3), half);
            }
        }
    }
}

// For few rows keys are multiplied while they are in registers: storing them costs as much as multiplying.
template <int FORMAT, int DIGITS, int R, bool WHOLE, class Store>
inline void multiply_few(const Tokens& some, const Tokens& next, int bytes, const Rows& rows, int g, Store&& store) {
    Sums<FORMAT == BF16 ? Factors::FLOATS : Factors::SIGNED, DIGITS, R, 1> sums;
    for (int at = 0; at < bytes; at += 64) {
        const __mmask64 mask = first_bytes(bytes - at);
        __m512i r[16];
        each<16>([&](auto t) INLINE { r[t] = load<WHOLE>(some, t, at, mask); });
        transpose(r);
        const int held = (bytes - at) / 4;
        each<16>([&](auto j) INLINE {
            prefetch(next, 16 * at + 64 * j, 1);
            if (!WHOLE && j >= held) return;
            const int k = at / 4 + j;
            const auto add = [&](int at_k, __m512i x) INLINE {
                const __m512i column[1] = {x};
                sums.add(rows, 0, at_k, column);
            };
            if constexpr (FORMAT == BF16) {
                add(k, r[j]);
            } else if constexpr (FORMAT == INT8) {
                add(k, _mm512_xor_si512(r[j], _mm512_set1_epi8(char(0x80))));
            } else {
                add(2 * k, even_keys(r[j]));
                add(2 * k + 1, odd_keys(r[j]));
            }
        });
    }
    sums.give(0, g, store);
}

}  // namespace
