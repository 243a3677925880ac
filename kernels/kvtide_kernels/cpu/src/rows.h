// What a decoder does to rows between its matrices, rounding to bfloat16 where transformers does.
#pragma once

#include <cmath>

#include "linear.h"

namespace {

INLINE inline __m512 rounded(__m512 x) { return widen((__m256i)_mm512_cvtneps_pbh(x)); }

// body(i, lanes) for i = 0, 16, ... below count.
template <class Body>
INLINE inline void for_lanes(int count, Body&& body) {
    for (int i = 0; i < count; i += 16) body(i, first_lanes(count - i));
}

// RMSNorm. once: scales are float32 and a result is rounded at its end, as Gemma has it; elsewhere scales are bfloat16
// and are multiplied with what is already rounded.
struct Norm {
    const void* scale;
    int32_t size, once;
    float epsilon;

    // Of row `which` of scales; from and to may be the same.
    void run(const uint16_t* from, uint16_t* to, int which = 0) const {
        const int64_t first = int64_t(which) * size;
        __m512 squares = _mm512_setzero_ps();
        for_lanes(size, [&](int i, __mmask16 some) INLINE {
            const __m512 x = load_bf16(from + i, some);
            squares = _mm512_fmadd_ps(x, x, squares);
        });
        const __m512 inverse = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / float(size) + epsilon));
        for_lanes(size, [&](int i, __mmask16 some) INLINE {
            const __m512 x = _mm512_mul_ps(load_bf16(from + i, some), inverse);
            const auto* wide = static_cast<const float*>(scale) + first + i;
            const auto* narrow = static_cast<const uint16_t*>(scale) + first + i;
            store_bf16(to + i, some, once ? _mm512_mul_ps(x, _mm512_maskz_loadu_ps(some, wide))
                                          : _mm512_mul_ps(rounded(x), load_bf16(narrow, some)));
        });
    }
};

inline void add_row(const uint16_t* x, uint16_t* to, int size) {
    for_lanes(size, [&](int i, __mmask16 some) INLINE {
        store_bf16(to + i, some, _mm512_add_ps(load_bf16(to + i, some), load_bf16(x + i, some)));
    });
}

// The rotary embedding of a head's first `size` elements; the other ones as they are. sin has its sign.
inline void rotate_head(const uint16_t* from, uint16_t* to, int dim, int size, const uint16_t* cos,
                        const uint16_t* sin) {
    const int half = size / 2;
    const auto turned = [](__m512 x, __m512 other, __m512 c, __m512 s) INLINE {
        return _mm512_add_ps(rounded(_mm512_mul_ps(x, c)), rounded(_mm512_mul_ps(other, s)));
    };
    for_lanes(half, [&](int i, __mmask16 some) INLINE {
        const __m512 a = load_bf16(from + i, some), b = load_bf16(from + half + i, some);
        store_bf16(to + i, some, turned(a, b, load_bf16(cos + i, some), load_bf16(sin + i, some)));
        store_bf16(to + half + i, some, turned(b, a, load_bf16(cos + half + i, some), load_bf16(sin + half + i, some)));
    });
    std::memcpy(to + size, from + size, 2 * (dim - size));
}

// e^x within an ulp or two; infinite and 0 where float32 ends.
INLINE inline __m512 exponential(__m512 x) {
    const __m512 scaled = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f));
    const __m512 whole = _mm512_roundscale_ps(scaled, _MM_FROUND_TO_NEAREST_INT);
    __m512 part = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693359375f), x);
    part = _mm512_fnmadd_ps(whole, _mm512_set1_ps(-2.12194440e-4f), part);
    // Cephes' polynomial.
    __m512 y = _mm512_set1_ps(1.9875691500e-4f);
    for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(c));
    y = _mm512_fmadd_ps(_mm512_mul_ps(part, part), y, _mm512_add_ps(part, _mm512_set1_ps(1)));
    return _mm512_scalef_ps(y, whole);
}

INLINE inline __m512 silu(__m512 x) {
    const __m512 one = _mm512_set1_ps(1);
    // Beyond, e^-x is infinite or nothing anyway, and the differences of its parts would be no numbers.
    const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(-100), _mm512_min_ps(_mm512_set1_ps(100), x));
    return _mm512_div_ps(x, _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), bounded))));
}

// GELU by tanh, as torch computes it: x / 2 (1 + tanh u), and tanh u = 1 - 2 / (e^2u + 1).
INLINE inline __m512 gelu(__m512 x) {
    const __m512 one = _mm512_set1_ps(1), cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
    __m512 u = _mm512_mul_ps(_mm512_set1_ps(0.79788456080286536f), _mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x));
    u = _mm512_max_ps(_mm512_set1_ps(-20), _mm512_min_ps(_mm512_set1_ps(20), u));
    const __m512 more = _mm512_add_ps(one, exponential(_mm512_add_ps(u, u)));
    const __m512 tanh = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2), more));
    return _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(0.5f), x), _mm512_add_ps(one, tanh));
}

enum Gate : int32_t { SILU = 0, GELU_TANH = 1 };

// gate(first half) times the second.
template <int GATE>
void gate_row(const uint16_t* gate_up, uint16_t* to, int size) {
    for_lanes(size, [&](int i, __mmask16 some) INLINE {
        const __m512 gate = load_bf16(gate_up + i, some), up = load_bf16(gate_up + size + i, some);
        store_bf16(to + i, some, _mm512_mul_ps(rounded(GATE == SILU ? silu(gate) : gelu(gate)), up));
    });
}

}  // namespace
