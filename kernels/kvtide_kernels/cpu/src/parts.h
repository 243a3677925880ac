// What the parts of a sequence leave for each other: their sums, how many of them are done, and a decode's queries.
#pragma once

#include <algorithm>

#include "softmax.h"

namespace {

class Parts {
  public:
    explicit Parts(const Step& step) : step_(step), layer_(*step.layer) {}

    // Whether this is the last of the sequence's parts to be done with a head: it does what comes after all of them.
    bool arrive(const Unit& unit, int head) const {
        if (unit.parts == 1) return true;
        int32_t* count = arrived(unit, 0, head);
        if (__atomic_add_fetch(count, 1, __ATOMIC_ACQ_REL) != unit.parts) return false;
        *count = 0;
        return true;
    }

    void keep(const Unit& unit, int query_head, const float* sums, const Seen& seen) const {
        const int width = layer_.value.dim;
        float* to = place(unit, unit.part, query_head);
        std::copy(sums, sums + width, to);
        to[width] = seen.largest;
        to[width + 1] = seen.sum;
    }

    // Puts a decode's parts together, in their order, whichever came last.
    Seen join(const Unit& unit, int query_head, float* sums) const {
        const int width = layer_.value.dim;
        Seen all;
        for (int64_t part = 0; part < unit.parts; ++part)
            all.largest = std::max(all.largest, place(unit, part, query_head)[width]);
        std::fill(sums, sums + width, 0.0f);
        for (int64_t part = 0; part < unit.parts; ++part) {
            const float* from = place(unit, part, query_head);
            const float decay = power_of_two(from[width] - all.largest);
            all.sum += decay * from[width + 1];
            for (int i = 0; i < width; ++i) sums[i] += decay * from[i];
        }
        return all;
    }

    // A decode's queries in the key basis, [rows][dim], which all of its parts need, while the basis is as large as
    // hundreds of packed tokens: whichever part has them first gives them to those that come later. Nobody waits.
    bool take_queries(const Unit& unit, int head, int first_head, int rows, float* to) const {
        if (__atomic_load_n(arrived(unit, unit.parts, head), __ATOMIC_ACQUIRE) != GIVEN) return false;
        for (int row = 0; row < rows; ++row, to += layer_.key.dim) {
            const float* from = place(unit, unit.parts, first_head + row);
            std::copy(from, from + layer_.key.dim, to);
        }
        return true;
    }

    void give_queries(const Unit& unit, int head, int first_head, int rows, const float* from) const {
        int32_t *state = arrived(unit, unit.parts, head), nobody = 0;
        if (!__atomic_compare_exchange_n(state, &nobody, GIVING, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
        for (int row = 0; row < rows; ++row, from += layer_.key.dim)
            std::copy(from, from + layer_.key.dim, place(unit, unit.parts, first_head + row));
        __atomic_store_n(state, GIVEN, __ATOMIC_RELEASE);
    }

    // When all parts of a decode are done.
    void forget_queries(const Unit& unit, int head) const { *arrived(unit, unit.parts, head) = 0; }

  private:
    static constexpr int32_t GIVING = 1, GIVEN = 2;

    float* place(const Unit& unit, int64_t slot, int query_head) const {
        const int64_t heads = int64_t(layer_.kv_heads) * layer_.group;
        return step_.partial + ((unit.first_slot + slot) * heads + query_head) * (layer_.value.dim + 2);
    }

    int32_t* arrived(const Unit& unit, int64_t slot, int head) const {
        return step_.arrived + (unit.first_slot + slot) * layer_.kv_heads + head;
    }

    const Step& step_;
    const Layer& layer_;
};

}  // namespace
