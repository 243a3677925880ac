// Blocks that move: copies, and the change of a whole arena to a smaller format in place.
#pragma once

#include <vector>

#include "codec.h"

namespace {

inline int64_t head_bytes(const Side& side, int block_size) {
    const int64_t metadata = side.format == BF16 ? 0 : side.format == INT8 ? 2 : 4;
    return block_size * (side.vector_bytes() + metadata);
}

// pairs [count][2]: from, to.
inline void copy_blocks(const Side& side, int block_size, int kv_heads, const int64_t* pairs, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
        for (int head = 0; head < kv_heads; ++head) {
            const uint8_t* from = side.base + pairs[2 * i] * side.block_stride + head * side.head_stride;
            uint8_t* to = side.base + pairs[2 * i + 1] * side.block_stride + head * side.head_stride;
            std::memcpy(to, from, head_bytes(side, block_size));
        }
}

// The new arena begins where the old one does and its blocks are smaller: in ascending order, through a copy of one
// block, nothing is written that has not been read. What no sequence holds may be anything, and stays so.
inline void reencode_blocks(const Side& from, const Side& to, int block_size, int kv_heads, int64_t num_blocks) {
    std::vector<uint8_t> copy(kv_heads * from.head_stride);
    Side old = from;
    old.base = copy.data();
    float x[MAX_DIM];
    for (int64_t block = 0; block < num_blocks; ++block) {
        std::memcpy(copy.data(), from.base + block * from.block_stride, copy.size());
        for (int head = 0; head < kv_heads; ++head)
            for (int place = 0; place < block_size; ++place) {
                const Slot source = slot_of(old, 0, head, place, block_size);
                decode(from.format, from.dim, source.data, from.format == BF16 ? 0 : *source.scale, 0, x);
                const Slot target = slot_of(to, block, head, place, block_size);
                if (to.format == INT8) {
                    encode_int8(x, to.dim, target);
                } else {
                    rotate(x, to.dim);
                    encode_int4(x, to.dim, target);
                }
            }
    }
}

}  // namespace
