// A tile of tokens for AVX-512 with VNNI and BF16.
//
// BF16 is multiplied as it is (vdpbf16ps). INT8 and INT4 are multiplied as bytes (vpdpbusd), with weights of one digit, a
// byte, and queries of one or of two, 256 * high + low. The sums are exact. Keys of INT4, which lose some twenty times
// what one digit does, are met by queries of one, and so are keys of INT8 in a basis, in which no element of a query
// stands out; docs/kernels.md has what it costs.
//
// A value's scale joins its token's score, as an exponent: score + log2(scale). What comes out of the softmax is then
// weight * scale, relative to the largest of it that the row has in the tile, which is what makes one digit enough.
#pragma once

#include "codec.h"
#include "packing.h"
#include "softmax.h"

namespace {

class Tile {
  public:
    // Sums of values are in an order of the tile's own, and may be padded.
    static int columns(int format, int dim) { return columns_of(format, dim); }
    static void into_columns(int format, int dim, const float* x, float* sums) {
        if (format == BF16) elements_to_columns<BF16>(dim, x, sums);
        else if (format == INT8) elements_to_columns<INT8>(dim, x, sums);
        else elements_to_columns<INT4>(dim, x, sums);
    }

    // query [rows][dim], rotated where the keys are. spread: whether no element of a query stands out.
    void begin(const float* query, int rows, int key_format, int dim, bool spread, int value_format, int value_dim,
               Scoring scoring, const Seen* seen) {
        rows_ = rows, dim_ = dim, format_ = key_format, softcap_ = scoring.softcap;
        value_format_ = value_format, value_dim_ = value_dim;
        query_digits_ = key_format == INT8 && !spread ? 2 : 1;
        value_unit_ = value_format == BF16 ? 1 : value_format == INT8 ? 1 / LEVELS : 1 / LEVELS / NIBBLE_UNIT;
        for (int row = 0; row < rows; ++row, query += dim) {
            set_query(query, row, scoring.factor());
            largest_[row] = seen[row].largest;
            _mm512_store_ps(sum_ + 16 * row, _mm512_maskz_mov_ps(1, _mm512_set1_ps(seen[row].sum)));
            _mm512_store_ps(offset_ + 16 * row, _mm512_setzero_ps());
        }
    }

    // Scores of ng groups of keys; asks for the next ones.
    void score(const Tokens* groups, int ng, const Tokens* next) {
        if (format_ == BF16) return score_by<BF16, 1>(groups, ng, next);
        load_scales(groups, ng, format_);
        if (format_ == INT4) return score_by<INT4, 1>(groups, ng, next);
        query_digits_ == 1 ? score_by<INT8, 1>(groups, ng, next) : score_by<INT8, 2>(groups, ng, next);
    }

    // Scores become weights of values as they are stored, of the tokens [from, to) = seen(row) of the tile.
    template <class Bounds>
    void weigh(const Tokens* values, int ng, Bounds&& seen) {
        expect_values(values, ng);
        for (int row = 0; row < rows_; ++row) {
            const auto [from, to] = seen(row);
            find_largest(row, from, to);
        }
        compare();
        for (int row = 0; row < rows_; ++row) {
            if (value_format_ == BF16) weigh_row<BF16>(row);
            else if (value_format_ == INT8) weigh_row<INT8>(row);
            else weigh_row<INT4>(row);
        }
    }

    // sums [rows][columns], of what came before and of ng groups of values by their weights.
    void accumulate(const Tokens* groups, int ng, const Tokens* next, float* sums) {
        const int width = columns(value_format_, value_dim_), bytes = vector_bytes(value_format_, value_dim_);
        for (int g = 0; g < ng; ++g) {
            prefetch_scales(next[g]);
            if (is_whole(groups[g], bytes)) pack_values<true>(groups[g], next[g], value_format_, bytes, width, g, packed_);
            else pack_values<false>(groups[g], next[g], value_format_, bytes, width, g, packed_);
        }
        const auto add = [&](int row, int v, __m512 sum) INLINE {
            float* to = sums + row * width + 16 * v;
            const __m512 old = _mm512_mul_ps(_mm512_loadu_ps(to), _mm512_set1_ps(decay_[row]));
            _mm512_storeu_ps(to, _mm512_fmadd_ps(sum, _mm512_set1_ps(unit_[row]), old));
        };
        const auto add_integers = [&](int row, int v, __m512i sum) INLINE { add(row, v, _mm512_cvtepi32_ps(sum)); };
        const Rows digits{rows_, weight_digits_, nullptr, TILE}, floats{rows_, weight_bf16_, nullptr, 2 * TILE};
        const int depth = value_format_ == BF16 ? ng * 8 : ng * 4;
        if (value_format_ == BF16)
            multiply<Factors::FLOATS, 1>(packed_, width, depth, width / 16, floats, Ahead(next, bytes), add);
        else
            multiply<Factors::UNSIGNED, 1>(packed_, width, depth, width / 16, digits, Ahead(next, bytes), add_integers);
    }

    // A row's sums in the order of their elements, and what it has seen.
    void end(int row, const float* sums, float* x, Seen& seen) const {
        seen.largest = largest_[row];
        seen.sum = _mm512_reduce_add_ps(_mm512_load_ps(sum_ + 16 * row));
        const float more = _mm512_reduce_add_ps(_mm512_load_ps(offset_ + 16 * row));
        if (value_format_ == BF16) columns_to_elements<BF16>(value_dim_, sums, more, x);
        else if (value_format_ == INT8) columns_to_elements<INT8>(value_dim_, sums, more, x);
        else columns_to_elements<INT4>(value_dim_, sums, more, x);
    }

  private:
    // Sums of so many rows stay in registers beside sixteen keys.
    static constexpr int FEW_DIGITS = 8;
    // Of a weight's digit.
    static constexpr float LEVELS = 255;

    void set_query(const float* query, int row, float factor) {
        query_scale_[row] = factor;
        if (format_ == BF16) return round_to_bf16(query, dim_, query_bf16_ + row * MAX_DIM);
        const float largest = largest_of(query, dim_), levels = query_digits_ == 1 ? 127 : 127 * 256 + 127;
        query_scale_[row] *= largest / levels;
        const float inverse = largest > 0 ? levels / largest : 0;
        // Of eight elements in four bytes of INT4, the even ones are the low nibbles.
        const __m512i even_first = _mm512_set_epi32(15, 13, 11, 9, 14, 12, 10, 8, 7, 5, 3, 1, 6, 4, 2, 0);
        __m512i sum = _mm512_setzero_si512();
        for (int i = 0; i < dim_; i += 16) {
            const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(query + i), _mm512_set1_ps(inverse));
            __m512i digits = _mm512_cvtps_epi32(scaled);
            sum = _mm512_add_epi32(sum, digits);
            if (format_ == INT4) digits = _mm512_permutexvar_epi32(even_first, digits);
            put_bytes(query_low_ + row * MAX_DIM + i, digits);
            // Low bytes are signed too: what they lack the high ones have more.
            if (query_digits_ == 2) digits = _mm512_srai_epi32(_mm512_add_epi32(digits, _mm512_set1_epi32(128)), 8);
            put_bytes(query_high_ + row * MAX_DIM + i, digits);
        }
        query_sum_[row] = _mm512_reduce_add_epi32(sum);
    }

    // Scales and zero points of the tile's tokens, 0 for tokens that are nobody's.
    void load_scales(const Tokens* groups, int ng, int format) {
        for (int g = 0; g < TILE / GROUP; ++g) {
            const auto held = g < ng ? __mmask16(((1u << groups[g].to) - 1) & ~((1u << groups[g].from) - 1)) : __mmask16(0);
            const uint16_t* none = nullptr;
            const Tokens& some = groups[g < ng ? g : 0];
            _mm512_store_ps(scale_ + 16 * g, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(held, held ? some.scale : none)));
            if (format == INT4)
                _mm512_store_ps(zero_ + 16 * g, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(held, held ? some.zero : none)));
        }
    }

    template <int FORMAT, int DIGITS>
    void score_by(const Tokens* groups, int ng, const Tokens* next) {
        constexpr auto FACTORS = FORMAT == BF16 ? Factors::FLOATS : Factors::SIGNED;
        const int bytes = vector_bytes(FORMAT, dim_);
        const Rows rows = FORMAT == BF16 ? Rows{rows_, query_bf16_, nullptr, 2 * MAX_DIM}
                                         : Rows{rows_, query_high_, query_low_, MAX_DIM};
        const auto store = [&](int row, int g, auto sum) INLINE { set_score<FORMAT>(row, g, sum); };
        for (int g = 0; g < ng; ++g) prefetch_scales(next[g]);
        if (rows_ * DIGITS <= FEW_DIGITS) {
            each<FEW_DIGITS / DIGITS>([&](auto less) INLINE {
                constexpr int R = less + 1;
                if (rows_ != R) return;
                for (int g = 0; g < ng; ++g)
                    if (is_whole(groups[g], bytes))
                        multiply_few<FORMAT, DIGITS, R, true>(groups[g], next[g], bytes, rows, g, store);
                    else
                        multiply_few<FORMAT, DIGITS, R, false>(groups[g], next[g], bytes, rows, g, store);
            });
            return;
        }
        for (int g = 0; g < ng; ++g)
            if (is_whole(groups[g], bytes)) pack_keys<true>(groups[g], next[g], FORMAT, bytes, g, packed_);
            else pack_keys<false>(groups[g], next[g], FORMAT, bytes, g, packed_);
        const int depth = FORMAT == BF16 ? dim_ / 2 : dim_ / 4;
        multiply<FACTORS, DIGITS>(packed_, TILE, depth, ng, rows, Ahead(next, bytes), store);
    }

    template <int>
    INLINE void set_score(int row, int g, __m512 sum) {
        _mm512_store_ps(scores_ + row * TILE + 16 * g, _mm512_mul_ps(sum, _mm512_set1_ps(query_scale_[row])));
    }

    template <int FORMAT>
    INLINE void set_score(int row, int g, __m512i sum) {
        if (FORMAT == INT8) sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(128 * query_sum_[row]));
        __m512 score = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_load_ps(scale_ + 16 * g));
        if (FORMAT == INT4)
            score = _mm512_fmadd_ps(_mm512_load_ps(zero_ + 16 * g), _mm512_set1_ps(float(query_sum_[row])), score);
        _mm512_store_ps(scores_ + row * TILE + 16 * g, _mm512_mul_ps(score, _mm512_set1_ps(query_scale_[row])));
    }

    // The values' scales as exponents, what weights without them are again, and zero points in steps of the scale.
    void expect_values(const Tokens* groups, int ng) {
        if (value_format_ == BF16) return;
        load_scales(groups, ng, value_format_);
        for (int g = 0; g < TILE / GROUP; ++g) {
            // No float16 is smaller: vectors of zeros have a weight too.
            const __m512 scale = _mm512_max_ps(_mm512_set1_ps(0x1p-24f), _mm512_load_ps(scale_ + 16 * g));
            const __m512 inverse = reciprocal(scale);
            _mm512_store_ps(exponent_ + 16 * g, logarithm(scale));
            _mm512_store_ps(inverse_ + 16 * g, inverse);
            if (value_format_ == INT4)
                _mm512_store_ps(zero_ + 16 * g, _mm512_fmadd_ps(_mm512_load_ps(zero_ + 16 * g), inverse,
                                                                _mm512_set1_ps(NIBBLE_MIDDLE)));
        }
    }

    void find_largest(int row, int from, int to) {
        float* scores = scores_ + row * TILE;
        if (softcap_ > 0) cap_scores(scores, softcap_);
        __m512 s[TILE / GROUP];
        each<TILE / GROUP>([&](auto g) INLINE { s[g] = _mm512_load_ps(scores + 16 * g); });
        if (from > 0 || to < TILE) {
            const uint64_t held = (to < 64 ? (uint64_t(1) << to) - 1 : ~uint64_t(0)) & (~uint64_t(0) << (from & 63));
            const uint64_t mask = from < to ? held : 0;
            each<TILE / GROUP>([&](auto g) INLINE {
                s[g] = _mm512_mask_blend_ps(__mmask16(mask >> (16 * g)), _mm512_set1_ps(HIDDEN), s[g]);
                _mm512_store_ps(scores + 16 * g, s[g]);
            });
        }
        if (value_format_ != BF16)
            each<TILE / GROUP>([&](auto g) INLINE { s[g] = _mm512_add_ps(s[g], _mm512_load_ps(exponent_ + 16 * g)); });
        here_[row] = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(s[0], s[1]), _mm512_max_ps(s[2], s[3])));
    }

    // One of a row's two factors is 1: either what came before shrinks, or the tile is small from the start.
    void compare() {
        for (int row = 0; row < rows_; row += 16) {
            const __m512 old = _mm512_load_ps(largest_ + row), here = _mm512_load_ps(here_ + row);
            const __m512 largest = _mm512_max_ps(here, old);
            const __m512 part = power(_mm512_max_ps(_mm512_sub_ps(here, largest), _mm512_set1_ps(-200)));
            _mm512_store_ps(decay_ + row, power(_mm512_max_ps(_mm512_sub_ps(old, largest), _mm512_set1_ps(-200))));
            _mm512_store_ps(part_ + row, part);
            _mm512_store_ps(unit_ + row, _mm512_mul_ps(part, _mm512_set1_ps(value_unit_)));
            _mm512_store_ps(largest_ + row, largest);
        }
    }

    // Weights relative to the tile's own largest, and their sum.
    template <int FORMAT>
    INLINE void weigh_row(int row) {
        constexpr int GROUPS = TILE / GROUP;
        const float* scores = scores_ + row * TILE;
        const __m512 here = _mm512_set1_ps(here_[row]), decay = _mm512_set1_ps(decay_[row]);
        const __m512 part = _mm512_set1_ps(part_[row]);
        __m512 s[GROUPS];
        each<GROUPS>([&](auto g) INLINE {
            __m512 base = here;
            if constexpr (FORMAT != BF16) base = _mm512_sub_ps(here, _mm512_load_ps(exponent_ + 16 * g));
            s[g] = weight(_mm512_sub_ps(_mm512_load_ps(scores + 16 * g), base));
        });
        __m512 sum = _mm512_setzero_ps();
        each<GROUPS>([&](auto g) INLINE {
            if constexpr (FORMAT == BF16) sum = _mm512_add_ps(s[g], sum);
            else sum = _mm512_fmadd_ps(s[g], _mm512_load_ps(inverse_ + 16 * g), sum);
        });
        const __m512 before = _mm512_mul_ps(_mm512_load_ps(sum_ + 16 * row), decay);
        _mm512_store_ps(sum_ + 16 * row, _mm512_fmadd_ps(sum, part, before));
        if constexpr (FORMAT == BF16) {
            each<GROUPS>([&](auto g) INLINE {
                _mm256_store_si256(reinterpret_cast<__m256i*>(weight_bf16_ + row * TILE + 16 * g),
                                   (__m256i)_mm512_cvtneps_pbh(s[g]));
            });
            return;
        }
        __m512i digits[GROUPS];
        each<GROUPS>([&](auto g) INLINE {
            const __m512 dither = _mm512_load_ps(DITHER + 16 * g);
            digits[g] = _mm512_cvttps_epi32(_mm512_fmadd_ps(s[g], _mm512_set1_ps(LEVELS), dither));
        });
        store_digits(weight_digits_ + row * TILE, _mm512_packus_epi32(digits[0], digits[1]),
                     _mm512_packus_epi32(digits[2], digits[3]));
        if constexpr (FORMAT == INT4) {
            __m512 offset = _mm512_setzero_ps();
            each<GROUPS>([&](auto g) INLINE { offset = _mm512_fmadd_ps(s[g], _mm512_load_ps(zero_ + 16 * g), offset); });
            const __m512 old = _mm512_mul_ps(_mm512_load_ps(offset_ + 16 * row), decay);
            _mm512_store_ps(offset_ + 16 * row, _mm512_fmadd_ps(offset, part, old));
        }
    }

    // Packing went lane by lane: dword 4 lane + g has four tokens of group g.
    INLINE static void store_digits(uint8_t* to, __m512i a, __m512i b) {
        const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
        _mm512_store_si512(to, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(a, b)));
    }

    // Digits are rounded up as often as their fraction says: in a tile in which one token has most of the weight, the
    // small ones of the others would be nothing otherwise. Bit-reversed numbers, so that neighbours differ.
    alignas(64) static constexpr float DITHER[TILE] = {
        0.0078125f, 0.5078125f, 0.2578125f, 0.7578125f, 0.1328125f, 0.6328125f, 0.3828125f, 0.8828125f,
        0.0703125f, 0.5703125f, 0.3203125f, 0.8203125f, 0.1953125f, 0.6953125f, 0.4453125f, 0.9453125f,
        0.0390625f, 0.5390625f, 0.2890625f, 0.7890625f, 0.1640625f, 0.6640625f, 0.4140625f, 0.9140625f,
        0.1015625f, 0.6015625f, 0.3515625f, 0.8515625f, 0.2265625f, 0.7265625f, 0.4765625f, 0.9765625f,
        0.0234375f, 0.5234375f, 0.2734375f, 0.7734375f, 0.1484375f, 0.6484375f, 0.3984375f, 0.8984375f,
        0.0859375f, 0.5859375f, 0.3359375f, 0.8359375f, 0.2109375f, 0.7109375f, 0.4609375f, 0.9609375f,
        0.0546875f, 0.5546875f, 0.3046875f, 0.8046875f, 0.1796875f, 0.6796875f, 0.4296875f, 0.9296875f,
        0.1171875f, 0.6171875f, 0.3671875f, 0.8671875f, 0.2421875f, 0.7421875f, 0.4921875f, 0.9921875f,
    };

    int rows_ = 0, dim_ = 0, format_ = 0, query_digits_ = 0, value_dim_ = 0, value_format_ = 0;
    float softcap_ = 0, value_unit_ = 0;
    alignas(64) uint32_t packed_[TILE * MAX_DIM / 2];
    alignas(64) float scale_[TILE];
    alignas(64) float zero_[TILE];
    alignas(64) float exponent_[TILE];
    alignas(64) float inverse_[TILE];
    alignas(64) float scores_[MAX_ROWS * TILE];
    // Of each row, in sixteen parts until the end: the weights, and the weighted zero points.
    alignas(64) float sum_[MAX_ROWS * 16];
    alignas(64) float offset_[MAX_ROWS * 16];
    alignas(64) uint16_t query_bf16_[MAX_ROWS * MAX_DIM];
    alignas(64) uint8_t query_high_[MAX_ROWS * MAX_DIM];
    alignas(64) uint8_t query_low_[MAX_ROWS * MAX_DIM];
    alignas(64) uint16_t weight_bf16_[MAX_ROWS * TILE];
    alignas(64) uint8_t weight_digits_[MAX_ROWS * TILE];
    int32_t query_sum_[MAX_ROWS];
    // The largest score so far and in the tile, what sums before and the tile's are multiplied with for it, and what
    // sums of digits are.
    alignas(64) float largest_[MAX_ROWS], here_[MAX_ROWS], decay_[MAX_ROWS], part_[MAX_ROWS], unit_[MAX_ROWS];
    float query_scale_[MAX_ROWS];
};

}  // namespace
