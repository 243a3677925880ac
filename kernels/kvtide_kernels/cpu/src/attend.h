// One unit of work: write its new tokens, then let them attend, tile by tile. Every number depends on the own sequence
// alone, and tiles begin at multiples of TILE wherever a unit does: who shares the step changes nothing.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>

#include "codec.h"
#include "softmax.h"
#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)
#include "avx512.h"
#else
#include "plain.h"
#endif

namespace {

class Scratch {
  public:
    Tile tile;
    alignas(64) float query[MAX_ROWS * MAX_DIM];
    alignas(64) float rotated[MAX_ROWS * MAX_DIM];
    alignas(64) float sums[MAX_ROWS * MAX_DIM];
    alignas(64) float result[MAX_ROWS * MAX_DIM];
    Seen seen[MAX_ROWS];

    // The tile's column of each element, worked out when a format or size comes for the first time.
    const int16_t* column_of(int format, int dim) {
        int16_t* columns = columns_[format][dim / 16];
        if (!known_[format][dim / 16]) {
            for (int column = 0; column < Tile::columns(format, dim); ++column)
                if (const int i = Tile::dim_of_column(format, dim, column); i >= 0) columns[i] = int16_t(column);
            known_[format][dim / 16] = true;
        }
        return columns;
    }

  private:
    bool known_[3][MAX_DIM / 16 + 1] = {};
    int16_t columns_[3][MAX_DIM / 16 + 1][MAX_DIM];
};

class Attend {
  public:
    Attend(const Step& step, Scratch& scratch) : step_(step), layer_(*step.layer), s_(scratch) {}

    void run(const Unit& unit, int head) {
        const Span& span = step_.spans[unit.span];
        if (unit.part == unit.parts - 1) write(unit, span, head);
        // Heads of a group that go together, so that their rows fit.
        const int heads = std::max<int64_t>(1, std::min<int64_t>(layer_.group, MAX_ROWS / unit.count));
        for (int first = 0; first < layer_.group; first += heads)
            attend(unit, span, head, first, std::min(heads, layer_.group - first));
        if (unit.parts > 1) arrive(unit, span, head);
    }

  private:
    int query_heads() const { return layer_.kv_heads * layer_.group; }

    const uint16_t* fresh(const uint16_t* tensor, const Side& side, int64_t row, int head) const {
        return tensor + (row * layer_.kv_heads + head) * side.dim;
    }

    // Blocks are a power of two.
    int32_t block_of(const Span& span, int64_t token) const {
        return span.blocks[(token >> __builtin_ctz(layer_.block_size)) - span.first];
    }

    int place_of(int64_t token) const { return int(token & (layer_.block_size - 1)); }

    void write(const Unit& unit, const Span& span, int head) {
        for (int64_t i = unit.begin; i < unit.begin + unit.count; ++i) {
            const int64_t position = span.past + i;
            const int32_t block = block_of(span, position);
            const int place = place_of(position);
            for (const auto& [side, tensor] : {std::pair{layer_.key, step_.key}, std::pair{layer_.value, step_.value}})
                encode(side, fresh(tensor, side, span.row + i, head), slot_of(side, block, head, place, layer_.block_size));
        }
    }

    void attend(const Unit& unit, const Span& span, int head, int first, int heads) {
        const int rows = int(unit.count) * heads, dim = layer_.key.dim, width = layer_.value.dim;
        const int first_head = head * layer_.group + first;
        for (int row = 0; row < rows; ++row) {
            const int64_t token = span.row + unit.begin + row / heads;
            const uint16_t* from = step_.query + (token * query_heads() + first_head + row % heads) * dim;
            for (int i = 0; i < dim; ++i) s_.query[row * dim + i] = float_of_bf16(from[i]);
            s_.seen[row] = Seen();
        }
        // A decode's own token is in the cache by now; a chunk's are taken as they came.
        const bool decode = span.fresh == 1;
        std::memset(s_.result, 0, sizeof(float) * rows * width);
        if (unit.low < unit.high) over_cache(unit, span, head, rows, heads);
        if (!decode) over_fresh(unit, span, head, rows, heads);
        for (int row = 0; row < rows; ++row) {
            const int query_head = first_head + row % heads;
            if (unit.parts > 1)
                keep(unit, query_head, s_.result + row * width, s_.seen[row]);
            else
                finish(span.row + unit.begin + row / heads, query_head, s_.result + row * width, s_.seen[row]);
        }
    }

    // The first token that the one at `position` sees.
    int64_t seen_from(int64_t position) const {
        return layer_.window ? std::max<int64_t>(0, position + 1 - layer_.window) : 0;
    }

    // Cached tokens [unit.low, unit.high), of which each row has lost those behind its window.
    void over_cache(const Unit& unit, const Span& span, int head, int rows, int heads) {
        const float* query = s_.query;
        if (layer_.key.format == INT4) {
            std::copy(s_.query, s_.query + rows * layer_.key.dim, s_.rotated);
            for (int row = 0; row < rows; ++row) rotate(s_.rotated + row * layer_.key.dim, layer_.key.dim);
            query = s_.rotated;
        }
        begin(query, rows, layer_.key.format, layer_.value.format);
        Tokens keys[2][TILE / GROUP], values[2][TILE / GROUP];
        const int64_t start = unit.low / TILE * TILE;
        look_up(unit, span, head, start, keys[0], values[0]);
        int now = 0;
        for (int64_t tile = start; tile < unit.high; tile += TILE, now ^= 1) {
            look_up(unit, span, head, tile + TILE, keys[now ^ 1], values[now ^ 1]);
            const int ng = int((std::min<int64_t>(TILE, unit.high - tile) + GROUP - 1) / GROUP);
            over_tile(keys[now], values[now], keys[now ^ 1], values[now ^ 1], ng, rows, [&](int row) {
                const int64_t position = span.past + unit.begin + row / heads;
                return std::pair(std::max(unit.low, seen_from(position)) - tile, unit.high - tile);
            });
        }
        end(rows, layer_.value.format);
        if (layer_.value.format == INT4)
            for (int row = 0; row < rows; ++row) rotate(s_.result + row * layer_.value.dim, layer_.value.dim);
    }

    // The chunk's own tokens up to the unit's last one, each row to itself.
    void over_fresh(const Unit& unit, const Span& span, int head, int rows, int heads) {
        const int64_t last = unit.begin + unit.count;
        const int64_t low = std::max<int64_t>(0, seen_from(span.past + unit.begin) - span.past);
        begin(s_.query, rows, BF16, BF16);
        static const Tokens none[TILE / GROUP] = {};
        for (int64_t tile = low / TILE * TILE; tile < last; tile += TILE) {
            const int ng = int((std::min<int64_t>(TILE, last - tile) + GROUP - 1) / GROUP);
            Tokens keys[TILE / GROUP], values[TILE / GROUP];
            for (int g = 0; g < ng; ++g) {
                const int64_t token = tile + g * GROUP;
                keys[g] = in_batch(step_.key, layer_.key, span.row + token, head, last - token);
                values[g] = in_batch(step_.value, layer_.value, span.row + token, head, last - token);
            }
            over_tile(keys, values, none, none, ng, rows, [&](int row) {
                const int64_t own = unit.begin + row / heads;
                return std::pair(seen_from(span.past + own) - span.past - tile, own + 1 - tile);
            });
        }
        end(rows, BF16);
    }

    Tokens in_batch(const uint16_t* tensor, const Side& side, int64_t row, int head, int64_t left) const {
        Tokens some;
        some.data = reinterpret_cast<const uint8_t*>(fresh(tensor, side, row, head));
        some.stride = 2 * int64_t(layer_.kv_heads) * side.dim;
        some.to = int(std::min<int64_t>(GROUP, left));
        return some;
    }

    // seen(row): the tokens of the tile, from and to, that the row sees.
    template <class Bounds>
    void over_tile(const Tokens* keys, const Tokens* values, const Tokens* next_keys, const Tokens* next_values, int ng,
                   int rows, Bounds&& seen) {
        s_.tile.score(keys, ng, next_keys);
        s_.tile.expect_values(values, ng);
        for (int row = 0; row < rows; ++row) {
            const auto [from, to] = seen(row);
            s_.tile.weigh(row, int(std::clamp<int64_t>(from, 0, TILE)), int(std::clamp<int64_t>(to, 0, TILE)),
                          s_.seen[row]);
        }
        s_.tile.accumulate(values, ng, next_values, s_.sums);
    }

    // Sums are in the tile's order of columns between begin and end, and in s_.result in the elements' own.
    void begin(const float* query, int rows, int key_format, int value_format) {
        const int dim = layer_.value.dim, columns = Tile::columns(value_format, dim);
        const int16_t* column = s_.column_of(value_format, dim);
        s_.tile.begin(query, rows, key_format, layer_.key.dim, value_format, dim, {layer_.scale, layer_.softcap}, s_.seen);
        std::memset(s_.sums, 0, sizeof(float) * rows * columns);
        for (int row = 0; row < rows; ++row)
            for (int i = 0; i < dim; ++i) s_.sums[row * columns + column[i]] = s_.result[row * dim + i];
    }

    void end(int rows, int value_format) {
        const int dim = layer_.value.dim, columns = Tile::columns(value_format, dim);
        const int16_t* column = s_.column_of(value_format, dim);
        for (int row = 0; row < rows; ++row) {
            const float more = s_.tile.end(row, s_.seen[row]);
            for (int i = 0; i < dim; ++i) s_.result[row * dim + i] = s_.sums[row * columns + column[i]] + more;
        }
    }

    // The tile's groups of tokens in the pool; a group without a token in [low, high) has no block.
    void look_up(const Unit& unit, const Span& span, int head, int64_t tile, Tokens* keys, Tokens* values) const {
        for (int g = 0; g < TILE / GROUP; ++g) {
            const int64_t token = tile + g * GROUP;
            keys[g] = values[g] = Tokens();
            const int64_t from = std::max(unit.low, token), to = std::min(unit.high, token + GROUP);
            if (from >= to) continue;
            const int32_t block = block_of(span, token);
            const int place = place_of(token);
            keys[g] = in_pool(layer_.key, block, head, place, int(from - token), int(to - token));
            values[g] = in_pool(layer_.value, block, head, place, int(from - token), int(to - token));
        }
    }

    Tokens in_pool(const Side& side, int32_t block, int head, int place, int from, int to) const {
        const Slot slot = slot_of(side, block, head, place, layer_.block_size);
        Tokens some;
        some.data = slot.data, some.stride = side.vector_bytes(), some.from = from, some.to = to;
        if (side.format != BF16) some.scale = slot.scale;
        if (side.format == INT4) some.zero = slot.zero;
        return some;
    }

    float* kept(int64_t slot, int query_head) const {
        return step_.partial + (slot * query_heads() + query_head) * (layer_.value.dim + 2);
    }

    void keep(const Unit& unit, int query_head, const float* sums, const Seen& seen) const {
        float* to = kept(unit.first_slot + unit.part, query_head);
        std::copy(sums, sums + layer_.value.dim, to);
        to[layer_.value.dim] = seen.largest;
        to[layer_.value.dim + 1] = seen.sum;
    }

    // The last part to arrive puts all of them together, in their order, whichever it is.
    void arrive(const Unit& unit, const Span& span, int head) {
        auto* arrived = step_.arrived + unit.first_slot * layer_.kv_heads + head;
        if (__atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) != unit.parts) return;
        *arrived = 0;
        const int width = layer_.value.dim;
        for (int query_head = head * layer_.group; query_head < (head + 1) * layer_.group; ++query_head) {
            Seen all;
            for (int64_t part = 0; part < unit.parts; ++part)
                all.largest = std::max(all.largest, kept(unit.first_slot + part, query_head)[width]);
            std::fill(s_.result, s_.result + width, 0.0f);
            for (int64_t part = 0; part < unit.parts; ++part) {
                const float* from = kept(unit.first_slot + part, query_head);
                const float decay = power_of_two(from[width] - all.largest);
                all.sum += decay * from[width + 1];
                for (int i = 0; i < width; ++i) s_.result[i] += decay * from[i];
            }
            finish(span.row + unit.begin, query_head, s_.result, all);
        }
    }

    void finish(int64_t token, int query_head, const float* sums, Seen seen) const {
        if (layer_.sinks) seen.sum += std::exp2(layer_.sinks[query_head] * LOG2E - seen.largest);
        uint16_t* to = step_.out + (token * query_heads() + query_head) * layer_.value.dim;
        for (int i = 0; i < layer_.value.dim; ++i) to[i] = bf16_of(sums[i] / seen.sum);
    }

    const Step& step_;
    const Layer& layer_;
    Scratch& s_;
};

}  // namespace
