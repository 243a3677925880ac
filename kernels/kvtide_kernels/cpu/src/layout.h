// What the kernels are handed: the pool's arenas, a layer's shape and a planned step. Mirrored in ../library.py.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

enum Format : int32_t { BF16 = 0, INT8 = 1, INT4 = 2 };

// Bytes of a vector's elements, without scale and zero point.
inline int vector_bytes(int format, int dim) { return format == BF16 ? 2 * dim : format == INT8 ? dim : dim / 2; }

// One layer's keys or values. Inside a (block, head): data [block_size][vector], then scale and zero [block_size].
struct Side {
    uint8_t* base;
    int64_t block_stride, head_stride;  // bytes
    int32_t format, dim;

    int64_t vector_bytes() const { return ::vector_bytes(format, dim); }
};

// What keys are stored in: (k - centre) times of_key, met by queries times of_query.
struct Basis {
    const float *of_key, *of_query;  // [kv_heads][dim][dim]; null: as they are
    const float* centre;             // [kv_heads][dim]
};

struct Layer {
    Side key, value;
    Basis basis;
    int32_t kv_heads, group;     // group: query heads of a KV head
    int32_t block_size, window;  // window 0: none
    int32_t recent;              // tokens that are kept in BF16 too; 0: none
    float scale, softcap;        // softcap 0: none
    const float* sinks;          // [query_heads] or null
};

// One sequence of the step: its block table, and where its new tokens stand in the flat batch.
struct Span {
    const int32_t *blocks, *recent;
    int64_t first;        // number of blocks[0] in the sequence
    int64_t recent_from;  // the oldest token that recent blocks have
    int64_t past, fresh, row;

    // A decode writes its own token before it attends, a chunk when all of it has.
    bool decodes() const { return fresh == 1; }
    int64_t cached() const { return decodes() ? past + 1 : past; }
};

// A piece of work, for each KV head: `count` new tokens from `begin` on attend to the cached tokens [low, high).
// A sequence comes in `parts` that wait for each other: a decode's have a slot each in the partial results from
// first_slot on, and one behind them for the queries that they have in common; a chunk's have one together.
struct Unit {
    int64_t span, begin, count, low, high, part, parts, first_slot;
};

struct Step {
    const Layer* layer;
    const Span* spans;
    const Unit* units;
    int64_t num_units;
    const uint16_t *query, *key, *value;  // bfloat16 [tokens][heads][dim]
    uint16_t* out;
    float* partial;    // [slots][query_heads][dim + 2]: weighted values, largest score, sum of weights
    int32_t* arrived;  // [slots][kv_heads]: parts that are done, or of queries whether they are there; zero between runs
};

constexpr int TILE = 64;       // tokens that scores are made of at a time
constexpr int GROUP = 16;      // tokens whose place in a block is looked up at a time: no block is smaller
constexpr int MAX_ROWS = 128;  // query rows that share a tile
constexpr int MAX_DIM = 256;
constexpr int MAX_RECENT = 32;
constexpr int RECENT_PARTS = 4;  // packed tokens of a block for each recent one

// Sixteen tokens in a row; those outside [from, to) are nobody's, and may be anything.
struct Tokens {
    const uint8_t* data = nullptr;
    int64_t stride = 0;  // bytes from a token to the next
    const uint16_t *scale = nullptr, *zero = nullptr;
    int from = 0, to = 0;
};

inline float float_of_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

inline float float_of_bf16(uint16_t x) { return float_of_bits(uint32_t(x) << 16); }

inline uint16_t bf16_of(float x) {
    const uint32_t bits = bits_of(x);
    return x != x ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float float_of_half(uint16_t x) {
    _Float16 half;
    std::memcpy(&half, &x, 2);
    return float(half);
}

inline uint16_t half_of(float x) {
    const _Float16 half = _Float16(x);
    uint16_t bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}

}  // namespace
