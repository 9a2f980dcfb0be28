// Small matrix products whose right-hand side is one or two vectors wide: the accumulators stay in registers, the left-hand
// side is read one number at a time and broadcast.
#pragma once
#include "lanes.h"

// c[m][V · LANES] (+)= Σ_k a[m · row + k · step] b[k][V · LANES], for M rows m.
template <int M, int V>
static inline void product(const float* a, int64_t row, int64_t step, const float* b, int64_t ldb, int64_t count,
                           float* c, int64_t ldc, bool add) {
    vf sum[M][V];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
        for (int i = 0; i < V; ++i) sum[m][i] = add ? load(c + m * ldc + i * LANES) : vf{};
    for (int64_t k = 0; k < count; ++k) {
        vf right[V];
        for (int i = 0; i < V; ++i) right[i] = load(b + k * ldb + i * LANES);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            vf left = splat(a[m * row + k * step]);
            for (int i = 0; i < V; ++i) sum[m][i] += left * right[i];
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
        for (int i = 0; i < V; ++i) store(c + m * ldc + i * LANES, sum[m][i]);
}

// The same for any number of rows.
template <int V>
static void products(int64_t rows, const float* a, int64_t row, int64_t step, const float* b, int64_t ldb,
                     int64_t count, float* c, int64_t ldc, bool add) {
    // Sums of 8 rows by 2 vectors need more registers than there are without AVX-512.
    constexpr int MOST = LANE_COUNT == 16 || V == 1 ? 8 : 4;
    int64_t m = 0;
    if constexpr (MOST == 8)
        for (; m + 8 <= rows; m += 8) product<8, V>(a + m * row, row, step, b, ldb, count, c + m * ldc, ldc, add);
    for (; m + 4 <= rows; m += 4) product<4, V>(a + m * row, row, step, b, ldb, count, c + m * ldc, ldc, add);
    for (; m < rows; ++m) product<1, V>(a + m * row, row, step, b, ldb, count, c + m * ldc, ldc, add);
}

// The same for any width of whole vectors: ldb and ldc are those of the whole matrices.
static void wide_products(int64_t width, int64_t rows, const float* a, int64_t row, int64_t step, const float* b,
                          int64_t ldb, int64_t count, float* c, int64_t ldc, bool add) {
    int64_t l = 0;
    for (; l + 2 * LANES <= width; l += 2 * LANES) products<2>(rows, a, row, step, b + l, ldb, count, c + l, ldc, add);
    if (l < width) products<1>(rows, a, row, step, b + l, ldb, count, c + l, ldc, add);
}

// to[j][i] = from[i][j] for a block of LANES × LANES.
static inline void flip(const float* from, int64_t ld_from, float* to, int64_t ld_to) {
    vf v[LANE_COUNT];
#pragma GCC unroll 16
    for (int i = 0; i < LANE_COUNT; ++i) v[i] = load(from + i * ld_from);
    transpose(v);
#pragma GCC unroll 16
    for (int i = 0; i < LANE_COUNT; ++i) store(to + i * ld_to, v[i]);
}

static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
