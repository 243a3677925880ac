// A tile of tokens for AVX-512 with VNNI and BF16.
//
// BF16 is multiplied as it is (vdpbf16ps). INT8 and INT4 are never converted: queries and weights become 16-bit integers,
// each a pair of bytes 256 * high + low, and vpdpbusd multiplies both with the stored bytes (INT8 keys moved by 128 to be
// unsigned, which is taken off by the row's sum). The sums are exact; what is lost is 2^-16 of a row's largest.
//
// Both products have the operand B[k][column] of dwords, four (or for BF16 two) factors in each:
//     scores   column = token, k = elements of the key      a transpose of 16 tokens by 16 dwords
//     values   column = element, k = tokens                 an interleave of 4 (2) tokens
#pragma once

#include <immintrin.h>

#include <type_traits>
#include <utility>

#include "codec.h"
#include "softmax.h"

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

class Tile {
  public:
    // Interleaving 64 bytes at a time leaves columns in an order of its own, and may pad them.
    static int columns(int format, int dim) {
        const int bytes = vector_bytes(format, dim);
        const int padded = format == BF16 ? bytes : (bytes + 31) / 32 * 32;
        return format == BF16 ? padded / 2 : format == INT8 ? padded : 2 * padded;
    }

    // The element that a column is of; -1 for padding.
    static int dim_of_column(int format, int dim, int column) {
        const int odd = format == INT4 && column >= columns(format, dim) / 2;
        if (odd) column -= columns(format, dim) / 2;
        const int whole = columns(format, dim) / (format == INT4 ? 2 : 1);
        const int per_chunk = format == BF16 ? 32 : 64;  // columns of 64 bytes
        const int chunk = column / per_chunk, lanes = whole - chunk * per_chunk >= per_chunk ? 4 : 2;
        const int in_chunk = column % per_chunk;
        const int output = in_chunk / (4 * lanes), lane = in_chunk / 4 % lanes;
        const int place = chunk * per_chunk + lane * (format == BF16 ? 8 : 16) + output * 4 + in_chunk % 4;
        const int element = format == INT4 ? 2 * place + odd : place;
        return element < dim ? element : -1;
    }

    void begin(const float* query, int rows, int key_format, int dim, int value_format, int value_dim, Scoring scoring,
               const Seen* seen) {
        rows_ = rows, dim_ = dim, format_ = key_format, softcap_ = scoring.softcap;
        value_format_ = value_format, value_dim_ = value_dim;
        for (int row = 0; row < rows; ++row, query += dim) {
            set_query(query, row, scoring.factor());
            _mm512_store_ps(sum_ + 16 * row, _mm512_maskz_mov_ps(1, _mm512_set1_ps(seen[row].sum)));
            _mm512_store_ps(offset_ + 16 * row, _mm512_setzero_ps());
        }
    }

    void score(const Tokens* groups, int ng, const Tokens* next) {
        if (format_ != BF16) load_scales(groups, ng, format_);
        const auto store = [&](int row, int v, auto sum) INLINE { set_score(row, v, sum); };
        if (rows_ <= FEW) {
            for (int g = 0; g < ng; ++g) score_few(groups[g], next[g], g);
            return;
        }
        for (int g = 0; g < ng; ++g) pack_keys(groups[g], next[g], g);
        if (format_ == BF16)
            multiply<Factors::FLOATS>(rows_, dim_ / 2, ng, TILE, query_bf16_, nullptr, 2 * MAX_DIM, store);
        else
            multiply<Factors::SIGNED>(rows_, dim_ / 4, ng, TILE, query_high_, query_low_, MAX_DIM, store);
    }

    void expect_values(const Tokens* groups, int ng) {
        groups_ = ng;
        if (value_format_ == BF16) return;
        load_scales(groups, ng, value_format_);
        __m512 largest = _mm512_setzero_ps();
        __mmask16 unusable = 0;
        for (int g = 0; g < ng; ++g) {
            const __m512 scale = _mm512_load_ps(scale_ + 16 * g);
            largest = _mm512_max_ps(largest, scale);
            unusable |= _mm512_cmp_ps_mask(scale, scale, _CMP_UNORD_Q);
        }
        // A maximum may leave a NaN out, but the result must not.
        largest_scale_ = unusable ? NAN : _mm512_reduce_max_ps(largest);
    }

    // Beside the weights themselves it folds the values' scales into them and cuts them into two bytes, in units of
    // what the largest weight and the largest scale could make together.
    void weigh(int row, int from, int to, Seen& seen) {
        float* scores = scores_ + row * TILE;
        if (softcap_ > 0) cap_scores(scores, softcap_);
        __m512 s[TILE / GROUP];
        each<TILE / GROUP>([&](auto g) INLINE { s[g] = _mm512_load_ps(scores + 16 * g); });
        if (from > 0 || to < TILE) {
            const uint64_t held = (to < 64 ? (uint64_t(1) << to) - 1 : ~uint64_t(0)) & (~uint64_t(0) << (from & 63));
            const uint64_t mask = from < to ? held : 0;
            each<TILE / GROUP>([&](auto g) INLINE {
                s[g] = _mm512_mask_blend_ps(__mmask16(mask >> (16 * g)), _mm512_set1_ps(HIDDEN), s[g]);
            });
        }
        const float here =
            _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(s[0], s[1]), _mm512_max_ps(s[2], s[3])));
        // One of the two is 1: either the older weights shrink, or the tile's are small from the start.
        const float shrink = power_of_two(-std::fabs(here - seen.largest));
        const bool higher = here > seen.largest;
        const float peak = higher ? 1 : shrink;
        decay_[row] = higher ? shrink : 1;
        if (higher) seen.largest = here;
        each<TILE / GROUP>([&](auto g) INLINE { s[g] = power(_mm512_sub_ps(s[g], _mm512_set1_ps(seen.largest))); });
        const __m512 sum = _mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3]));
        const __m512 decay = _mm512_set1_ps(decay_[row]);
        _mm512_store_ps(sum_ + 16 * row, _mm512_fmadd_ps(_mm512_load_ps(sum_ + 16 * row), decay, sum));
        if (value_format_ == BF16) {
            each<TILE / GROUP>([&](auto g) INLINE {
                _mm256_store_si256(reinterpret_cast<__m256i*>(weight_bf16_ + row * TILE + 16 * g),
                                   (__m256i)_mm512_cvtneps_pbh(s[g]));
            });
            return;
        }
        const float most = peak * largest_scale_;
        const __m512 inverse = _mm512_set1_ps(most > 1e-30f ? LARGEST_WEIGHT / most : 0);
        weight_scale_[row] = most / LARGEST_WEIGHT;
        __m512 offset = _mm512_mul_ps(_mm512_load_ps(offset_ + 16 * row), decay);
        for (int g = 0; g < groups_; ++g) {
            const __m512 scaled = _mm512_mul_ps(s[g], _mm512_load_ps(scale_ + 16 * g));
            const __m512i digits = _mm512_cvtps_epi32(_mm512_mul_ps(scaled, inverse));
            put(weight_high_ + row * TILE + 16 * g, _mm512_srli_epi32(digits, 8));
            put(weight_low_ + row * TILE + 16 * g, digits);
            if (value_format_ == INT4) offset = _mm512_fmadd_ps(s[g], _mm512_load_ps(zero_ + 16 * g), offset);
        }
        _mm512_store_ps(offset_ + 16 * row, offset);
    }

    void accumulate(const Tokens* groups, int ng, const Tokens* next, float* sums) {
        const int width = columns(value_format_, value_dim_);
        for (int g = 0; g < ng; ++g) pack_values(groups[g], next[g], g, width);
        const auto add = [&](int row, int v, __m512 sum, float unit) INLINE {
            float* to = sums + row * width + 16 * v;
            const __m512 old = _mm512_mul_ps(_mm512_loadu_ps(to), _mm512_set1_ps(decay_[row]));
            _mm512_storeu_ps(to, _mm512_fmadd_ps(sum, _mm512_set1_ps(unit), old));
        };
        if (value_format_ == BF16)
            multiply<Factors::FLOATS>(rows_, ng * 8, width / 16, width, weight_bf16_, nullptr, 2 * TILE,
                                      [&](int row, int v, __m512 sum) { add(row, v, sum, 1); });
        else
            multiply<Factors::UNSIGNED>(
                rows_, ng * 4, width / 16, width, weight_high_, weight_low_, TILE,
                [&](int row, int v, __m512i sum) { add(row, v, _mm512_cvtepi32_ps(sum), weight_scale_[row]); });
    }

    float end(int row, Seen& seen) {
        seen.sum = _mm512_reduce_add_ps(_mm512_load_ps(sum_ + 16 * row));
        return _mm512_reduce_add_ps(_mm512_load_ps(offset_ + 16 * row));
    }

  private:
    static constexpr int FEW = 4;
    static constexpr auto PREFETCH = _MM_HINT_T1;

    // The largest 256 * high + low of two signed bytes, and of two unsigned ones with room to round up in.
    static constexpr float LARGEST_QUERY = 127 * 256 + 127, LARGEST_WEIGHT = 255 * 256;

    // What rows are made of, and columns with it: pairs of bfloat16; or bytes, signed for columns without a sign, and
    // the other way round.
    enum class Factors { FLOATS, SIGNED, UNSIGNED };

    void set_query(const float* query, int row, float factor) {
        query_scale_[row] = factor;
        if (format_ == BF16) {
            for (int i = 0; i < dim_; ++i) query_bf16_[row * MAX_DIM + i] = bf16_of(query[i]);
            return;
        }
        const float largest = largest_of(query, dim_);
        query_scale_[row] *= largest / LARGEST_QUERY;
        const float inverse = largest > 0 ? LARGEST_QUERY / largest : 0;
        // Of eight elements in four bytes of INT4, the even ones are the low nibbles.
        const __m512i even_first = _mm512_set_epi32(15, 13, 11, 9, 14, 12, 10, 8, 7, 5, 3, 1, 6, 4, 2, 0);
        __m512i sum = _mm512_setzero_si512();
        for (int i = 0; i < dim_; i += 16) {
            const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(query + i), _mm512_set1_ps(inverse));
            __m512i digits = _mm512_cvtps_epi32(scaled);
            if (format_ == INT4) digits = _mm512_permutexvar_epi32(even_first, digits);
            // Low bytes are signed too: what they lack the high ones have more.
            put(query_high_ + row * MAX_DIM + i, _mm512_srai_epi32(_mm512_add_epi32(digits, _mm512_set1_epi32(128)), 8));
            put(query_low_ + row * MAX_DIM + i, digits);
            sum = _mm512_add_epi32(sum, digits);
        }
        query_sum_[row] = _mm512_reduce_add_epi32(sum);
    }

    // The lowest byte of each.
    static void put(uint8_t* to, __m512i x) { _mm_store_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x)); }

    // As power_of_two.
    static __m512 power(__m512 x) {
        const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), part = _mm512_sub_ps(x, whole);
        __m512 y = _mm512_set1_ps(1.535336188319500e-4f);
        y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(1.339887440266574e-3f));
        y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(9.618437357674640e-3f));
        y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(5.550332471162809e-2f));
        y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(2.402264791363012e-1f));
        y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(6.931472028550421e-1f));
        y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(1.0f));
        return _mm512_scalef_ps(y, whole);
    }

    // Scales and zero points of the tile's tokens, 0 for tokens that are nobody's.
    void load_scales(const Tokens* groups, int ng, int format) {
        for (int g = 0; g < ng; ++g) {
            const auto held = __mmask16(((1u << groups[g].to) - 1) & ~((1u << groups[g].from) - 1));
            _mm512_store_ps(scale_ + 16 * g, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(held, groups[g].scale)));
            if (format == INT4)
                _mm512_store_ps(zero_ + 16 * g, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(held, groups[g].zero)));
        }
    }

    // Asks for `lines` lines of the next tokens, evenly beside the work on these: in one go they would stand in each
    // other's way. Always inlined, as GCC takes a call of a function that only prefetches for one without an effect.
    INLINE static void prefetch(const Tokens& next, int at, int lines) {
        if (!next.data) return;
        for (int i = 0; i < lines; ++i)
            _mm_prefetch(reinterpret_cast<const char*>(next.data + at + 64 * i), PREFETCH);
    }

    INLINE static void prefetch_scales(const Tokens& next) {
        if (next.scale) _mm_prefetch(reinterpret_cast<const char*>(next.scale), PREFETCH);
        if (next.zero) _mm_prefetch(reinterpret_cast<const char*>(next.zero), PREFETCH);
    }

    static __mmask64 first_bytes(int count) { return count >= 64 ? ~__mmask64(0) : (__mmask64(1) << count) - 1; }

    // WHOLE: all sixteen tokens are somebody's, and their vectors are multiples of 64 bytes.
    template <bool WHOLE>
    static __m512i load(const Tokens& some, int token, int at, __mmask64 mask) {
        if constexpr (WHOLE) return _mm512_loadu_si512(some.data + token * some.stride + at);
        if (token < some.from || token >= some.to) return _mm512_setzero_si512();
        return _mm512_maskz_loadu_epi8(mask, some.data + token * some.stride + at);
    }

    static void transpose(__m512i* r) {
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

    static bool whole(const Tokens& some, int bytes) { return some.from == 0 && some.to == GROUP && bytes % 64 == 0; }

    void pack_keys(const Tokens& some, const Tokens& next, int g) {
        const int bytes = vector_bytes(format_, dim_);
        prefetch_scales(next);
        whole(some, bytes) ? pack_keys<true>(some, next, g, bytes) : pack_keys<false>(some, next, g, bytes);
    }

    template <bool WHOLE>
    void pack_keys(const Tokens& some, const Tokens& next, int g, int bytes) {
        for (int at = 0; at < bytes; at += 64) {
            __m512i r[16];
            const __mmask64 mask = first_bytes(bytes - at);
            prefetch(next, 16 * at, 16);
            for (int t = 0; t < 16; ++t) r[t] = load<WHOLE>(some, t, at, mask);
            transpose(r);
            const int rows = bytes - at < 64 ? (bytes - at) / 4 : 16;
            for (int j = 0; j < rows; ++j) {
                const int row = at / 4 + j;
                if (format_ == INT4) {
                    const __m512i low = _mm512_set1_epi8(15);
                    put(2 * row * TILE + 16 * g, _mm512_and_si512(r[j], low));
                    put((2 * row + 1) * TILE + 16 * g, _mm512_and_si512(_mm512_srli_epi16(r[j], 4), low));
                } else {
                    put(row * TILE + 16 * g,
                        format_ == INT8 ? _mm512_xor_si512(r[j], _mm512_set1_epi8(char(0x80))) : r[j]);
                }
            }
        }
    }

    void pack_values(const Tokens& some, const Tokens& next, int g, int width) {
        const int bytes = vector_bytes(value_format_, value_dim_);
        prefetch_scales(next);
        whole(some, bytes) ? pack_values<true>(some, next, g, bytes, width)
                           : pack_values<false>(some, next, g, bytes, width);
    }

    template <bool WHOLE>
    void pack_values(const Tokens& some, const Tokens& next, int g, int bytes, int width) {
        for (int at = 0; at < bytes; at += 64) {
            const __mmask64 mask = first_bytes(bytes - at);
            const bool half = bytes - at <= 32;
            for (int t = 0; t < 16; t += 4) {
                prefetch(next, 16 * at + 64 * t, 4);
                const __m512i t0 = load<WHOLE>(some, t, at, mask), t1 = load<WHOLE>(some, t + 1, at, mask);
                const __m512i t2 = load<WHOLE>(some, t + 2, at, mask), t3 = load<WHOLE>(some, t + 3, at, mask);
                if (value_format_ == BF16) {
                    const int row = 8 * g + t / 2;
                    put_pair(row * width + at / 4 * 2, _mm512_unpacklo_epi16(t0, t1), _mm512_unpackhi_epi16(t0, t1), half);
                    put_pair((row + 1) * width + at / 4 * 2, _mm512_unpacklo_epi16(t2, t3),
                             _mm512_unpackhi_epi16(t2, t3), half);
                    continue;
                }
                const __m512i a = _mm512_unpacklo_epi8(t0, t1), b = _mm512_unpackhi_epi8(t0, t1);
                const __m512i c = _mm512_unpacklo_epi8(t2, t3), d = _mm512_unpackhi_epi8(t2, t3);
                const __m512i out[4] = {_mm512_unpacklo_epi16(a, c), _mm512_unpackhi_epi16(a, c),
                                        _mm512_unpacklo_epi16(b, d), _mm512_unpackhi_epi16(b, d)};
                const int to = (4 * g + t / 4) * width + at;
                if (value_format_ == INT8) {
                    put_quad(to, out[0], out[1], out[2], out[3], half);
                } else {
                    const __m512i low = _mm512_set1_epi8(15);
                    put_quad(to, _mm512_and_si512(out[0], low), _mm512_and_si512(out[1], low),
                             _mm512_and_si512(out[2], low), _mm512_and_si512(out[3], low), half);
                    put_quad(to + width / 2, _mm512_and_si512(_mm512_srli_epi16(out[0], 4), low),
                             _mm512_and_si512(_mm512_srli_epi16(out[1], 4), low),
                             _mm512_and_si512(_mm512_srli_epi16(out[2], 4), low),
                             _mm512_and_si512(_mm512_srli_epi16(out[3], 4), low), half);
                }
            }
        }
    }

    void set_score(int row, int v, __m512 sum) {
        _mm512_store_ps(scores_ + row * TILE + 16 * v, _mm512_mul_ps(sum, _mm512_set1_ps(query_scale_[row])));
    }

    void set_score(int row, int v, __m512i sum) {
        const int32_t bias = format_ == INT8 ? 128 * query_sum_[row] : 0;
        const __m512 dot = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_set1_epi32(bias)));
        const __m512 unit = _mm512_mul_ps(_mm512_load_ps(scale_ + 16 * v), _mm512_set1_ps(query_scale_[row]));
        __m512 score = _mm512_mul_ps(dot, unit);
        if (format_ == INT4)
            score = _mm512_fmadd_ps(_mm512_load_ps(zero_ + 16 * v),
                                    _mm512_set1_ps(query_scale_[row] * float(query_sum_[row])), score);
        _mm512_store_ps(scores_ + row * TILE + 16 * v, score);
    }

    // For few rows keys are multiplied while they are in registers: storing them costs as much as multiplying.
    void score_few(const Tokens& some, const Tokens& next, int g) {
        prefetch_scales(next);
        const bool all = whole(some, vector_bytes(format_, dim_));
        const auto go = [&](auto format, auto rows) {
            all ? score_few<format, rows, true>(some, next, g) : score_few<format, rows, false>(some, next, g);
        };
        const auto pick = [&](auto format) {
            if (rows_ == 1) go(format, Number<1>());
            else if (rows_ == 2) go(format, Number<2>());
            else if (rows_ == 3) go(format, Number<3>());
            else go(format, Number<4>());
        };
        if (format_ == BF16) pick(Number<BF16>());
        else if (format_ == INT8) pick(Number<INT8>());
        else pick(Number<INT4>());
    }

    template <int FORMAT, int R, bool WHOLE>
    void score_few(const Tokens& some, const Tokens& next, int g) {
        const int bytes = vector_bytes(FORMAT, dim_);
        const __m512i sign = _mm512_set1_epi8(char(0x80)), nibble = _mm512_set1_epi8(15);
        __m512 floats[R] = {};
        __m512i high[R] = {}, low[R] = {};
        const auto multiply_few = [&](int k, __m512i column) INLINE {
            each<R>([&](auto i) INLINE {
                const __m512i first = _mm512_set1_epi32(dword(query_high_ + i * MAX_DIM, k));
                const __m512i second = _mm512_set1_epi32(dword(query_low_ + i * MAX_DIM, k));
                high[i] = _mm512_dpbusd_epi32(high[i], column, first);
                low[i] = _mm512_dpbusd_epi32(low[i], column, second);
            });
        };
        for (int at = 0; at < bytes; at += 64) {
            const __mmask64 mask = first_bytes(bytes - at);
            prefetch(next, 16 * at, 16);
            __m512i r[16];
            each<16>([&](auto t) INLINE { r[t] = load<WHOLE>(some, t, at, mask); });
            transpose(r);
            const int held = (bytes - at) / 4;
            each<16>([&](auto j) INLINE {
                if (!WHOLE && j >= held) return;
                const int k = at / 4 + j;
                if constexpr (FORMAT == BF16) {
                    each<R>([&](auto i) INLINE {
                        const auto* q = reinterpret_cast<const uint8_t*>(query_bf16_ + i * MAX_DIM);
                        floats[i] = _mm512_dpbf16_ps(floats[i], (__m512bh)r[j], (__m512bh)_mm512_set1_epi32(dword(q, k)));
                    });
                } else if constexpr (FORMAT == INT8) {
                    multiply_few(k, _mm512_xor_si512(r[j], sign));
                } else {
                    multiply_few(2 * k, _mm512_and_si512(r[j], nibble));
                    multiply_few(2 * k + 1, _mm512_and_si512(_mm512_srli_epi16(r[j], 4), nibble));
                }
            });
        }
        each<R>([&](auto i) INLINE {
            if constexpr (FORMAT == BF16)
                set_score(i, g, floats[i]);
            else
                set_score(i, g, _mm512_add_epi32(_mm512_slli_epi32(high[i], 8), low[i]));
        });
    }

    void put(int at, __m512i x) { _mm512_store_si512(packed_ + at, x); }

    // Of 32 bytes only the lower halves hold anything.
    void put_pair(int at, __m512i a, __m512i b, bool half) {
        if (half) return put(at, _mm512_inserti64x4(a, _mm512_castsi512_si256(b), 1));
        put(at, a), put(at + 16, b);
    }

    void put_quad(int at, __m512i a, __m512i b, __m512i c, __m512i d, bool half) {
        put_pair(at, a, b, half);
        put_pair(at + (half ? 16 : 32), c, d, half);
    }

    // store(row, v, sums) for every row and vector v of 16 columns; high and low [rows] are `stride` bytes apart.
    template <Factors FACTORS, class Store>
    void multiply(int rows, int depth, int vectors, int ldb, const void* high, const void* low, int stride,
                  Store&& store) const {
        constexpr int R = FACTORS == Factors::FLOATS ? 6 : 3;
        for (int v = 0; v < vectors; v += 4) {
            const int left = vectors - v;
            for (int row = 0; row < rows;) {
                const auto* a = static_cast<const uint8_t*>(high) + row * stride;
                const auto* b = FACTORS == Factors::FLOATS ? nullptr : static_cast<const uint8_t*>(low) + row * stride;
                const int step = rows - row >= R ? R : 1;
                auto go = [&](auto nr, auto nv) {
                    block<FACTORS, decltype(nr)::value, decltype(nv)::value>(depth, v, ldb, a, b, stride, row, store);
                };
                auto pick = [&](auto nr) {
                    if (left >= 4) go(nr, Number<4>());
                    else if (left == 3) go(nr, Number<3>());
                    else if (left == 2) go(nr, Number<2>());
                    else go(nr, Number<1>());
                };
                if (step == R) pick(Number<R>());
                else pick(Number<1>());
                row += step;
            }
        }
    }

    // R rows by V vectors of columns. The sums must be registers: every index is a constant before the compiler looks.
    template <Factors FACTORS, int R, int V, class Store>
    inline void block(int depth, int v, int ldb, const uint8_t* a, const uint8_t* b, int stride, int row,
                      Store&& store) const {
        constexpr bool FLOATS = FACTORS == Factors::FLOATS;
        using Sum = std::conditional_t<FLOATS, __m512, __m512i>;
        const uint32_t* from = packed_ + 16 * v;
        Sum high[R * V] = {}, low[FLOATS ? 1 : R * V] = {};
        int k = 0;
        do {
            __m512i column[V];
            each<V>([&](auto j) INLINE { column[j] = _mm512_load_si512(from + 16 * j); });
            each<R>([&](auto i) INLINE {
                const __m512i first = _mm512_set1_epi32(dword(a + i * stride, k));
                if constexpr (FLOATS) {
                    each<V>([&](auto j) INLINE {
                        high[i * V + j] = _mm512_dpbf16_ps(high[i * V + j], (__m512bh)column[j], (__m512bh)first);
                    });
                } else {
                    const __m512i second = _mm512_set1_epi32(dword(b + i * stride, k));
                    each<V>([&](auto j) INLINE {
                        high[i * V + j] = dot<FACTORS>(high[i * V + j], column[j], first);
                        low[i * V + j] = dot<FACTORS>(low[i * V + j], column[j], second);
                    });
                }
            });
            from += ldb;
        } while (++k < depth);
        each<R>([&](auto i) INLINE {
            each<V>([&](auto j) INLINE {
                if constexpr (FLOATS)
                    store(row + i, v + j, high[i * V + j]);
                else
                    store(row + i, v + j, _mm512_add_epi32(_mm512_slli_epi32(high[i * V + j], 8), low[i * V + j]));
            });
        });
    }

    template <Factors FACTORS>
    static __m512i dot(__m512i sum, __m512i column, __m512i factor) {
        return FACTORS == Factors::SIGNED ? _mm512_dpbusd_epi32(sum, column, factor)
                                          : _mm512_dpbusd_epi32(sum, factor, column);
    }

    static int32_t dword(const uint8_t* from, int index) {
        int32_t x;
        std::memcpy(&x, from + 4 * index, 4);
        return x;
    }

    int rows_ = 0, dim_ = 0, format_ = 0, value_dim_ = 0, value_format_ = 0, groups_ = 0;
    float softcap_ = 0, largest_scale_ = 0;
    alignas(64) uint32_t packed_[TILE * MAX_DIM / 2];
    alignas(64) float scale_[TILE];
    alignas(64) float zero_[TILE];
    alignas(64) float scores_[MAX_ROWS * TILE];
    // Of each row, in sixteen parts until the end: the weights, and the weighted zero points.
    alignas(64) float sum_[MAX_ROWS * 16];
    alignas(64) float offset_[MAX_ROWS * 16];
    alignas(64) uint16_t query_bf16_[MAX_ROWS * MAX_DIM];
    alignas(64) uint8_t query_high_[MAX_ROWS * MAX_DIM];
    alignas(64) uint8_t query_low_[MAX_ROWS * MAX_DIM];
    alignas(64) uint16_t weight_bf16_[MAX_ROWS * TILE];
    alignas(64) uint8_t weight_high_[MAX_ROWS * TILE];
    alignas(64) uint8_t weight_low_[MAX_ROWS * TILE];
    int32_t query_sum_[MAX_ROWS];
    float query_scale_[MAX_ROWS], weight_scale_[MAX_ROWS], decay_[MAX_ROWS];
};

}  // namespace
