// Rows of bfloat16, and what they become for weights in INT8: digits, a byte for each element.
//
// A row is rotated as the weights' rows are (rotate.h), which changes no product and lets no element stand out; then 127
// is its largest element. It lies where the bfloat16 did, in half of their place, and what belongs to it behind it.
#pragma once

#include <vector>

#include "codec.h"
#include "lanes.h"

namespace {

inline __mmask16 first_lanes(int count) { return count >= 16 ? 0xffff : __mmask16((1 << count) - 1); }

INLINE inline __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

INLINE inline __m512 load_bf16(const uint16_t* from, __mmask16 some) {
    return widen(_mm256_maskz_loadu_epi16(some, from));
}

INLINE inline void store_bf16(uint16_t* to, __mmask16 some, __m512 x) {
    _mm256_mask_storeu_epi16(to, some, (__m256i)_mm512_cvtneps_pbh(x));
}

// What lies behind a row's digits.
struct DigitsEnd {
    float unit;      // what a digit is worth
    int32_t offset;  // - 128 times their sum
};

INLINE inline DigitsEnd digits_end(const uint32_t* row, int depth) {
    DigitsEnd end;
    std::memcpy(&end, row + depth, sizeof end);
    return end;
}

// row bfloat16 [inputs], a multiple of 16. A row with what is no number is worth no number.
inline void to_digits(uint16_t* row, int inputs) {
    thread_local std::vector<float> scratch;
    if (scratch.size() < size_t(inputs)) scratch.resize(inputs);
    float* x = scratch.data();
    for (int i = 0; i < inputs; i += 16) _mm512_storeu_ps(x + i, load_bf16(row + i, 0xffff));
    rotate(x, inputs);
    const float largest = largest_of(x, inputs);
    const __m512 inverse = _mm512_set1_ps(largest > 0 ? 127 / largest : 0);
    auto* digits = reinterpret_cast<uint8_t*>(row);
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < inputs; i += 16) {
        const __m512i some = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), inverse));
        sum = _mm512_add_epi32(sum, some);
        put_bytes(digits + i, some);
    }
    const DigitsEnd end{largest / 127, -128 * _mm512_reduce_add_epi32(sum)};
    std::memcpy(digits + inputs, &end, sizeof end);
}

}  // namespace
