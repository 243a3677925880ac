// Recent tokens of a sequence: BF16 in blocks of their own, token t at place t % recent, places one after another.
#pragma once

#include "codec.h"

namespace {

inline uint16_t* recent_place(const Layer& layer, const Side& side, const Span& span, int head, int64_t token) {
    const int place = int(token % layer.recent), in_block = layer.block_size / RECENT_PARTS;
    const int64_t block = span.recent[place / in_block];
    uint8_t* start = side.base + block * side.block_stride + head * side.head_stride;
    return reinterpret_cast<uint16_t*>(start) + int64_t(place % in_block) * side.dim;
}

// The tokens [from, to), at most `recent` of them, one after another: a block may have as few as four.
inline void gather_recent(const Layer& layer, const Side& side, const Span& span, int head, int64_t from, int64_t to,
                          uint16_t* rows) {
    for (int64_t token = from; token < to; ++token, rows += side.dim)
        std::memcpy(rows, recent_place(layer, side, span, head, token), 2 * side.dim);
}

}  // namespace
