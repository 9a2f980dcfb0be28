// Float lanes, sixteen on AVX-512 and eight elsewhere: loads and stores of any dtype and layout, transposes, sums across
// lanes, exp, softplus.
//
// Written with the compiler's vector extensions, so that it builds for any CPU; AVX and AVX-512 take a shorter way where
// they have the instruction. A vector wider than the CPU's own would live in memory instead of registers and cost ten
// times the time. A kernel keeps one channel per lane and walks along time.
#pragma once
#include <algorithm>
#include <utility>

#include "common.h"

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <xmmintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANE_COUNT = 16;
#else
constexpr int LANE_COUNT = 8;
#endif
constexpr int64_t LANES = LANE_COUNT;
typedef float vf __attribute__((vector_size(4 * LANE_COUNT)));
typedef int32_t vi __attribute__((vector_size(4 * LANE_COUNT)));
typedef float vf_any __attribute__((vector_size(4 * LANE_COUNT), aligned(4), may_alias));
typedef uint16_t vh_any __attribute__((vector_size(2 * LANE_COUNT), aligned(2), may_alias));
typedef uint16_t vh __attribute__((vector_size(2 * LANE_COUNT)));
// What Python must know of it: partial sums come one per lane.
EXPORT int64_t lane_count() { return LANES; }
using LaneSequence = std::make_integer_sequence<int, LANE_COUNT>;

// The codes of a tensor's dtype, as the Python side passes them.
enum Dtype : int64_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define SHUFFLE(x, y, ...) __builtin_shuffle(x, y, (vi){__VA_ARGS__})
#endif

template <int... I>
static inline vi lane_numbers(std::integer_sequence<int, I...>) {
    return vi{I...};
}
// 0, 1, 2, …
static inline vi lane_numbers() { return lane_numbers(LaneSequence{}); }

static inline vf splat(float x) { return vf{} + x; }
static inline vf load(const float* p) { return *reinterpret_cast<const vf_any*>(p); }
static inline void store(float* p, vf x) { *reinterpret_cast<vf_any*>(p) = x; }
static inline vi bits(vf x) { return (vi)x; }
static inline vf floats(vi x) { return (vf)x; }
static inline vf select(vi mask, vf yes, vf no) { return floats((mask & bits(yes)) | (~mask & bits(no))); }

// Denormals cost a hundred cycles each and carry nothing here: zero inside a kernel, as before outside it.
struct FlushDenormals {
#if defined(__SSE2__)
    unsigned saved = _mm_getcsr();
    FlushDenormals() { _mm_setcsr(saved | 0x8040u); }
    ~FlushDenormals() { _mm_setcsr(saved); }
#else
    FlushDenormals() {}
#endif
};

// Keeps the compiler, which may reassociate, from seeing through a rounding that is meant.
static inline vf rounded(vf x) {
#if defined(__AVX512F__)
    asm("" : "+v"(x));
#elif defined(__AVX__)
    asm("" : "+x"(x));
#else
    asm("" : "+m"(x));
#endif
    return x;
}

// The integer nearest to x, and 2^r · 2^n for |r| ≤ 1/2 and an integer n: exact at r = 0, within 1e-7 elsewhere.
static inline vf nearest(vf x) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return x - (vf)_mm512_reduce_ps((__m512)x, 8);  // the remainder of ±inf is 0
#elif defined(__AVX__) && !defined(__AVX512F__)
    return (vf)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const vf magic = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to an integer
    return rounded(x + magic) - magic;
#endif
}

static inline vf polynomial(vf r) {
    // Minimax coefficients of (2^r − 1) / r on [−1/2, 1/2], weighted by r / 2^r: 9.2e-8 in 2^r, vanishing at r = 0.
    vf p = splat(1.326472731307149e-3f);
    p = p * r + splat(9.671512991189957e-3f);
    p = p * r + splat(5.550733581185341e-2f);
    p = p * r + splat(2.4022242426872253e-1f);
    p = p * r + splat(6.931470036506653e-1f);
    return p * r + splat(1.0f);
}

static inline vf power(vf r, vf n) {
    vf p = polynomial(r);
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    vi whole = __builtin_convertvector(n, vi), half = whole >> 1;
    vf low = floats((half + 127) << 23), high = floats((whole - half + 127) << 23);
    return p * low * high;
#endif
}

// 2^x for any x: 0 and inf at the ends, NaN kept.
static inline vf exp2_lanes(vf x) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    vf r = (vf)_mm512_reduce_ps((__m512)x, 8);
    return power(r, x - r);
#else
    // One factor 2^n serves from 2^-126 to 2^127; −127 and 128 have the bits of 0 and inf.
    x = x < splat(-127.0f) ? splat(-127.0f) : x;
    x = x > splat(128.0f) ? splat(128.0f) : x;
    vf n = nearest(x);
    return polynomial(x - n) * floats((__builtin_convertvector(n, vi) + 127) << 23);
#endif
}

constexpr float LOG2E = 1.44269504088896340736f;

// exp(x) for x ≤ 0, with relative precision far down: x·log2(e) would carry a rounding of |x| · 2^-24.
static inline vf exp_negative(vf x) {
    x = x < splat(-150.0f) ? splat(-150.0f) : x;
    vf n = nearest(x * LOG2E);
    vf r = rounded(x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts; the first product is exact
    return power(r * LOG2E, n);
}

// 1 / x for 1 ≤ x ≤ 8: a table look-up and one Newton step where a division would take four times as long.
static inline vf reciprocal(vf x) {
#if defined(__AVX512F__)
    vf r = (vf)_mm512_rcp14_ps((__m512)x);
    return r + r * (1.0f - x * r);
#else
    return 1.0f / x;
#endif
}

static inline vf sigmoid_lanes(vf x) {
    vi negative = x < splat(0.0f);
    vf w = exp_negative(select(negative, x, -x));
    return select(negative, w, splat(1.0f)) * reciprocal(1.0f + w);
}

// softplus(x) = max(x, 0) + log1p(exp(−|x|)), relative precision kept for very negative x; slope = sigmoid(x).
static inline vf softplus_lanes(vf x, vf& slope) {
    vi negative = x < splat(0.0f);
    vf w = exp_negative(select(negative, x, -x)), r = reciprocal((1.0f + w) * (2.0f + w));
    slope = select(negative, w, splat(1.0f)) * ((2.0f + w) * r);
    // log1p(w) = 2 atanh(s), s = w / (2 + w) ≤ 1/3
    vf s = w * ((1.0f + w) * r), q = s * s;
    vf p = splat(1.0f / 13);
    p = p * q + splat(1.0f / 11);
    p = p * q + splat(1.0f / 9);
    p = p * q + splat(1.0f / 7);
    p = p * q + splat(1.0f / 5);
    p = p * q + splat(1.0f / 3);
    p = p * q + splat(1.0f);
    return select(negative, splat(0.0f), x) + 2.0f * s * p;
}

static inline vf from_half_bits(vi h) {
    vi sign = (h & 0x8000) << 16, rest = h & 0x7fff;
    // Rebias the exponent by a product, which also makes fp16 subnormals come out right; the top exponent is inf/NaN.
    vf finite = floats(rest << 13) * splat(5.192296858534828e33f);  // 2^112
    vf special = floats((rest << 13) | 0x7f800000);
    return floats(bits(select(rest >= 0x7c00, special, finite)) | sign);
}

static inline vi to_half_bits(vf x) {
    vi b = bits(x), sign = (b >> 16) & 0x8000, rest = b & 0x7fffffff;
    vi normal = (rest - (112 << 23) + 0xfff + ((rest >> 13) & 1)) >> 13;
    vf shifted = floats(rest) + splat(0.5f);  // fp16 subnormals: the sum rounds at their last bit, 2^-24
    vi tiny = bits(shifted) - bits(splat(0.5f));
    vi result = (rest < (113 << 23)) ? tiny : normal;
    result = (rest >= 0x477ff000) ? vi{} + 0x7c00 : result;
    result = (rest > 0x7f800000) ? vi{} + 0x7e00 : result;
    return result | sign;
}

static inline vi to_bfloat_bits(vf x) {
    vi b = bits(x), rounded = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
    return (((b & 0x7fffffff) > 0x7f800000) ? vi{} + 0x7fc0 : rounded) & 0xffff;
}

// One element of a tensor, any dtype.
static inline float element(const void* p, int64_t index, int64_t dtype) {
    if (dtype == FLOAT32) return static_cast<const float*>(p)[index];
    vi word = vi{} + int32_t(static_cast<const uint16_t*>(p)[index]);
    return dtype == BFLOAT16 ? floats(word << 16)[0] : from_half_bits(word)[0];
}

static inline void set_element(void* p, int64_t index, int64_t dtype, float value) {
    if (dtype == FLOAT32) {
        static_cast<float*>(p)[index] = value;
        return;
    }
    vf x = splat(value);
    static_cast<uint16_t*>(p)[index] = uint16_t(dtype == BFLOAT16 ? to_bfloat_bits(x)[0] : to_half_bits(x)[0]);
}

// `count` ≤ LANES consecutive elements; the lanes beyond are 0 and their memory is not touched.
template <int DTYPE>
static inline vf load_row(const void* base, int64_t index, int64_t count) {
    if (DTYPE == FLOAT32) {
        const float* p = static_cast<const float*>(base) + index;
        if (count >= LANES) return load(p);
#if defined(__AVX512F__)
        return (vf)_mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), p);
#elif defined(__AVX__)
        return (vf)_mm256_maskload_ps(p, (__m256i)(lane_numbers() < int32_t(count)));
#else
        vf x = {};
        for (int64_t i = 0; i < count; ++i) x[i] = p[i];
        return x;
#endif
    }
    const uint16_t* p = static_cast<const uint16_t*>(base) + index;
    vh raw = {};
    if (count >= LANES) raw = *reinterpret_cast<const vh_any*>(p);
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    else raw = (vh)_mm256_maskz_loadu_epi16(__mmask16((1u << count) - 1), p);
#else
    else for (int64_t i = 0; i < count; ++i) raw[i] = p[i];
#endif
    vi wide = __builtin_convertvector(raw, vi);
    return DTYPE == BFLOAT16 ? floats(wide << 16) : from_half_bits(wide);
}

template <int DTYPE>
static inline void store_row(void* base, int64_t index, int64_t count, vf x) {
    if (DTYPE == FLOAT32) {
        float* p = static_cast<float*>(base) + index;
        if (count >= LANES) return store(p, x);
#if defined(__AVX512F__)
        _mm512_mask_storeu_ps(p, __mmask16((1u << count) - 1), (__m512)x);
#elif defined(__AVX__)
        _mm256_maskstore_ps(p, (__m256i)(lane_numbers() < int32_t(count)), (__m256)x);
#else
        for (int64_t i = 0; i < count; ++i) p[i] = x[i];
#endif
        return;
    }
    uint16_t* p = static_cast<uint16_t*>(base) + index;
    vh raw = __builtin_convertvector(DTYPE == BFLOAT16 ? to_bfloat_bits(x) : to_half_bits(x), vh);
    if (count >= LANES) *reinterpret_cast<vh_any*>(p) = raw;
    else for (int64_t i = 0; i < count; ++i) p[i] = raw[i];
}

// One stage of a transposition: vectors S apart swap the halves whose lane index has bit S.
template <int S, int... I>
static inline void exchange(vf& x, vf& y, std::integer_sequence<int, I...>) {
    const vf low = SHUFFLE(x, y, (I & S ? LANE_COUNT + I - S : I)...);
    y = SHUFFLE(x, y, (I & S ? LANE_COUNT + I : I + S)...);
    x = low;
}

template <int S = LANE_COUNT / 2>
static inline void transpose(vf v[LANE_COUNT]) {
#pragma GCC unroll 16
    for (int i = 0; i < LANE_COUNT; ++i)
        if (!(i & S)) exchange<S>(v[i], v[i + S], LaneSequence{});
    if constexpr (S > 1) transpose<S / 2>(v);
}

// Half of x's sums and half of y's: one blend and one shuffle a pair.
template <int S, int... I>
static inline vf fold(vf x, vf y, std::integer_sequence<int, I...>) {
    return SHUFFLE(x, y, (I & S ? LANE_COUNT + I : I)...) + SHUFFLE(x, y, (I & S ? LANE_COUNT + I - S : I + S)...);
}

// Lane i of the result is the sum over the lanes of v[i]; v is used up.
template <int S = LANE_COUNT / 2>
static inline vf sums(vf v[LANE_COUNT]) {
#pragma GCC unroll 8
    for (int i = 0; i < S; ++i) v[i] = fold<S>(v[i], v[i + S], LaneSequence{});
    if constexpr (S > 1) return sums<S / 2>(v);
    return v[0];
}

// A tensor of up to five axes, as views.py packs it; data is null where an optional tensor is absent.
struct View {
    char* data;
    int64_t dtype;
    int64_t stride[5];  // in elements
    explicit operator bool() const { return data != nullptr; }
    int64_t at(int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0, int64_t m = 0) const {
        return i * stride[0] + j * stride[1] + k * stride[2] + l * stride[3] + m * stride[4];
    }
};

// A rectangle of a tensor: `lanes` channels by `steps` positions, with the strides of both in elements.
struct Plane {
    void* data;
    int64_t dtype, lane_stride, step_stride;
    // The two axes of `view` that the rectangle spans.
    Plane(const View& view, int lane_axis, int step_axis)
        : data(view.data), dtype(view.dtype), lane_stride(view.stride[lane_axis]), step_stride(view.stride[step_axis]) {}
};

// Where the tile that would start at `next` starts: the last one overlaps the one before, as a whole tile costs less
// than a part of one. Only fewer steps than lanes make a partial tile.
static inline int64_t tile_start(int64_t next, int64_t steps) {
    return std::max<int64_t>(0, std::min(next, steps - LANES));
}

template <int DTYPE>
__attribute__((noinline)) static void gather_as(const Plane& from, int64_t offset, int64_t lanes, int64_t steps, float* to, int64_t pitch) {
    if (from.lane_stride == 0 && from.step_stride == 0 && lanes == LANES) {
        // What .sum().backward() sends: one number for all.
        for (int64_t t = 0; t < steps; ++t) store(to + t * pitch, splat(element(from.data, offset, DTYPE)));
    } else if (from.lane_stride == 1) {
        for (int64_t t = 0; t < steps; ++t)
            store(to + t * pitch, load_row<DTYPE>(from.data, offset + t * from.step_stride, lanes));
    } else if (from.step_stride == 1) {
        for (int64_t next = 0; next < steps; next += LANES) {
            const int64_t t0 = tile_start(next, steps), count = std::min(LANES, steps);
            vf v[LANE_COUNT];
            int64_t row = offset + t0;
            if (lanes == LANES && count == LANES) {
#pragma GCC unroll 16
                for (int i = 0; i < LANE_COUNT; ++i, row += from.lane_stride) v[i] = load_row<DTYPE>(from.data, row, LANES);
                transpose(v);
#pragma GCC unroll 16
                for (int i = 0; i < LANE_COUNT; ++i) store(to + (t0 + i) * pitch, v[i]);
                continue;
            }
            for (int64_t i = 0; i < LANES; ++i, row += from.lane_stride)
                v[i] = i < lanes ? load_row<DTYPE>(from.data, row, count) : vf{};
            transpose(v);
            for (int64_t i = 0; i < count; ++i) store(to + (t0 + i) * pitch, v[i]);
        }
    } else {
        for (int64_t t = 0; t < steps; ++t) {
            vf x = {};
            for (int64_t i = 0; i < lanes; ++i)
                x[i] = element(from.data, offset + i * from.lane_stride + t * from.step_stride, DTYPE);
            store(to + t * pitch, x);
        }
    }
}

// Read a rectangle as to[step · pitch + lane], zero in the lanes beyond `lanes`.
static inline void gather(const Plane& from, int64_t offset, int64_t lanes, int64_t steps, float* to,
                          int64_t pitch = LANES) {
    if (from.dtype == FLOAT32) gather_as<FLOAT32>(from, offset, lanes, steps, to, pitch);
    else if (from.dtype == BFLOAT16) gather_as<BFLOAT16>(from, offset, lanes, steps, to, pitch);
    else gather_as<FLOAT16>(from, offset, lanes, steps, to, pitch);
}

template <int DTYPE>
__attribute__((noinline)) static void scatter_as(const Plane& into, int64_t offset, int64_t lanes, int64_t steps, const float* from) {
    if (into.lane_stride == 1) {
        for (int64_t t = 0; t < steps; ++t)
            store_row<DTYPE>(into.data, offset + t * into.step_stride, lanes, load(from + t * LANES));
    } else if (into.step_stride == 1) {
        for (int64_t next = 0; next < steps; next += LANES) {
            const int64_t t0 = tile_start(next, steps), count = std::min(LANES, steps);
            vf v[LANE_COUNT];
            int64_t row = offset + t0;
#pragma GCC unroll 16
            for (int i = 0; i < LANE_COUNT; ++i) v[i] = i < count ? load(from + (t0 + i) * LANES) : vf{};
            transpose(v);
            if (lanes == LANES && count == LANES) {
#pragma GCC unroll 16
                for (int i = 0; i < LANE_COUNT; ++i, row += into.lane_stride) store_row<DTYPE>(into.data, row, LANES, v[i]);
                continue;
            }
            for (int64_t i = 0; i < lanes; ++i, row += into.lane_stride)
                store_row<DTYPE>(into.data, row, count, v[i]);
        }
    } else {
        for (int64_t t = 0; t < steps; ++t)
            for (int64_t i = 0; i < lanes; ++i)
                set_element(into.data, offset + i * into.lane_stride + t * into.step_stride, DTYPE,
                            from[t * LANES + i]);
    }
}

// Write from[step · LANES + lane] to a rectangle; what lies outside it is not touched.
static inline void scatter(const Plane& into, int64_t offset, int64_t lanes, int64_t steps, const float* from) {
    if (into.dtype == FLOAT32) scatter_as<FLOAT32>(into, offset, lanes, steps, from);
    else if (into.dtype == BFLOAT16) scatter_as<BFLOAT16>(into, offset, lanes, steps, from);
    else scatter_as<FLOAT16>(into, offset, lanes, steps, from);
}
