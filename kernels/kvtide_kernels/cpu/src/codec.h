// Encoding and decoding single vectors, to the contract of kvtide_kernels/codec.py.
#pragma once

#include <cmath>
#include <utility>

#include "rotate.h"

namespace {

// Rounds half to even, for |x| < 2^22: the sum has no room for a fraction.
inline float round_even(float x) { return (x + 12582912.0f) - 12582912.0f; }

inline void round_to_bf16(const float* x, int dim, uint16_t* to) {
    for (int i = 0; i < dim; ++i) to[i] = bf16_of(x[i]);
}

constexpr float LARGEST_HALF = 65504.0f;

// The largest size; NaN where an element is.
inline float largest_of(const float* x, int dim) {
    float largest = 0, nothing = 0;
#pragma omp simd reduction(max : largest) reduction(+ : nothing)
    for (int i = 0; i < dim; ++i) {
        const float size = x[i] < 0 ? -x[i] : x[i];
        largest = size > largest ? size : largest;
        nothing += x[i] * 0;
    }
    return largest + nothing;
}

struct Slot {
    uint8_t* data;
    uint16_t *scale, *zero;
};

inline Slot slot_of(const Side& side, int64_t block, int head, int place, int block_size) {
    uint8_t* start = side.base + block * side.block_stride + head * side.head_stride;
    const int64_t bytes = side.vector_bytes();
    auto* scales = reinterpret_cast<uint16_t*>(start + block_size * bytes);
    return {start + place * bytes, scales + place, scales + block_size + place};
}

inline void encode_int8(const float* x, int dim, const Slot& slot) {
    *slot.scale = half_of(largest_of(x, dim) / 127.0f);
    const float scale = float_of_half(*slot.scale);
    if (!(scale > 0 && scale <= LARGEST_HALF)) {
        if (scale != 0) *slot.scale = half_of(NAN);
        std::memset(slot.data, 0, dim);
        return;
    }
    for (int i = 0; i < dim; ++i) {
        const float q = round_even(x[i] / scale);
        reinterpret_cast<int8_t*>(slot.data)[i] = int8_t(q < -127 ? -127 : q > 127 ? 127 : q);
    }
}

// Of a rotated vector.
inline void encode_int4(const float* x, int dim, const Slot& slot) {
    float low = x[0], high = x[0];
    float nothing = 0;  // or NaN, as in largest_of
#pragma omp simd reduction(min : low) reduction(max : high) reduction(+ : nothing)
    for (int i = 0; i < dim; ++i) {
        nothing += x[i] * 0;
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    *slot.zero = half_of(low);
    *slot.scale = half_of((high - low) / 15.0f + nothing);
    const float zero = float_of_half(*slot.zero), scale = float_of_half(*slot.scale);
    if (!(scale > 0 && scale <= LARGEST_HALF && zero >= -LARGEST_HALF && zero <= LARGEST_HALF)) {
        if (!(scale == 0 && zero >= -LARGEST_HALF && zero <= LARGEST_HALF)) {
            *slot.scale = half_of(NAN);
            *slot.zero = 0;
        }
        std::memset(slot.data, 0, dim / 2);
        return;
    }
    for (int i = 0; i < dim; i += 2) {
        uint8_t nibble[2];
        for (int j = 0; j < 2; ++j) {
            const float q = round_even((x[i + j] - zero) / scale);
            nibble[j] = uint8_t(q < 0 ? 0 : q > 15 ? 15 : q);
        }
        slot.data[i / 2] = uint8_t(nibble[0] | nibble[1] << 4);
    }
}

// x is overwritten.
inline void encode(const Side& side, float* x, const Slot& slot) {
    if (side.format == BF16) return round_to_bf16(x, side.dim, reinterpret_cast<uint16_t*>(slot.data));
    if (side.format == INT8) return encode_int8(x, side.dim, slot);
    rotate(x, side.dim);
    encode_int4(x, side.dim, slot);
}

// The stored vector in float32, rotated still where the format rotates.
inline void decode(int format, int dim, const uint8_t* data, uint16_t scale, uint16_t zero, float* x) {
    if (format == BF16) {
        const auto* from = reinterpret_cast<const uint16_t*>(data);
        for (int i = 0; i < dim; ++i) x[i] = float_of_bf16(from[i]);
    } else if (format == INT8) {
        const float s = float_of_half(scale);
        for (int i = 0; i < dim; ++i) x[i] = s * float(reinterpret_cast<const int8_t*>(data)[i]);
    } else {
        const float s = float_of_half(scale), z = float_of_half(zero);
        for (int i = 0; i < dim / 2; ++i) {
            x[2 * i] = s * float(data[i] & 15) + z;
            x[2 * i + 1] = s * float(data[i] >> 4) + z;
        }
    }
}

}  // namespace
