// One float vector of the machine's widest kind, and what the kernels do with it: load, mask, reduce, exp, transpose.
// GCC and clang vector extensions, so the same source serves AVX-512 (16 lanes), AVX (8) and SSE or NEON (4).
#pragma once
#include <utility>

#include "common.h"

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
// Registers left for a tile of sums: 32 on AVX-512 and NEON, 16 on AVX and SSE.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int PAIR = 2;
#else
constexpr int PAIR = 1;
#endif

typedef float vfloat __attribute__((vector_size(4 * LANES)));
typedef int32_t vint __attribute__((vector_size(4 * LANES)));
using Lanes = std::make_integer_sequence<int, LANES>;

template <class T>
inline T bits(const vfloat& x) {
    T y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}
inline vfloat load(const float* p) {
    vfloat x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
inline void store(float* p, vfloat x) { std::memcpy(p, &x, sizeof x); }
inline vfloat splat(float x) { return x - vfloat{}; }

template <int... I>
inline vint lane_numbers(std::integer_sequence<int, I...>) {
    return vint{I...};
}
inline vint lane_numbers() { return lane_numbers(Lanes{}); }

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vint{__VA_ARGS__}))
#endif
template <int W, int... I>
inline vfloat swap_lanes(vfloat x, std::integer_sequence<int, I...>) {
    return SHUFFLE(x, x, (I ^ W)...);
}
template <int HALF, int... I>
inline vfloat interleave(vfloat a, vfloat b, std::integer_sequence<int, I...>) {
    return SHUFFLE(a, b, (I / 2 + HALF * (LANES / 2) + (I % 2) * LANES)...);
}

template <int W = LANES / 2>
inline float sum(vfloat x) {
    x += swap_lanes<W>(x, Lanes{});
    if constexpr (W > 1)
        return sum<W / 2>(x);
    else
        return x[0];
}
// NaN in x loses against numbers here; it comes back through whatever is computed from x itself.
inline vfloat larger(vfloat a, vfloat b) { return a > b ? a : b; }
template <int W = LANES / 2>
inline float largest(vfloat x) {
    x = larger(x, swap_lanes<W>(x, Lanes{}));
    if constexpr (W > 1)
        return largest<W / 2>(x);
    else
        return x[0];
}

// e^x for x ≤ 1, relative error < 2e-7: 2^n · p(f) with n the integer nearest to x·log2(e), p minimax of degree 6.
// 0 below −86 and at −inf (no denormals), NaN at NaN, exactly 1 at 0.
inline vfloat exponential(vfloat x) {
    x = x < -87.0f ? splat(-87.0f) : x;
    // Truncation towards zero of x·log2(e) − ½ is the nearest integer for x ≤ 0. A sum with a large constant would
    // do the same, if -fassociative-math did not cancel it.
    const vint n = __builtin_convertvector(x * 1.44269504f - 0.5f, vint);
    const vfloat f = x * 1.44269504f - __builtin_convertvector(n, vfloat);
    vfloat p = splat(1.53456967e-4f);
    p = p * f + 1.34000635e-3f;
    p = p * f + 9.61849040e-3f;
    p = p * f + 5.55032847e-2f;
    p = p * f + 2.40226469e-1f;
    p = p * f + 6.93147206e-1f;
    p = p * f + 1.0f;
    const vint raised = bits<vint>(p) + (n << 23);
    vfloat y;
    std::memcpy(&y, &raised, sizeof y);
    return x < -86.0f ? vfloat{} : y;
}

// Transposes a LANES × LANES block: each of log2(LANES) rounds interleaves the first half of the rows with the second.
inline void transpose(vfloat (&rows)[LANES]) {
#pragma GCC unroll 4
    for (int round = 1; round < LANES; round *= 2) {
        vfloat mixed[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            mixed[2 * i] = interleave<0>(rows[i], rows[i + LANES / 2], Lanes{});
            mixed[2 * i + 1] = interleave<1>(rows[i], rows[i + LANES / 2], Lanes{});
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) rows[i] = mixed[i];
    }
}
