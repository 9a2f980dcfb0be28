// build: exact
// Bayesian linear regression on the CPU, one sequence per SIMD lane, and its tunnel; the definition is reference.py.
//
//   m ← m + g (y − m·x),  Σ ← Σ − g (Σx)ᵀ,  g = Σx/s²,  s² = σ² + xᵀΣx;   p(bin) = Φ((b − m·x)/s) − Φ((a − m·x)/s)
#include "bayes.h"
#include "philox.h"

namespace {

// As native.py packs it. x (B, L, D), y (B, L), edges (C − 1,), all of one type.
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

constexpr int64_t STEPS = 16;

template <class T>
inline Mask<T> not_finite(Pack<T> x) {
    const Pack<T> zero = x - x;
    return ~(zero == T(0));
}

template <class T>
int regression_block(const RegressionProblem& p, int64_t first, int64_t rows, Pack<T>* scratch) {
    const int64_t D = p.dimensions, C = p.classes, L = p.length;
    Weights<T> weights(D, p.tau, p.sigma, scratch);
    Pack<T>* x = scratch + Weights<T>::packs(D);
    Pack<T>* y = x + STEPS * D;
    Pack<T>* bins = y + STEPS;
    Pack<T> mean[STEPS], variance[STEPS], entropy[STEPS], evidence{};
    Mask<T> bad{};
    const auto put = [&](void* to, int64_t width, int64_t t, int64_t steps, const Pack<T>* from) {
        store_columns<T>(static_cast<T*>(to) + (first * L + t) * width, L * width, rows, steps * width, from);
    };
    for (int64_t t0 = 0; t0 < L; t0 += STEPS) {
        const int64_t steps = at_most(L - t0, STEPS);
        load_columns<T>(static_cast<const T*>(p.x) + (first * L + t0) * D, L * D, rows, steps * D, x);
        load_columns<T>(static_cast<const T*>(p.y) + first * L + t0, L, rows, steps, y);
        for (int64_t t = 0; t < steps; t++) {
            if (p.validate) {
                bad |= not_finite<T>(y[t]);
                for (int64_t i = 0; i < D; i++) bad |= not_finite<T>(x[t * D + i]);
            }
            weights.predict(x + t * D, mean[t], variance[t]);
            const Pack<T> residual = y[t] - mean[t];
            weights.learn(residual, variance[t]);
            // ln(2π s²) = ln 2 · log2(2π s²)
            const Pack<T> spread = variance[t] * T(6.283185307179586);
            evidence -= T(0.5) * (residual * residual / variance[t] + log2_of(spread) * T(0.69314718055994530942));
            binned_normal<T>(mean[t], variance[t], static_cast<const T*>(p.edges), C, bins);
            Pack<T> sum{};
            for (int64_t c = 0; c < C; c++) sum += surprise<T>(bins[c]);
            entropy[t] = sum < T(0) ? Pack<T>{} : sum;
            put(p.predictive, C, t0 + t, 1, bins);
        }
        put(p.mean, 1, t0, steps, mean);
        put(p.variance, 1, t0, steps, variance);
        put(p.entropy, 1, t0, steps, entropy);
    }
    store_part(static_cast<T*>(p.evidence) + first, evidence, rows);
    return any(bad) ? REFUSED : FINE;
}

template <class T>
int regression(const RegressionProblem& p) {
    const int64_t packs = Weights<T>::packs(p.dimensions) + STEPS * (p.dimensions + 1) + p.classes;
    return in_blocks<T>(p.batch, p.threads, packs, [&](int64_t first, int64_t rows, Pack<T>* scratch) {
        return regression_block<T>(p, first, rows, scratch);
    });
}

// Sixteen rows: float64 inside, in two halves of the lanes, rounded to float32 on the way out.
class RegressionSampler {
   public:
    explicit RegressionSampler(const RegressionSample& p)
        : p(p), D(p.dimensions), L(p.pairs), C(p.classes), count(D + L * (D + 1)), padded((count + 1 + 63) / 64 * 64) {}
    int64_t packs() const {
        return padded / 16 + padded / 8 + 2 * L * (D + 1) + 2 * Weights<double>::packs(D) + C + C + STEPS;
    }
    int block(int64_t first, int64_t rows, Pack<double>* scratch) const {
        constexpr int W = LANES<double>;
        auto* words = reinterpret_cast<uint32_t*>(scratch);
        auto* normal = reinterpret_cast<double*>(scratch + padded / 16);
        Pack<double>* shown = scratch + padded / 16 + padded / 8;  // of each half: x and y of every pair
        Pack<double>* states = shown + 2 * L * (D + 1);
        Pack<double>* bins = states + 2 * Weights<double>::packs(D);
        auto* out = reinterpret_cast<float(*)[ROWS]>(bins + C);
        auto* bits_out = out + C;
        for (int64_t i = 0; i < ROWS; i++) draw(first + at_most(i, rows - 1), words, normal, shown + (i / W) * L * (D + 1), i % W);
        Weights<double> halves[2] = {{D, p.tau, p.sigma, states}, {D, p.tau, p.sigma, states + Weights<double>::packs(D)}};
        for (int64_t k = 0; k < L; k++) {
            for (int half = 0; half < 2; half++) {
                const Pack<double>* x = shown + (half * L + k) * (D + 1);
                Pack<double> mean, variance;
                halves[half].predict(x, mean, variance);
                halves[half].learn(x[D] - mean, variance);
                binned_normal<double>(mean, variance, p.edges, C, bins);
                for (int64_t c = 0; c < C; c++) store_single(out[c] + half * W, bins[c]);
                store_single(bits_out[k % STEPS] + half * W, entropy_quick(C, bins));
            }
            store_columns<float>(p.predictive + (first * L + k) * C, L * C, rows, C, reinterpret_cast<Pack<float>*>(out));
            if (k % STEPS == STEPS - 1 || k == L - 1)
                store_columns<float>(p.entropy + first * L + k - k % STEPS, L, rows, k % STEPS + 1, reinterpret_cast<Pack<float>*>(bits_out));
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
