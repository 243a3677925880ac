// The normalised Walsh-Hadamard transform of each run of the largest power of two that divides dim. Its own inverse.
#pragma once

#include <cmath>
#include <utility>

#include "layout.h"
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)

// Neighbours HALF apart: sums where the first was, differences where the second was.
template <int HALF>
inline __m512 butterfly(__m512 x) {
    const __m512i place = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512 other = _mm512_permutexvar_ps(_mm512_xor_si512(place, _mm512_set1_epi32(HALF)), x);
    constexpr __mmask16 SECOND = HALF == 8 ? 0xff00 : HALF == 4 ? 0xf0f0 : HALF == 2 ? 0xcccc : 0xaaaa;
    return _mm512_mask_sub_ps(_mm512_add_ps(other, x), SECOND, other, x);
}

// No served size has runs of less than sixteen.
inline void rotate(float* x, int dim) {
    const int run = dim & -dim;
    const __m512 norm = _mm512_set1_ps(1.0f / std::sqrt(float(run)));
    for (float* at = x; at < x + dim; at += 16) {
        const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(at), norm);
        _mm512_storeu_ps(at, butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(scaled)))));
    }
    for (float* part = x; part < x + dim; part += run)
        for (int half = 16; half < run; half *= 2)
            for (int i = 0; i < run; i += 16) {
                if (i & half) continue;
                const __m512 a = _mm512_loadu_ps(part + i), b = _mm512_loadu_ps(part + i + half);
                _mm512_storeu_ps(part + i, _mm512_add_ps(a, b));
                _mm512_storeu_ps(part + i + half, _mm512_sub_ps(a, b));
            }
}

#else

// Each stage takes neighbours and puts sums in front of differences: the same for all stages, which vectors like.
inline void rotate(float* x, int dim) {
    const int run = dim & -dim;
    const float norm = 1.0f / std::sqrt(float(run));
    float other[MAX_DIM];
    for (float* part = x; part < x + dim; part += run) {
        float *from = part, *to = other;
        for (int stage = 1; stage < run; stage *= 2) {
#pragma omp simd
            for (int i = 0; i < run / 2; ++i) {
                to[i] = from[2 * i] + from[2 * i + 1];
                to[i + run / 2] = from[2 * i] - from[2 * i + 1];
            }
            std::swap(from, to);
        }
        for (int i = 0; i < run; ++i) part[i] = from[i] * norm;
    }
}

#endif

}  // namespace
