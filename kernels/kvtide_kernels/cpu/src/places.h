// Where a sequence's tokens lie: in the flat batch, packed in its blocks, and in BF16 in its recent blocks.
#pragma once

#include <algorithm>

#include "codec.h"

namespace {

inline const uint16_t* fresh_vector(const Layer& layer, const Side& side, const uint16_t* tensor, int64_t row, int head) {
    return tensor + (row * layer.kv_heads + head) * side.dim;
}

// `to` vectors in BF16, `stride` elements apart.
inline Tokens rows_of(const uint16_t* data, int64_t stride, int to) {
    Tokens some;
    some.data = reinterpret_cast<const uint8_t*>(data), some.stride = 2 * stride, some.to = to;
    return some;
}

inline Tokens fresh_tokens(const Layer& layer, const Side& side, const uint16_t* tensor, int64_t row, int head, int to) {
    return rows_of(fresh_vector(layer, side, tensor, row, head), int64_t(layer.kv_heads) * side.dim, to);
}

// Blocks are a power of two.
inline Slot slot_of_token(const Layer& layer, const Side& side, const Span& span, int head, int64_t token) {
    const int32_t block = span.blocks[(token >> __builtin_ctz(layer.block_size)) - span.first];
    return slot_of(side, block, head, int(token & (layer.block_size - 1)), layer.block_size);
}

// Sixteen tokens from `token` on, of which [from, to) are somebody's.
inline Tokens packed_tokens(const Layer& layer, const Side& side, const Span& span, int head, int64_t token, int from,
                            int to) {
    const Slot slot = slot_of_token(layer, side, span, head, token);
    Tokens some;
    some.data = slot.data, some.stride = side.vector_bytes(), some.from = from, some.to = to;
    if (side.format != BF16) some.scale = slot.scale;
    if (side.format == INT4) some.zero = slot.zero;
    return some;
}

// A tile's groups of tokens as they are stored; a group without a token in [low, high) has no block.
inline void stored_tokens(const Layer& layer, const Span& span, int head, int64_t low, int64_t high, int64_t tile,
                          Tokens* keys, Tokens* values) {
    for (int g = 0; g < TILE / GROUP; ++g) {
        const int64_t token = tile + g * GROUP;
        keys[g] = values[g] = Tokens();
        const int64_t from = std::max(low, token), to = std::min(high, token + GROUP);
        if (from >= to) continue;
        keys[g] = packed_tokens(layer, layer.key, span, head, token, int(from - token), int(to - token));
        values[g] = packed_tokens(layer, layer.value, span, head, token, int(from - token), int(to - token));
    }
}

// Token t of a sequence is at place t % recent, places one after another: a block may have as few as four.
inline uint16_t* recent_place(const Layer& layer, const Side& side, const Span& span, int head, int64_t token) {
    const int place = int(token % layer.recent), in_block = layer.block_size / RECENT_PARTS;
    const int64_t block = span.recent[place / in_block];
    uint8_t* start = side.base + block * side.block_stride + head * side.head_stride;
    return reinterpret_cast<uint16_t*>(start) + int64_t(place % in_block) * side.dim;
}

// The tokens [from, to), at most `recent` of them, one after another.
inline void gather_recent(const Layer& layer, const Side& side, const Span& span, int head, int64_t from, int64_t to,
                          uint16_t* rows) {
    for (int64_t token = from; token < to; ++token, rows += side.dim)
        std::memcpy(rows, recent_place(layer, side, span, head, token), 2 * side.dim);
}

}  // namespace
