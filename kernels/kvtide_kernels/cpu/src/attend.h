// One unit of work: write its new tokens, then let them attend, tile by tile. Every number depends on the own sequence
// alone, and tiles begin at multiples of TILE wherever a unit does: who shares the step changes nothing.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <tuple>

#include "basis.h"
#include "parts.h"
#include "places.h"
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
    alignas(64) float query[MAX_ROWS * MAX_DIM];    // as they came
    alignas(64) float based[MAX_ROWS * MAX_DIM];    // in the key basis
    alignas(64) float rotated[MAX_ROWS * MAX_DIM];  // and rotated, for keys that are
    alignas(64) float shift[MAX_ROWS];              // what scores of keys as they came have more
    alignas(64) uint16_t recent_keys[MAX_RECENT * MAX_DIM];
    alignas(64) uint16_t recent_values[MAX_RECENT * MAX_DIM];
    alignas(64) float sums[MAX_ROWS * MAX_DIM];
    alignas(64) float result[MAX_ROWS * MAX_DIM];
    Seen seen[MAX_ROWS];
};

class Attend {
  public:
    Attend(const Step& step, Scratch& scratch) : step_(step), layer_(*step.layer), parts_(step), s_(scratch) {}

    void run(const Unit& unit, int head) {
        const Span& span = step_.spans[unit.span];
        if (!span.decodes() || unit.part == unit.parts - 1) write(unit, span, head);
        // Heads of a group that go together, so that their rows fit.
        const int heads = std::max<int64_t>(1, std::min<int64_t>(layer_.group, MAX_ROWS / unit.count));
        for (int first = 0; first < layer_.group; first += heads)
            attend(unit, span, head, first, std::min(heads, layer_.group - first));
        if (span.decodes()) {
            if (unit.parts > 1 && parts_.arrive(unit, head)) join(unit, span, head);
        } else if (layer_.recent && parts_.arrive(unit, head)) {
            // What the chunk's own queries read of its past has these places: nobody writes before all have read.
            const int64_t count = std::min<int64_t>(layer_.recent, span.fresh);
            write_recent(span, span.fresh - count, count, head);
        }
    }

  private:
    int query_heads() const { return layer_.kv_heads * layer_.group; }

    // `count` new tokens from `begin` on as they are stored, in float32: keys in their basis.
    float* stored(const Side& side, const uint16_t* tensor, const Span& span, int64_t begin, int64_t count, int head) {
        loaded_ = NOTHING;
        const int dim = side.dim;
        const bool based = &side == &layer_.key && layer_.basis.of_key;
        for (int64_t i = 0; i < count; ++i) {
            const uint16_t* from = fresh_vector(layer_, side, tensor, span.row + begin + i, head);
            for (int j = 0; j < dim; ++j) s_.query[i * dim + j] = float_of_bf16(from[j]);
        }
        if (!based) return s_.query;
        const float* centre = layer_.basis.centre + int64_t(head) * dim;
        for (int64_t i = 0; i < count; ++i)
            for (int j = 0; j < dim; ++j) s_.query[i * dim + j] -= centre[j];
        product(s_.query, int(count), layer_.basis.of_key + int64_t(head) * dim * dim, dim, s_.based);
        return s_.based;
    }

    void write(const Unit& unit, const Span& span, int head) {
        for (const auto& [side, tensor] : sides()) {
            float* from = stored(*side, tensor, span, unit.begin, unit.count, head);
            for (int64_t i = 0; i < unit.count; ++i, from += side->dim) {
                const int64_t position = span.past + unit.begin + i;
                encode(*side, from, slot_of_token(layer_, *side, span, head, position));
            }
        }
        if (layer_.recent && span.decodes()) write_recent(span, 0, 1, head);
    }

    void write_recent(const Span& span, int64_t begin, int64_t count, int head) {
        for (const auto& [side, tensor] : sides()) {
            const float* from = stored(*side, tensor, span, begin, count, head);
            for (int64_t i = 0; i < count; ++i, from += side->dim)
                round_to_bf16(from, side->dim, recent_place(layer_, *side, span, head, span.past + begin + i));
        }
    }

    std::array<std::pair<const Side*, const uint16_t*>, 2> sides() const {
        return {{{&layer_.key, step_.key}, {&layer_.value, step_.value}}};
    }

    void attend(const Unit& unit, const Span& span, int head, int first, int heads) {
        const int rows = int(unit.count) * heads, width = layer_.value.dim;
        const int first_head = head * layer_.group + first;
        load_queries(unit, span, head, first_head, rows, heads);
        std::memset(s_.result, 0, sizeof(float) * rows * width);
        // What is cached ends with the recent tokens, which are the last part's.
        const int64_t recent = layer_.recent ? span.recent_from : span.cached();
        const int64_t packed = std::min(unit.high, recent);
        if (unit.low < packed) over_packed(unit, span, head, packed, rows, heads);
        if (!span.decodes() || unit.part == unit.parts - 1) {
            const int64_t seen = std::max(recent, seen_from(span.past + unit.begin));
            if (seen < span.cached()) over_recent(unit, span, head, seen, rows, heads);
        }
        if (!span.decodes()) over_fresh(unit, span, head, rows, heads, goes_on(span) && unit.low < packed);
        for (int row = 0; row < rows; ++row) {
            const int query_head = first_head + row % heads;
            if (span.decodes() && unit.parts > 1)
                parts_.keep(unit, query_head, s_.result + row * width, s_.seen[row]);
            else
                finish(span.row + unit.begin + row / heads, query_head, s_.result + row * width, s_.seen[row]);
        }
    }

    void load_queries(const Unit& unit, const Span& span, int head, int first_head, int rows, int heads) {
        const int dim = layer_.key.dim;
        std::fill(s_.seen, s_.seen + rows, Seen());
        // The parts of a sequence often come one after another.
        const auto wanted = std::tuple(unit.span, unit.begin, first_head);
        if (loaded_ == wanted) return;
        loaded_ = wanted, rotated_ = false;
        const bool shared = layer_.basis.of_query && span.decodes() && unit.parts > 1 && rows == layer_.group;
        if (shared && parts_.take_queries(unit, head, first_head, rows, s_.based)) {
            based_ = s_.based;
            return;
        }
        for (int row = 0; row < rows; ++row) {
            const int64_t token = span.row + unit.begin + row / heads;
            const uint16_t* from = step_.query + (token * query_heads() + first_head + row % heads) * dim;
            for (int i = 0; i < dim; ++i) s_.query[row * dim + i] = float_of_bf16(from[i]);
        }
        based_ = s_.query;
        if (!layer_.basis.of_query) return;
        product(s_.query, rows, layer_.basis.of_query + int64_t(head) * dim * dim, dim, s_.based);
        based_ = s_.based;
        const float* centre = layer_.basis.centre + int64_t(head) * dim;
        for (int row = 0; row < rows; ++row) {
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int i = 0; i < dim; ++i) sum += s_.query[row * dim + i] * centre[i];
            s_.shift[row] = sum * layer_.scale * LOG2E;
        }
        if (shared) parts_.give_queries(unit, head, first_head, rows, s_.based);
    }

    // The first token that the one at `position` sees.
    int64_t seen_from(int64_t position) const {
        return layer_.window ? std::max<int64_t>(0, position + 1 - layer_.window) : 0;
    }

    // Whether a chunk's fresh tokens follow its cached ones as if all of them were cached, or all fresh: in one sum that
    // is cut nowhere, so that a result does not tell, in any bit, which of them were.
    bool goes_on(const Span& span) const {
        return !span.decodes() && layer_.key.format == BF16 && layer_.value.format == BF16 && !layer_.basis.of_query;
    }

    // Cached tokens [unit.low, high) as they are stored, of which each row has lost those behind its window.
    void over_packed(const Unit& unit, const Span& span, int head, int64_t high, int rows, int heads) {
        const bool rotates = layer_.key.format == INT4;
        if (rotates && !rotated_) {
            std::copy(based_, based_ + rows * layer_.key.dim, s_.rotated);
            for (int row = 0; row < rows; ++row) rotate(s_.rotated + row * layer_.key.dim, layer_.key.dim);
            rotated_ = true;
        }
        begin(rotates ? s_.rotated : based_, rows, layer_.key.format, layer_.value.format);
        Tokens keys[2][TILE / GROUP], values[2][TILE / GROUP];
        const int64_t start = unit.low / TILE * TILE;
        stored_tokens(layer_, span, head, unit.low, high, start, keys[0], values[0]);
        int now = 0;
        for (int64_t tile = start; tile < high; tile += TILE, now ^= 1) {
            stored_tokens(layer_, span, head, unit.low, high, tile + TILE, keys[now ^ 1], values[now ^ 1]);
            const int ng = int((std::min<int64_t>(TILE, high - tile) + GROUP - 1) / GROUP);
            over_tile(keys[now], values[now], keys[now ^ 1], values[now ^ 1], ng, [&](int row) {
                const int64_t position = span.past + unit.begin + row / heads;
                return std::pair(std::max(unit.low, seen_from(position)) - tile, high - tile);
            });
        }
        if (goes_on(span)) return;
        end(rows, layer_.value.format);
        if (layer_.value.format == INT4)
            for (int row = 0; row < rows; ++row) rotate(s_.result + row * layer_.value.dim, layer_.value.dim);
    }

    // Cached tokens from `from` on in BF16, out of the recent blocks.
    void over_recent(const Unit& unit, const Span& span, int head, int64_t from, int rows, int heads) {
        const int64_t count = span.cached() - from;
        gather_recent(layer_, layer_.key, span, head, from, span.cached(), s_.recent_keys);
        gather_recent(layer_, layer_.value, span, head, from, span.cached(), s_.recent_values);
        begin(based_, rows, BF16, BF16);
        Tokens keys[TILE / GROUP], values[TILE / GROUP];
        const int ng = int((count + GROUP - 1) / GROUP);
        for (int g = 0; g < ng; ++g) {
            const int to = int(std::min<int64_t>(GROUP, count - g * GROUP));
            keys[g] = rows_of(s_.recent_keys + g * GROUP * layer_.key.dim, layer_.key.dim, to);
            values[g] = rows_of(s_.recent_values + g * GROUP * layer_.value.dim, layer_.value.dim, to);
        }
        over_tile(keys, values, NONE, NONE, ng, [&](int row) {
            return std::pair(seen_from(span.past + unit.begin + row / heads) - from, count);
        });
        end(rows, BF16);
    }

    // The chunk's own tokens up to the unit's last one, each row to itself. begun: whether the tile has its rows already.
    void over_fresh(const Unit& unit, const Span& span, int head, int rows, int heads, bool begun) {
        const int64_t last = unit.begin + unit.count;
        const int64_t low = std::max<int64_t>(0, seen_from(span.past + unit.begin) - span.past);
        // Scores of queries and keys as they came: what other scores lack against them the rows are given for so long.
        if (layer_.basis.of_query)
            for (int row = 0; row < rows; ++row) s_.seen[row].largest += s_.shift[row];
        if (!begun) begin(s_.query, rows, BF16, BF16);
        for (int64_t tile = low / TILE * TILE; tile < last; tile += TILE) {
            const int ng = int((std::min<int64_t>(TILE, last - tile) + GROUP - 1) / GROUP);
            Tokens keys[TILE / GROUP], values[TILE / GROUP];
            for (int g = 0; g < ng; ++g) {
                const int64_t token = tile + g * GROUP;
                const int to = int(std::min<int64_t>(GROUP, last - token));
                keys[g] = fresh_tokens(layer_, layer_.key, step_.key, span.row + token, head, to);
                values[g] = fresh_tokens(layer_, layer_.value, step_.value, span.row + token, head, to);
            }
            over_tile(keys, values, NONE, NONE, ng, [&](int row) {
                const int64_t own = unit.begin + row / heads;
                return std::pair(seen_from(span.past + own) - span.past - tile, own + 1 - tile);
            });
        }
        end(rows, BF16);
        if (layer_.basis.of_query)
            for (int row = 0; row < rows; ++row) s_.seen[row].largest -= s_.shift[row];
    }

    // seen(row): the tokens of the tile, from and to, that the row sees.
    template <class Bounds>
    void over_tile(const Tokens* keys, const Tokens* values, const Tokens* next_keys, const Tokens* next_values, int ng,
                   Bounds&& seen) {
        s_.tile.score(keys, ng, next_keys);
        s_.tile.weigh(values, ng, [&](int row) {
            const auto [from, to] = seen(row);
            return std::pair(int(std::clamp<int64_t>(from, 0, TILE)), int(std::clamp<int64_t>(to, 0, TILE)));
        });
        s_.tile.accumulate(values, ng, next_values, s_.sums);
    }

    // Sums are in the tile's order of columns between begin and end, and in s_.result in the elements' own.
    void begin(const float* query, int rows, int key_format, int value_format) {
        const int dim = layer_.value.dim, columns = Tile::columns(value_format, dim);
        s_.tile.begin(query, rows, key_format, layer_.key.dim, layer_.basis.of_query, value_format, dim,
                      {layer_.scale, layer_.softcap}, s_.seen);
        std::memset(s_.sums, 0, sizeof(float) * rows * columns);
        for (int row = 0; row < rows; ++row)
            if (s_.seen[row].sum > 0)
                Tile::into_columns(value_format, dim, s_.result + row * dim, s_.sums + row * columns);
    }

    void end(int rows, int value_format) {
        const int dim = layer_.value.dim, columns = Tile::columns(value_format, dim);
        for (int row = 0; row < rows; ++row)
            s_.tile.end(row, s_.sums + row * columns, s_.result + row * dim, s_.seen[row]);
    }

    void join(const Unit& unit, const Span& span, int head) {
        parts_.forget_queries(unit, head);
        for (int query_head = head * layer_.group; query_head < (head + 1) * layer_.group; ++query_head) {
            const Seen all = parts_.join(unit, query_head, s_.result);
            finish(span.row + unit.begin, query_head, s_.result, all);
        }
    }

    void finish(int64_t token, int query_head, const float* sums, Seen seen) const {
        if (layer_.sinks) seen.sum += std::exp2(layer_.sinks[query_head] * LOG2E - seen.largest);
        uint16_t* to = step_.out + (token * query_heads() + query_head) * layer_.value.dim;
        for (int i = 0; i < layer_.value.dim; ++i) to[i] = bf16_of(sums[i] / seen.sum);
    }

    static constexpr Tokens NONE[TILE / GROUP] = {};
    static constexpr std::tuple<int64_t, int64_t, int> NOTHING{-1, -1, -1};

    const Step& step_;
    const Layer& layer_;
    const Parts parts_;
    Scratch& s_;
    const float* based_ = nullptr;  // the rows' queries in the key basis
    bool rotated_ = false;          // whether these are in s_.rotated too
    std::tuple<int64_t, int64_t, int> loaded_ = NOTHING;  // whose they are: span, first token, first head
};

}  // namespace
