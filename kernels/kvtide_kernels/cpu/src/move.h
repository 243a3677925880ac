// The change of a whole arena to a smaller format in place.
#pragma once

#include <vector>

#include "codec.h"

namespace {

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
