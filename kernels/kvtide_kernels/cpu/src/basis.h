// Keys and queries in a layer's key basis (kvtide_kernels/key_basis.py), in float32.
#pragma once

#include "layout.h"

namespace {

// Sixteen floats, however wide the processor's own vectors are: all served sizes are multiples.
using Vector = float __attribute__((vector_size(64)));
using Unaligned = float __attribute__((vector_size(64), aligned(4)));

#if defined(__AVX512F__)
constexpr int PRODUCT_VECTORS = 4;
#else
constexpr int PRODUCT_VECTORS = 1;  // of narrower registers there are fewer, too
#endif

// R rows by V vectors of columns from `column` on.
template <int R, int V>
inline void product_block(const float* x, const float* matrix, int dim, int column, float* out) {
    Vector sums[R][V] = {};
    for (int i = 0; i < dim; ++i) {
        const float* from = matrix + i * dim + column;
        for (int v = 0; v < V; ++v) {
            const Vector factor = *reinterpret_cast<const Unaligned*>(from + 16 * v);
            for (int r = 0; r < R; ++r) sums[r][v] += x[r * dim + i] * factor;
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) *reinterpret_cast<Unaligned*>(out + r * dim + column + 16 * v) = sums[r][v];
}

template <int R>
inline void product_rows(const float* x, const float* matrix, int dim, float* out) {
    int column = 0;
    for (; column + 16 * PRODUCT_VECTORS <= dim; column += 16 * PRODUCT_VECTORS)
        product_block<R, PRODUCT_VECTORS>(x, matrix, dim, column, out);
    for (; column < dim; column += 16) product_block<R, 1>(x, matrix, dim, column, out);
}

// out [rows][dim] = x [rows][dim] times matrix [dim][dim]. A row's numbers are the same whatever stands beside it.
inline void product(const float* x, int rows, const float* matrix, int dim, float* out) {
    int row = 0;
    for (; row + 4 <= rows; row += 4) product_rows<4>(x + row * dim, matrix, dim, out + row * dim);
    for (; row < rows; ++row) product_rows<1>(x + row * dim, matrix, dim, out + row * dim);
}

}  // namespace
