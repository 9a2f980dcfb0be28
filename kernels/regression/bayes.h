// Bayesian linear regression, one sequence per lane: the update of reference.py, and the binned normal.
#pragma once
#include "blocks.h"

// ½ erfc(x) for x ≥ 0: relative error 3e-7 (float), 2e-15 (double); 0 where it is below the smallest number.
//   erfc x = e^(−x²) f(t)/(1 + 2x),  t = (x − 5/2)/(x + 5/2)
// with f by Chebyshev interpolation on [−1, 1]; the form is Shepherd and Laframboise's (1981).
inline Pack<float> half_erfc(Pack<float> x) {
    static constexpr float C[] = {1.26483818f,      -0.1223567694f,   -0.09902423965f,  0.157630376f,
                                  -0.1029705553f,   0.0327554827f,    9.468088732e-4f,  -4.358277227e-3f,
                                  4.632798436e-4f,  5.834769349e-4f,  -6.389437193e-5f, -6.471063822e-5f};
    x = x > 11.0f ? splat(11.0f) : x;
    const Pack<float> high = x * x, low = fused(x, x, -high), a = x + 2.5f, b = 2.0f * x + 1.0f, r = 0.5f / (a * b);
    const Pack<float> e = exponential(-high);
    return (e - e * low) * horner((x - 2.5f) * b * (r + r), C) * (a * r);
}
inline Pack<double> half_erfc(Pack<double> x) {
    static constexpr double C[] = {1.26483818436686148,     -0.122356763082381968,   -0.099024539573609547,
                                   0.157629919021244807,    -0.102967056037892992,   0.0327608933205079606,
                                   0.000931892799563063076, -0.00438207897293871125, 0.00049186602854652627,
                                   0.000632128659057943948, -8.84806964111983943e-5, -0.000113540508856245735,
                                   6.27206228153371769e-6,  2.27490658222663165e-5,  2.59286649771896102e-6,
                                   -4.3073058970104437e-6,  -1.55736984655793491e-6, 6.34739971660338202e-7,
                                   5.02141704119834545e-7,  -5.12102640066322966e-8, -1.03842205375185051e-7,
                                   -1.78541054333108481e-10, 1.08022678688848933e-8};
    x = x > 28.0 ? splat(28.0) : x;
    const Pack<double> high = x * x, low = fused(x, x, -high), a = x + 2.5, b = 2.0 * x + 1.0, r = 0.5 / (a * b);
    const Pack<double> e = exponential(-high);
    return (e - e * low) * horner((x - 2.5) * b * (r + r), C) * (a * r);
}
template <class T>
inline Pack<T> root(Pack<T> x) {
    for (int i = 0; i < LANES<T>; i++) x[i] = std::sqrt(x[i]);
    return x;
}

// What is known about the weights: mean (D) and the upper triangle of the covariance.
template <class T>
class Weights {
   public:
    static int64_t packs(int64_t D) { return 2 * D + D * (D + 1) / 2; }
    Weights(int64_t dimensions, double tau, double sigma, Pack<T>* scratch)
        : D(dimensions), noise(T(sigma * sigma)), mean(scratch), spread(mean + D), covariance(spread + D) {
        for (int64_t i = 0, at = 0; i < D; i++) {
            mean[i] = Pack<T>{};
            for (int64_t j = i; j < D; j++) covariance[at++] = splat(i == j ? T(tau * tau) : T(0));
        }
    }
    // Mean and variance of y at x (D).
    void predict(const Pack<T>* x, Pack<T>& centre, Pack<T>& variance) {
        for (int64_t i = 0; i < D; i++) spread[i] = Pack<T>{};
        for (int64_t i = 0, at = 0; i < D; i++) {
            spread[i] = fused(covariance[at++], x[i], spread[i]);
            for (int64_t j = i + 1; j < D; j++, at++) {
                spread[i] = fused(covariance[at], x[j], spread[i]);
                spread[j] = fused(covariance[at], x[i], spread[j]);
            }
        }
        centre = Pack<T>{}, variance = Pack<T>{};
        for (int64_t i = 0; i < D; i++) {
            centre = fused(mean[i], x[i], centre);
            variance = fused(spread[i], x[i], variance);
        }
        variance += noise;
    }
    // After predict: learn y.
    void learn(Pack<T> residual, Pack<T> variance) {
        const Pack<T> scale = T(1) / variance, step = residual * scale;
        for (int64_t i = 0, at = 0; i < D; i++) {
            mean[i] = fused(spread[i], step, mean[i]);
            const Pack<T> gain = -spread[i] * scale;
            for (int64_t j = i; j < D; j++, at++) covariance[at] = fused(gain, spread[j], covariance[at]);
        }
    }

   private:
    const int64_t D;
    const T noise;
    Pack<T>*mean, *spread, *covariance;
};

// Probabilities of `classes` bins with inner edges under N(mean, variance); each edge costs one erfc, of its distance
// from the mean, so that no bin is a difference of numbers near 1.
template <class T>
inline void binned_normal(Pack<T> mean, Pack<T> variance, const T* edges, int64_t classes, Pack<T>* p) {
    const Pack<T> scale = T(1) / root<T>(variance + variance);
    Pack<T> tail{};               // mass beyond the lower edge, on the far side from the mean
    Mask<T> left = Mask<T>{} - 1;  // the lower edge lies left of the mean
    for (int64_t c = 0; c < classes; c++) {
        Pack<T> next{};
        Mask<T> next_left{};
        if (c + 1 < classes) {
            const Pack<T> z = (edges[c] - mean) * scale;
            next_left = z < T(0);
            next = half_erfc(next_left ? -z : z);
        }
        const Pack<T> inside = left ? (next_left ? next - tail : (T(1) - tail) - next) : tail - next;
        p[c] = inside < T(0) ? Pack<T>{} : inside;
        tail = next, left = next_left;
    }
}
