// Small matrix products out of registers: C (rows × vectors) = or += A (rows × depth) · B (depth × vectors).
// A tile of 8 rows by PAIR vectors of C stays in registers over the whole depth; what is left over takes 4, 2, 1 rows.
#pragma once
#include "simd.h"

constexpr int ROWS = 8;
constexpr int64_t PANEL = PAIR * LANES;

// element(r, d) of A: a[r * lda + d], or a[d * lda + r] where A comes transposed. `factor`, if any, multiplies row r of
// what is stored.
struct Product {
    int64_t depth;
    const float* a;
    int64_t lda;
    const float* b;
    int64_t ldb;
    int64_t b_step;  // from one panel of B to the next
    float* c;
    int64_t ldc;
    const float* factor = nullptr;
};

template <int R, int V, bool TRANSPOSED, bool ADD>
inline void tile(const Product& m, const float* a, const float* b, float* c, const float* factor) {
    vfloat sums[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < V; n++) sums[r][n] = ADD ? load(c + r * m.ldc + n * LANES) : vfloat{};
    for (int64_t d = 0; d < m.depth; d++) {
        vfloat row[V];
#pragma GCC unroll 2
        for (int n = 0; n < V; n++) row[n] = load(b + n * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const float x = TRANSPOSED ? a[r] : a[r * m.lda];
#pragma GCC unroll 2
            for (int n = 0; n < V; n++) sums[r][n] += x * row[n];
        }
        a += TRANSPOSED ? m.lda : 1;
        b += m.ldb;
    }
    if (factor)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int n = 0; n < V; n++) sums[r][n] *= factor[r];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < V; n++) store(c + r * m.ldc + n * LANES, sums[r][n]);
}

template <int R, bool TRANSPOSED, bool ADD>
inline void strip(const Product& m, int64_t vectors, int64_t row) {
    const float *a = m.a + (TRANSPOSED ? row : row * m.lda), *b = m.b;
    const float* factor = m.factor ? m.factor + row : nullptr;
    float* c = m.c + row * m.ldc;
    for (; vectors >= PAIR; vectors -= PAIR, b += m.b_step, c += PANEL)
        tile<R, PAIR, TRANSPOSED, ADD>(m, a, b, c, factor);
    if (vectors > 0) tile<R, 1, TRANSPOSED, ADD>(m, a, b, c, factor);
}

// The whole product for `rows` ≤ 8 rows.
template <bool TRANSPOSED, bool ADD>
inline void multiply(const Product& m, int64_t rows, int64_t vectors) {
    if (rows == ROWS) return strip<ROWS, TRANSPOSED, ADD>(m, vectors, 0);
    int64_t row = 0;
    if (rows & 4) strip<4, TRANSPOSED, ADD>(m, vectors, row), row += 4;
    if (rows & 2) strip<2, TRANSPOSED, ADD>(m, vectors, row), row += 2;
    if (rows & 1) strip<1, TRANSPOSED, ADD>(m, vectors, row);
}
