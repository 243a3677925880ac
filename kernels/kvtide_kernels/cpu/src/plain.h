// A tile of tokens in portable C++: decoded once to float32, then dots and sums that any compiler makes vectors of.
#pragma once

#include <algorithm>

#include "codec.h"
#include "softmax.h"

namespace {

class Tile {
  public:
    static int columns(int, int dim) { return dim; }
    static void into_columns(int, int dim, const float* x, float* sums) { std::copy(x, x + dim, sums); }

    // query [rows][dim], rotated where the keys are.
    void begin(const float* query, int rows, int key_format, int dim, bool, int value_format, int value_dim,
               Scoring scoring, const Seen* seen) {
        std::copy(seen, seen + rows, seen_);
        query_ = query, rows_ = rows, dim_ = dim, value_dim_ = value_dim;
        key_format_ = key_format, value_format_ = value_format, scoring_ = scoring;
    }

    // Scores of ng groups of keys.
    void score(const Tokens* groups, int ng, const Tokens*) {
        load(groups, ng, key_format_, dim_);
        for (int row = 0; row < rows_; ++row)
            for (int token = 0; token < ng * GROUP; ++token) {
                const float *q = query_ + row * dim_, *k = decoded_ + token * dim_;
                float sum = 0;
#pragma omp simd reduction(+ : sum)
                for (int i = 0; i < dim_; ++i) sum += q[i] * k[i];
                scores_[row * TILE + token] = sum * scoring_.factor();
            }
    }

    // Scores become weights, of the tokens [from, to) = seen(row) of the tile; those of others may be anything.
    template <class Bounds>
    void weigh(const Tokens*, int, Bounds&& seen) {
        for (int row = 0; row < rows_; ++row) {
            const auto [from, to] = seen(row);
            weigh_row(row, from, to, seen_[row]);
        }
    }

    // sums [rows][columns], of what came before and of ng groups of values by their weights.
    void accumulate(const Tokens* groups, int ng, const Tokens*, float* sums) {
        load(groups, ng, value_format_, value_dim_);
        for (int row = 0; row < rows_; ++row) {
            float* sum = sums + row * value_dim_;
            for (int i = 0; i < value_dim_; ++i) sum[i] *= decay_[row];
            for (int token = 0; token < ng * GROUP; ++token) {
                const float weight = scores_[row * TILE + token];
                const float* v = decoded_ + token * value_dim_;
                for (int i = 0; i < value_dim_; ++i) sum[i] += weight * v[i];
            }
        }
    }

    // A row's sums, and what it has seen.
    void end(int row, const float* sums, float* x, Seen& seen) const {
        seen = seen_[row];
        std::copy(sums, sums + value_dim_, x);
    }

  private:
    void weigh_row(int row, int from, int to, Seen& seen) {
        float* scores = scores_ + row * TILE;
        if (scoring_.softcap > 0) cap_scores(scores, scoring_.softcap);
        for (int i = 0; i < TILE; ++i) scores[i] = i >= from && i < to ? scores[i] : HIDDEN;
        float largest = seen.largest, sum = 0;
#pragma omp simd reduction(max : largest)
        for (int i = 0; i < TILE; ++i) largest = scores[i] > largest ? scores[i] : largest;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < TILE; ++i) {
            scores[i] = power_of_two(scores[i] - largest);
            sum += scores[i];
        }
        decay_[row] = power_of_two(seen.largest - largest);
        seen.sum = seen.sum * decay_[row] + sum;
        seen.largest = largest;
    }

    void load(const Tokens* groups, int ng, int format, int dim) {
        float* x = decoded_;
        for (int g = 0; g < ng; ++g)
            for (int t = 0; t < GROUP; ++t, x += dim) {
                const Tokens& some = groups[g];
                if (t < some.from || t >= some.to)
                    std::memset(x, 0, sizeof(float) * dim);
                else
                    decode(format, dim, some.data + t * some.stride, some.scale ? some.scale[t] : 0,
                           some.zero ? some.zero[t] : 0, x);
            }
    }

    const float* query_ = nullptr;
    int rows_ = 0, dim_ = 0, value_dim_ = 0, key_format_ = 0, value_format_ = 0;
    Scoring scoring_{};
    float decoded_[TILE * MAX_DIM];
    float scores_[MAX_ROWS * TILE];
    float decay_[MAX_ROWS];
    Seen seen_[MAX_ROWS];
};

}  // namespace
