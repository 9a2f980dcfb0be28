// Small matrix products whose right-hand side has 16 or 32 lanes: the accumulators stay in registers, the left-hand
// side is read one number at a time and broadcast.
#pragma once
#include "lanes.h"

// c[m][V · 16 lanes] (+)= Σ_k a[m · row + k · step] b[k][V · 16 lanes], for M rows m.
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
    int64_t m = 0;
    for (; m + 8 <= rows; m += 8) product<8, V>(a + m * row, row, step, b, ldb, count, c + m * ldc, ldc, add);
    for (; m + 4 <= rows; m += 4) product<4, V>(a + m * row, row, step, b, ldb, count, c + m * ldc, ldc, add);
    for (; m < rows; ++m) product<1, V>(a + m * row, row, step, b, ldb, count, c + m * ldc, ldc, add);
}

// to[j][i] = from[i][j] for a block of 16 × 16.
static inline void flip(const float* from, int64_t ld_from, float* to, int64_t ld_to) {
    vf v[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = load(from + i * ld_from);
    transpose(v);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) store(to + i * ld_to, v[i]);
}

static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
