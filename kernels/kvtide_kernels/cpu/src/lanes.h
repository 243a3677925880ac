// AVX-512: loops without a loop, loads of packed tokens, and the transpose of sixteen of them.
#pragma once

#include <immintrin.h>

#include <type_traits>
#include <utility>

#include "layout.h"

#define INLINE __attribute__((always_inline))

namespace {

template <int N>
using Number = std::integral_constant<int, N>;

template <class Body, int... I>
INLINE inline void each_of(Body&& body, std::integer_sequence<int, I...>) {
    (body(Number<I>()), ...);
}

// body(Number<0>()) to body(Number<N - 1>())
template <int N, class Body>
INLINE inline void each(Body&& body) {
    each_of(body, std::make_integer_sequence<int, N>());
}

// 2^x for x <= 0, within 4e-6 of it: a weight is rounded to sixteen bits at best.
INLINE inline __m512 power(__m512 x) {
    const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), part = _mm512_sub_ps(x, whole);
    __m512 y = _mm512_set1_ps(9.57010127604e-3f);
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(5.59178628027e-2f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(2.40247443318e-1f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(6.93121790886e-1f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(9.99999284744e-1f));
    return _mm512_scalef_ps(y, whole);
}

// The same within 8e-5, which is little to a weight of eight bits.
INLINE inline __m512 weight(__m512 x) {
    constexpr int TO_FLOOR = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    const __m512 part = _mm512_reduce_ps(x, TO_FLOOR);
    __m512 y = _mm512_set1_ps(7.80240564009e-2f);
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(2.26067917507e-1f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(6.95833194077e-1f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(9.99925257871e-1f));
    return _mm512_scalef_ps(y, x);
}

// 1 / x within an ulp or two, for less than a division takes: by a step of Newton's.
INLINE inline __m512 reciprocal(__m512 x) {
    const __m512 y = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(y, _mm512_fnmadd_ps(x, y, _mm512_set1_ps(2)));
}

// log2(x) of a positive x that is no subnormal, within 2e-6: by the series of atanh.
INLINE inline __m512 logarithm(__m512 x) {
    const __m512 exponent = _mm512_getexp_ps(x), one = _mm512_set1_ps(1);
    const __m512 mantissa = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
    // From 1 to 2, taken by its middle: the ratio stays within 0.172.
    const __m512 middle = _mm512_set1_ps(1.41421356237f);
    const __m512 t = _mm512_mul_ps(_mm512_sub_ps(mantissa, middle), reciprocal(_mm512_add_ps(mantissa, middle)));
    const __m512 square = _mm512_mul_ps(t, t);
    __m512 y = _mm512_fmadd_ps(square, _mm512_set1_ps(1.0f / 7), _mm512_set1_ps(1.0f / 5));
    y = _mm512_fmadd_ps(y, square, _mm512_set1_ps(1.0f / 3));
    y = _mm512_mul_ps(_mm512_fmadd_ps(y, square, one), t);
    return _mm512_fmadd_ps(y, _mm512_set1_ps(2.88539008178f), _mm512_add_ps(exponent, _mm512_set1_ps(0.5f)));
}

inline int32_t dword(const uint8_t* from, int index) {
    int32_t x;
    std::memcpy(&x, from + 4 * index, 4);
    return x;
}

// The lowest byte of each.
inline void put_bytes(uint8_t* to, __m512i x) {
    _mm_store_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x));
}

constexpr auto PREFETCH = _MM_HINT_T1;

// Asks for `lines` lines of the next tokens. Always inlined, as GCC takes a call of a function that only prefetches for
// one without an effect.
INLINE inline void prefetch(const Tokens& next, int at, int lines) {
    if (!next.data) return;
    for (int i = 0; i < lines; ++i) _mm_prefetch(reinterpret_cast<const char*>(next.data + at + 64 * i), PREFETCH);
}

// A group of tokens comes in chunks of 64 bytes of each, which are sixteen lines. Packing one asks for half of the next
// tile's, and what multiplies it, by Ahead, for the others: all of them at once are more than a core can wait for, and
// while it only multiplies the memory would have nothing to do.
constexpr int HALF_LINES = 8;

class Ahead {
  public:
    Ahead(const Tokens* next, int bytes) : next_(next), end_(GROUP * bytes) {}

    // To be asked for in so many turns.
    void share(int turns) { chunks_ = ((end_ + 1023) / 1024 * (TILE / GROUP) + turns - 1) / turns; }

    INLINE void ask() {
        for (int i = 0; i < chunks_ && group_ < TILE / GROUP; ++i) {
            prefetch(next_[group_], at_ + 64 * HALF_LINES, HALF_LINES);
            at_ += 64 * GROUP;
            if (at_ >= end_) at_ = 0, ++group_;
        }
    }

  private:
    const Tokens* next_;
    int end_, chunks_ = 0, group_ = 0, at_ = 0;
};

INLINE inline void prefetch_scales(const Tokens& next) {
    if (next.scale) _mm_prefetch(reinterpret_cast<const char*>(next.scale), PREFETCH);
    if (next.zero) _mm_prefetch(reinterpret_cast<const char*>(next.zero), PREFETCH);
}

// Whether all sixteen tokens are somebody's, and their vectors are multiples of 64 bytes.
inline bool is_whole(const Tokens& some, int bytes) { return some.from == 0 && some.to == GROUP && bytes % 64 == 0; }

inline __mmask64 first_bytes(int count) { return count >= 64 ? ~__mmask64(0) : (__mmask64(1) << count) - 1; }

// 64 bytes of a token; zeros for one that is nobody's.
template <bool WHOLE>
INLINE inline __m512i load(const Tokens& some, int token, int at, __mmask64 mask) {
    if constexpr (WHOLE) return _mm512_loadu_si512(some.data + token * some.stride + at);
    if (token < some.from || token >= some.to) return _mm512_setzero_si512();
    return _mm512_maskz_loadu_epi8(mask, some.data + token * some.stride + at);
}

// r[token], dword i becomes r[i], dword token.
INLINE inline void transpose(__m512i* r) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 4) {
        const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]), b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]), d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
        t[i] = _mm512_unpacklo_epi64(a, c), t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d), t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    // t[4 i + j], lane l: dword 4 l + j of the tokens 4 i to 4 i + 3.
    for (int j = 0; j < 4; ++j) {
        const __m512i a = _mm512_shuffle_i32x4(t[j], t[4 + j], 0x88), b = _mm512_shuffle_i32x4(t[j], t[4 + j], 0xdd);
        const __m512i c = _mm512_shuffle_i32x4(t[8 + j], t[12 + j], 0x88);
        const __m512i d = _mm512_shuffle_i32x4(t[8 + j], t[12 + j], 0xdd);
        r[j] = _mm512_shuffle_i32x4(a, c, 0x88), r[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
        r[8 + j] = _mm512_shuffle_i32x4(a, c, 0xdd), r[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

}  // namespace
