// One float vector of the machine's widest kind, and what the kernels do with it: load, mask, reduce, exp, transpose.
// GCC and clang vector extensions, so the same source serves AVX-512 (16 lanes), AVX (8) and SSE or NEON (4).
#pragma once
#include <utility>

#include "common.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

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

// The same number, of unknown origin to the optimiser.
inline vfloat hide(vfloat x) {
#if defined(__x86_64__)
    __asm__("" : "+x"(x));
#elif defined(__aarch64__)
    __asm__("" : "+w"(x));
#endif
    return x;
}

// All ones where x is infinite or NaN. By its bits: g++ takes vectors for finite as soon as -fassociative-math and
// -fno-signed-zeros are given, and folds x == x and x * 0.
inline vint not_finite(vfloat x) { return (bits<vint>(x) & 0x7fffffff) >= 0x7f800000; }

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
// Whether a comparison held in some lane.
inline bool any(vint mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask(__m512i(mask), __m512i(mask)) != 0;
#elif defined(__AVX__)
    return !_mm256_testz_si256(__m256i(mask), __m256i(mask));
#else
    return sum(__builtin_convertvector(mask & 1, vfloat)) != 0.0f;
#endif
}
// NaN in x loses against numbers here; it comes back through whatever is computed from x itself.
inline vfloat larger(vfloat a, vfloat b) { return a > b ? a : b; }
inline vfloat smaller(vfloat a, vfloat b) { return a < b ? a : b; }
inline vfloat plus(vfloat a, vfloat b) { return a + b; }

// out[r] = the 8 rows' reductions over their lanes, together: a third of the shuffles of 8 single reductions.
template <vfloat (*OP)(vfloat, vfloat)>
inline void reduce_rows(const vfloat (&x)[8], float* out) {
    const auto fold = [](vfloat a, vfloat b) { return OP(interleave<0>(a, b, Lanes{}), interleave<1>(a, b, Lanes{})); };
    // Lanes alternate between rows i and i + 4, then cycle through i, i + 2, i + 4, i + 6, then through all eight.
    const vfloat even = fold(fold(x[0], x[4]), fold(x[2], x[6])), odd = fold(fold(x[1], x[5]), fold(x[3], x[7]));
    if constexpr (LANES == 4) {
        store(out, interleave<0>(even, odd, Lanes{}));
        store(out + 4, interleave<1>(even, odd, Lanes{}));
    } else {
        vfloat all = fold(even, odd);
        if constexpr (LANES == 16) all = OP(all, swap_lanes<8>(all, Lanes{}));
        std::memcpy(out, &all, 8 * sizeof(float));
    }
}

// e^x for x ≤ ½: 2^n · p(f) with n the integer nearest to x·log2(e) and p minimax of degree 6. Relative error below
// 2e-7 + 1.5e-8·|x|: the rounding of x·log2(e) is felt only where e^x is negligible beside the row's largest term.
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

// log(1 + x) for x ≥ 0, relative error < 3e-7 also where x is tiny; infinity and NaN come through.
// 1 + x = 2^n·m with m in [√½, √2); log m = 2 atanh(s), s = (m − 1) / (m + 1), as an odd series up to s⁹.
inline vfloat log1p(vfloat x) {
    const vfloat y = hide(x + 1.0f);
    // What the rounding of 1 + x lost, to first order; hidden from -fassociative-math, which would cancel it to 0.
    const vfloat lost = (x - hide(y - 1.0f)) / y;
    const vint raw = bits<vint>(y);
    const vint n = (raw - 0x3f3504f3) >> 23;
    const vint mantissa = raw - (n << 23);
    vfloat m;
    std::memcpy(&m, &mantissa, sizeof m);
    const vfloat s = (m - 1.0f) / (m + 1.0f), z = s * s;
    vfloat p = splat(2.0f / 9);
    p = p * z + 2.0f / 7;
    p = p * z + 2.0f / 5;
    p = p * z + 2.0f / 3;
    p = p * z + 2.0f;
    const vfloat result = __builtin_convertvector(n, vfloat) * 0.693147181f + (p * s + lost);
    return not_finite(y) ? y : result;
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
