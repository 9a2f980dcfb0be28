// Attention weights where scores are large: products, row maxima and exponentials in double.
//
// A float32 score of D terms is off by 3e-8 to 1e-7 of |q||k| scale, less where the terms are of both signs than where
// they are not, and exp turns the absolute error of a score into a relative error of a weight. Where |q||k| scale is
// above 4 √D or 28 that comes near the 2e-6 promised of every result, and the block of rows goes through here. Rows of
// standard normal numbers have √D.
#pragma once
#include "heads.h"

// Kept out of the loops that ordinary rows run through.
#define COLD __attribute__((noinline, cold))

// The bound on |q||k| scale: 16-bit results need less.
template <class T>
inline float largest_float_score(int64_t width) {
    return (std::is_same_v<T, float> ? 1.0f : 32.0f) * std::min(4.0f * std::sqrt(float(width)), 28.0f);
}

// Per row of a block: the maximum, Σ exp(s − top) less the largest term, Σ exp(s − top) (s − top), the first maximum.
struct RowSummaries {
    float top[ROWS], rest[LANES > ROWS ? LANES : ROWS], moment[ROWS], argmax[ROWS];
};

// Whether |q||k| may exceed `bound` for one of the rows and the keys before `seen`; `norms2` as to_panels left it.
inline bool scores_may_exceed(float bound, const Rows& q, int64_t count, int64_t width, const float* norms2,
                              int64_t seen) {
    vfloat keys{}, rows[4] = {};
    const int64_t full = seen / LANES;
    for (int64_t v = 0; v < full; v++) keys = larger(load(norms2 + v * LANES), keys);
    if (full * LANES < seen) {
        const vint visible = lane_numbers() + int32_t(full * LANES) < int32_t(seen);
        keys = larger(visible ? load(norms2 + full * LANES) : vfloat{}, keys);
    }
    const auto squares = [&](int64_t r, int64_t d) { return load(q[r] + d) * load(q[r] + d); };
    for (int64_t d = 0; d < width; d += LANES) {
        int64_t r = 0;
        for (; r + 4 <= count; r += 4)
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) rows[i] += squares(r + i, d);
        for (; r < count; r++) rows[0] += squares(r, d);
    }
    // All rows together first: mostly that suffices.
    if (!any(keys * sum((rows[0] + rows[1]) + (rows[2] + rows[3])) > bound * bound)) return false;
    for (int64_t r = 0; r < count; r++) {
        vfloat row{};
        for (int64_t d = 0; d < width; d += LANES) row += squares(r, d);
        if (any(keys * sum(row) > bound * bound)) return true;
    }
    return false;
}

// Half as many doubles as there are floats in a vector, and the integers of a comparison.
constexpr int HALF = LANES / 2;
typedef double vdouble __attribute__((vector_size(8 * HALF)));
typedef int64_t vlong __attribute__((vector_size(8 * HALF)));
typedef float vfloat_half __attribute__((vector_size(4 * HALF)));
typedef int32_t vint_half __attribute__((vector_size(4 * HALF)));

inline vdouble widen_half(const float* p) {
    vfloat_half x;
    std::memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, vdouble);
}
inline vdouble load(const double* p) {
    vdouble x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
template <int... I>
inline vlong half_lane_numbers(std::integer_sequence<int, I...>) {
    return vlong{I...};
}
inline vlong half_lane_numbers(int64_t first) {
    return half_lane_numbers(std::make_integer_sequence<int, HALF>{}) + first;
}
template <int W, int... I>
inline vdouble swap_lanes(vdouble x, std::integer_sequence<int, I...>) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(x, x, (I ^ W)...);
#else
    return __builtin_shuffle(x, vlong{(I ^ W)...});
#endif
}
inline vdouble plus(vdouble a, vdouble b) { return a + b; }
inline vdouble larger(vdouble a, vdouble b) { return a > b ? a : b; }
inline vdouble smaller(vdouble a, vdouble b) { return a < b ? a : b; }
template <vdouble (*OP)(vdouble, vdouble), int W = HALF / 2>
inline double over_lanes(vdouble x) {
    x = OP(x, swap_lanes<W>(x, std::make_integer_sequence<int, HALF>{}));
    if constexpr (W > 1)
        return over_lanes<OP, W / 2>(x);
    else
        return x[0];
}

// e^x for x ≤ 0, relative error below 1e-9; 0 below −86, NaN at NaN, exactly 1 at 0. Taylor's series of 2^f, |f| ≤ ½.
inline vdouble exponential(vdouble x) {
    const vlong tiny = x < -86.0;
    const vdouble scaled = (tiny ? vdouble{} - 86.0 : x) * 1.4426950408889634;
    const vint_half n = __builtin_convertvector(scaled - 0.5, vint_half);
    const vdouble z = (scaled - __builtin_convertvector(n, vdouble)) * 0.6931471805599453;
    vdouble p = z * (1.0 / 40320) + 1.0 / 5040;
    p = p * z + 1.0 / 720;
    p = p * z + 1.0 / 120;
    p = p * z + 1.0 / 24;
    p = p * z + 1.0 / 6;
    p = p * z + 0.5;
    p = p * z + 1.0;
    p = p * z + 1.0;
    vlong raised;
    std::memcpy(&raised, &p, sizeof raised);
    raised += __builtin_convertvector(n, vlong) << 52;
    std::memcpy(&p, &raised, sizeof p);
    return tiny ? vdouble{} : p;
}

// `scale` times R rows (R × width) against what lies in panels.
template <int R>
inline void exact_products(const double* rows, const float* panels, int64_t width, double scale, int64_t vectors,
                           double* to, int64_t stride) {
    for (int64_t v = 0; v < vectors; v++) {
        const float* panel = panels + v / PAIR * PANEL * width + v % PAIR * LANES;
        vdouble low[R] = {}, high[R] = {};
        for (int64_t d = 0; d < width; d++, panel += PANEL) {
            const vdouble first = widen_half(panel), second = widen_half(panel + HALF);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                low[r] += rows[r * width + d] * first;
                high[r] += rows[r * width + d] * second;
            }
        }
        for (int r = 0; r < R; r++) {
            low[r] *= scale, high[r] *= scale;
            std::memcpy(to + r * stride + v * LANES, &low[r], sizeof low[r]);
            std::memcpy(to + r * stride + v * LANES + HALF, &high[r], sizeof high[r]);
        }
    }
}

// One row of scores to exp(s − top) in `weights`, 0 from `limit` on, and what the forward pass needs to know of it.
template <bool STATISTICS>
inline void exact_row(const double* s, int64_t limit, int64_t vectors, float* weights, RowSummaries& rows, int64_t r) {
    const double infinity = std::numeric_limits<double>::infinity();
    const int64_t halves = (limit + HALF - 1) / HALF;
    vdouble tops = vdouble{} - infinity;
    for (int64_t h = 0; h < halves; h++)
        tops = larger(half_lane_numbers(h * HALF) < limit ? load(s + h * HALF) : vdouble{} - infinity, tops);
    const double top = over_lanes<larger>(tops);
    vdouble rest{}, ties{}, moment{}, first = vdouble{} + 1e9;
    for (int64_t h = halves - 1; h >= 0; h--) {
        const vlong key = half_lane_numbers(h * HALF), seen = key < limit;
        const vdouble x = load(s + h * HALF) - top, e = seen ? exponential(x) : vdouble{};
        const vlong largest = seen & (x == 0.0);
        const vfloat_half weight = __builtin_convertvector(e, vfloat_half);
        std::memcpy(weights + h * HALF, &weight, sizeof weight);
        rest += largest ? vdouble{} : e;
        ties += largest ? vdouble{} + 1.0 : vdouble{};
        if (!STATISTICS) continue;
        moment += e == 0.0 ? vdouble{} : e * x;
        first = largest ? __builtin_convertvector(key, vdouble) : first;
    }
    std::fill(weights + halves * HALF, weights + vectors * LANES, 0.0f);
    rows.top[r] = float(top);
    // The largest term, exactly 1, stays out of the sum, by a conversion that -fassociative-math cannot undo.
    rows.rest[r] = float(over_lanes<plus>(rest) + double(int64_t(over_lanes<plus>(ties)) - 1));
    if (!STATISTICS) return;
    rows.moment[r] = float(over_lanes<plus>(moment));
    rows.argmax[r] = float(over_lanes<smaller>(first));
}

// Weights, and compatibilities for the backward pass, of blocks of rows of one key head. Unscaled keys are laid out when
// first asked for.
class Exact {
   public:
    // Floats of scratch for keys and values of up to `widest` columns, rows of scores being `stride` apart.
    static int64_t scratch_size(int64_t padded_keys, int64_t widest, int64_t stride) {
        return padded_keys * widest + 2 * ROWS * (widest + stride) + 3 * 16;
    }
    Exact(Scratch& scratch, int64_t padded_keys, int64_t widest, int64_t stride) : stride_(stride) {
        k_ = scratch.take(padded_keys * widest);
        rows_ = reinterpret_cast<double*>(scratch.take(2 * ROWS * widest));
        products_ = reinterpret_cast<double*>(scratch.take(2 * ROWS * stride));
    }
    void use(const Rows& keys, int64_t count, int64_t width, double scale) {
        keys_ = keys, count_ = count, width_ = width, scale_ = scale;
        laid_out_ = false;
    }

    // Unnormalised weights of `count` rows; limit(r) keys are visible to row r.
    template <bool STATISTICS, class Limit>
    COLD void weights(const Rows& q, int64_t count, int64_t vectors, Limit limit, float* weights, RowSummaries& rows) {
        if (!laid_out_) to_panels(keys_, count_, width_, 1.0f, k_);
        laid_out_ = true;
        multiply(q, count, width_, k_, scale_, vectors);
        for (int64_t r = 0; r < count; r++)
            exact_row<STATISTICS>(products_ + r * stride_, limit(r), vectors, weights + r * stride_, rows, r);
    }

    // b_j − b_t, 0 from limit[r] on, and pivot[r] = b_t, for the key t of the row's largest weight; v in panels.
    COLD void compatibilities(const Rows& u, int64_t count, int64_t width, const float* v, int64_t vectors,
                         const int64_t* limit, const int64_t* largest, float* b, float* pivot) {
        multiply(u, count, width, v, 1.0, vectors);
        for (int64_t r = 0; r < count; r++) {
            const double* row = products_ + r * stride_;
            pivot[r] = float(row[largest[r]]);
            for (int64_t j = 0; j < vectors * LANES; j++)
                b[r * stride_ + j] = j < limit[r] ? float(row[j] - row[largest[r]]) : 0.0f;
        }
    }

   private:
    void multiply(const Rows& rows, int64_t count, int64_t width, const float* panels, double scale, int64_t vectors) {
        for (int64_t r = 0; r < count; r++)
            for (int64_t d = 0; d < width; d++) rows_[r * width + d] = double(rows[r][d]);
        constexpr int MOST = 4 * PAIR;
        int64_t r = 0;
        for (; r + MOST <= count; r += MOST)
            exact_products<MOST>(rows_ + r * width, panels, width, scale, vectors, products_ + r * stride_, stride_);
        for (; r < count; r++)
            exact_products<1>(rows_ + r * width, panels, width, scale, vectors, products_ + r * stride_, stride_);
    }

    const int64_t stride_;
    int64_t count_ = 0, width_ = 0;
    double scale_ = 1;
    Rows keys_{};
    bool laid_out_ = false;
    float* k_;
    double *rows_, *products_;
};
