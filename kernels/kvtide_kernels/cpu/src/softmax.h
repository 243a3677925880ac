// A running softmax over the tiles of a sequence.
#pragma once

#include "layout.h"

namespace {

constexpr float LOG2E = 1.44269504088896341f;
constexpr float LOWEST = -1e29f;   // what a row has seen before its first token; finite, so that differences are numbers
constexpr float HIDDEN = -1e30f;   // the score of a token that a row does not see: 2^(HIDDEN - LOWEST) is 0

// What a row has seen: its largest score (of base 2), and the sum of its weights relative to that.
struct Seen {
    float largest = LOWEST, sum = 0;
};

// How a dot of query and key becomes a score of base 2.
struct Scoring {
    float scale, softcap;  // softcap 0: none

    // What dots are multiplied with at once; where there is a cap, the logarithm's base comes after it.
    float factor() const { return softcap > 0 ? scale : scale * LOG2E; }
};

// 2^x for x <= 0, within 2e-7; 0 for x below -126. Cephes' polynomial.
inline float power_of_two(float x) {
    const float bounded = x < -126.0f ? -126.0f : x;
    const float whole = (bounded + 12582912.0f) - 12582912.0f, part = bounded - whole;
    float y = 1.535336188319500e-4f;
    y = y * part + 1.339887440266574e-3f;
    y = y * part + 9.618437357674640e-3f;
    y = y * part + 5.550332471162809e-2f;
    y = y * part + 2.402264791363012e-1f;
    y = y * part + 6.931472028550421e-1f;
    y = y * part + 1.0f;
    return x < -126.0f ? 0.0f : y * float_of_bits(uint32_t(int32_t(whole) + 127) << 23);
}

// cap * tanh(score / cap) of a tile's scores, then of base 2.
inline void cap_scores(float* scores, float softcap) {
    for (int i = 0; i < TILE; ++i) {
        // tanh of |x| by 2^(-2 |x| log2 e), which cannot overflow.
        const float x = scores[i] / softcap, e = power_of_two(-2 * LOG2E * (x < 0 ? -x : x));
        const float t = (1 - e) / (1 + e);
        scores[i] = softcap * LOG2E * (x < 0 ? -t : t);
    }
}

}  // namespace
