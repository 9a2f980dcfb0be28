// build: exact
// Bayesian linear regression on the CPU, one sequence per SIMD lane, and its tunnel; the definition is reference.py.
//
//   m ← m + g (y − m·x),  Σ ← Σ − g (Σx)ᵀ,  g = Σx/s²,  s² = σ² + xᵀΣx;   p(bin) = Φ((b − m·x)/s) − Φ((a − m·x)/s)
// with Σ kept factorised.
#include "bayes.h"
#include "bins.h"
#include "philox.h"

namespace {

// As native.py packs it. x (B, L, D), y (B, L) and the results of one type; edges (C − 1,) float64.
struct RegressionProblem {
    int64_t batch, length, dimensions, classes, threads, validate;
    const void *x, *y, *edges;
    void *mean, *variance, *predictive, *entropy, *evidence;
    double tau, sigma;
};
// inputs (R, 2L − 1, D + 3), predictive (R, L, C), entropy (R, L) float32; targets (R, L) int64; edges float64.
struct RegressionSample {
    Draw draw;
    int64_t pairs, dimensions, classes, threads;
    const double* edges;
    float* inputs;
    int64_t* targets;
    float *predictive, *entropy;
    double tau, sigma;
};

constexpr int64_t STEPS = 16, LARGE = 1 << 20;  // LARGE: bytes that are not to pass through the cache

inline void store_as(float* to, Pack<double> x) { store_single(to, x); }
inline void store_as(double* to, Pack<double> x) { store(to, x); }
inline Pack<double> entropy_as(float, int64_t count, const Pack<double>* p) { return entropy_quick(count, p); }
inline Pack<double> entropy_as(double, int64_t count, const Pack<double>* p) { return entropy_of<0, double>(count, p); }

// LANES<T> sequences: float64 inside, in HALVES of the lanes, since a small noise beside a large prior leaves float32
// no digits; rounded to T once on the way out. Absent results are null.
template <class T>
class Follower {
   public:
    static constexpr int W = LANES<double>, HALVES = LANES<T> / W;
    struct Results {
        T *mean, *variance, *predictive, *entropy, *evidence;
    };
    static int64_t packs(int64_t D, int64_t C) {
        return HALVES * Weights::packs(D) + C + (C + 3 * STEPS) * HALVES;
    }
    Follower(int64_t batch, int64_t D, int64_t C, int64_t L, double tau, double sigma, const double* edges, Pack<double>* scratch)
        : C(C), L(L), large(batch * L * C * int64_t(sizeof(T)) >= LARGE), edges(edges), equal(edges, C), bins(scratch + HALVES * Weights::packs(D)),
          out(reinterpret_cast<T(*)[LANES<T>]>(bins + C)),
          halves{{D, tau, sigma, scratch}, {D, tau, sigma, scratch + (HALVES - 1) * Weights::packs(D)}} {}
    // Steps t0 … t0 + steps − 1 ≤ STEPS of rows first … : pairs[half][t] holds x (D), then y.
    void follow(const Pack<double>* pairs, int64_t D, int64_t t0, int64_t steps, int64_t first, int64_t rows,
                const Results& to) {
        summary = out + C;  // mean, variance, entropy of STEPS steps each
        for (int64_t t = 0; t < steps; t++) {
            for (int h = 0; h < HALVES; h++) {
                const Pack<double>* x = pairs + (h * steps + t) * (D + 1);
                halves[h].predict(x, mean[h], variance[h]);
                const Pack<double> residual = x[D] - mean[h];
                halves[h].learn(residual);
                if (to.evidence) {
                    Mask<double> exponent;
                    squares[h] += residual * residual / variance[h];
                    mantissas[h] *= significand<double>(variance[h], exponent);
                    exponents[h] += exponent;
                }
                store_as(summary[t] + h * W, mean[h]);
                store_as(summary[STEPS + t] + h * W, variance[h]);
            }
            bin(t);
            put(to.predictive, C, t0 + t, 1, first, rows, out);
        }
        for (int h = 0; h < HALVES; h++) {
            Mask<double> exponent;
            mantissas[h] = significand<double>(mantissas[h], exponent);
            exponents[h] += exponent;
        }
        put(to.mean, 1, t0, steps, first, rows, summary);
        put(to.variance, 1, t0, steps, first, rows, summary + STEPS);
        put(to.entropy, 1, t0, steps, first, rows, summary + 2 * STEPS);
    }
    void finish(int64_t first, int64_t rows, const Results& to) {
        T sums[LANES<T>];
        for (int h = 0; h < HALVES; h++) {
            // Σ ln(2π s²) = L ln 2π + ln 2 · Σ log2 s²
            const Pack<double> logs = log2_of(mantissas[h]) + __builtin_convertvector(exponents[h], Pack<double>);
            const Pack<double> log = logs * 0.69314718055994530942 + double(L) * 1.8378770664093454836;
            store_as(sums + h * W, -0.5 * (squares[h] + log));
        }
        std::memcpy(to.evidence + first, sums, rows * sizeof(T));
    }

   private:
    // Bins and entropy of step t, from mean and variance.
    void bin(int64_t t) {
        typename EqualBins::Half quick[2]{};
        Mask<double> slow[2] = {Mask<double>{} - 1, Mask<double>{} - 1};
        if constexpr (HALVES == 2) {
            equal.fill(mean, variance, quick, out);
            for (int h = 0; h < 2; h++) {
                slow[h] = quick[h].wide;
                store_single(summary[2 * STEPS + t] + h * W, quick[h].bits);
            }
        }
        for (int h = 0; h < HALVES; h++) {
            if (!any(slow[h])) continue;
            binned_normal(mean[h], variance[h], edges, C, bins);
            for (int64_t c = 0; c < C; c++) choose(out[c] + h * W, bins[c], slow[h]);
            choose(summary[2 * STEPS + t] + h * W, entropy_as(T(), C, bins), slow[h]);
        }
    }
    // Lane by lane, so that a sequence has the same bits beside any others.
    static void choose(T* to, Pack<double> x, Mask<double> lanes) {
        T rounded[W];
        store_as(rounded, x);
        for (int l = 0; l < W; l++) to[l] = lanes[l] ? rounded[l] : to[l];
    }
    void put(T* to, int64_t width, int64_t t, int64_t steps, int64_t first, int64_t rows, const T (*from)[LANES<T>]) {
        if (to != nullptr)
            store_columns<T>(to + (first * L + t) * width, L * width, rows, steps * width,
                             reinterpret_cast<const Pack<T>*>(from), large);
    }
    const int64_t C, L;
    const bool large;
    const double* edges;
    const EqualBins equal;
    Pack<double>* bins;
    T (*out)[LANES<T>], (*summary)[LANES<T>] = nullptr;
    Weights halves[2];
    Pack<double> mean[2], variance[2];
    // Of the evidence: Σ (y − mean)²/s², and Π s² as mantissa and exponent.
    Pack<double> squares[2]{}, mantissas[2] = {splat(1.0), splat(1.0)};
    Mask<double> exponents[2]{};
};

template <class T>
int regression_block(const RegressionProblem& p, int64_t first, int64_t rows, Pack<double>* scratch) {
    constexpr int W = LANES<double>, HALVES = Follower<T>::HALVES;
    const int64_t D = p.dimensions, L = p.length;
    const typename Follower<T>::Results to{static_cast<T*>(p.mean), static_cast<T*>(p.variance), static_cast<T*>(p.predictive),
                                           static_cast<T*>(p.entropy), static_cast<T*>(p.evidence)};
    Follower<T> follower(p.batch, D, p.classes, L, p.tau, p.sigma, static_cast<const double*>(p.edges), scratch);
    Pack<double>* pairs = scratch + Follower<T>::packs(D, p.classes);
    auto* loaded = reinterpret_cast<T(*)[LANES<T>]>(pairs + HALVES * STEPS * (D + 1));
    Mask<double> bad{};
    for (int64_t t0 = 0; t0 < L; t0 += STEPS) {
        const int64_t steps = at_most(L - t0, STEPS);
        load_columns<T>(static_cast<const T*>(p.x) + (first * L + t0) * D, L * D, rows, steps * D, reinterpret_cast<Pack<T>*>(loaded));
        load_columns<T>(static_cast<const T*>(p.y) + first * L + t0, L, rows, steps, reinterpret_cast<Pack<T>*>(loaded + steps * D));
        for (int h = 0; h < HALVES; h++)
            for (int64_t t = 0; t < steps; t++)
                for (int64_t i = 0; i <= D; i++) {
                    const T* from = loaded[i < D ? t * D + i : steps * D + t] + h * W;
                    Pack<double>& value = pairs[(h * steps + t) * (D + 1) + i];
                    for (int l = 0; l < W; l++) value[l] = double(from[l]);
                    if (p.validate) bad |= not_finite<double>(value);
                }
        follower.follow(pairs, D, t0, steps, first, rows, to);
    }
    follower.finish(first, rows, to);
    return any(bad) ? REFUSED : FINE;
}

template <class T>
int regression(const RegressionProblem& p) {
    const int64_t pairs = (Follower<T>::HALVES + 1) * STEPS * (p.dimensions + 1);
    const int64_t packs = Follower<T>::packs(p.dimensions, p.classes) + pairs;
    return in_blocks_of<double>(LANES<T>, p.batch, p.threads, packs, [&](int64_t first, int64_t rows, Pack<double>* scratch) {
        return regression_block<T>(p, first, rows, scratch);
    });
}

// Sixteen rows at a time.
class RegressionSampler {
   public:
    explicit RegressionSampler(const RegressionSample& p)
        : p(p), D(p.dimensions), L(p.pairs), C(p.classes), count(D + L * (D + 1)), padded((count + 1 + 63) / 64 * 64) {}
    int64_t packs() const {
        return padded / 16 + padded / 8 + 2 * L * (D + 1) + 2 * STEPS * (D + 1) + Follower<float>::packs(D, C);
    }
    int block(int64_t first, int64_t rows, Pack<double>* scratch) const {
        constexpr int W = LANES<double>;
        auto* words = reinterpret_cast<uint32_t*>(scratch);
        auto* normal = reinterpret_cast<double*>(scratch + padded / 16);
        Pack<double>* shown = scratch + padded / 16 + padded / 8;  // of each half: x and y of every pair
        Pack<double>* pairs = shown + 2 * L * (D + 1);             // the same of a few steps
        Follower<float> follower(p.draw.rows(), D, C, L, p.tau, p.sigma, p.edges, pairs + 2 * STEPS * (D + 1));
        const Follower<float>::Results to{nullptr, nullptr, p.predictive, p.entropy, nullptr};
        for (int64_t i = 0; i < ROWS; i++) draw(first + at_most(i, rows - 1), words, normal, shown + (i / W) * L * (D + 1), i % W);
        for (int64_t t0 = 0; t0 < L; t0 += STEPS) {
            const int64_t steps = at_most(L - t0, STEPS), size = steps * (D + 1);
            for (int h = 0; h < 2; h++)
                std::memcpy(pairs + h * size, shown + (h * L + t0) * (D + 1), size * sizeof(Pack<double>));
            follower.follow(pairs, D, t0, steps, first, rows, to);
        }
        return FINE;
    }

   private:
    // One row: its inputs and targets to memory, the float32 numbers it shows to one lane.
    void draw(int64_t row, uint32_t* words, double* normal, Pack<double>* shown, int64_t lane) const {
        words_of_row(p.draw, row, 0, count + 1, words);
        normals_of(words, count + count % 2, normal);
        const double *w = normal, *next = normal + D;
        float* inputs = p.inputs + row * (2 * L - 1) * (D + 3);
        for (int64_t k = 0; k < L; k++, next += D + 1) {
            double mean = 0.0;
            for (int64_t i = 0; i < D; i++) {
                const float x = float(next[i]);
                inputs[i] = x;
                shown[k * (D + 1) + i][lane] = double(x);
                const double term = p.tau * w[i] * double(x);
                mean = i == 0 ? term : mean + term;
            }
            const float y = float(mean + p.sigma * next[D]);
            shown[k * (D + 1) + D][lane] = double(y);
            int64_t bin = 0;
            for (int64_t c = 0; c + 1 < C; c++) bin += p.edges[c] <= double(y);
            p.targets[row * L + k] = bin;
            inputs[D] = 0.0f, inputs[D + 1] = 1.0f, inputs[D + 2] = 0.0f;
            if (k + 1 == L) break;
            inputs += D + 3;
            for (int64_t i = 0; i < D; i++) inputs[i] = 0.0f;
            inputs[D] = y, inputs[D + 1] = 0.0f, inputs[D + 2] = 1.0f;
            inputs += D + 3;
        }
    }
    const RegressionSample& p;
    const int64_t D, L, C, count, padded;
};

}  // namespace

EXPORT int regression_predictive(const RegressionProblem* p, int64_t is_double) {
    return is_double ? regression<double>(*p) : regression<float>(*p);
}
EXPORT int regression_sample(const RegressionSample* p) {
    const RegressionSampler sampler(*p);
    return in_blocks_of<double>(ROWS, p->draw.rows(), p->threads, sampler.packs(), [&](int64_t first, int64_t rows, Pack<double>* scratch) {
        return sampler.block(first, rows, scratch);
    });
}
