// Bayesian linear regression, one sequence per lane: Bierman's update, and the binned normal.
// G. J. Bierman (1977), "Factorization methods for discrete sequential estimation", section V.3.
#pragma once
#include "blocks.h"

// ½ erfc(x) for x ≥ 0: relative error 2e-15; 0 where it is below the smallest number.
//   erfc x = e^(−x²) f(t)/(1 + 2x),  t = (x − 5/2)/(x + 5/2)
// with f by Chebyshev interpolation on [−1, 1]; the form is Shepherd and Laframboise's (1981).
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
inline Pack<double> root(Pack<double> x) {
    for (int i = 0; i < LANES<double>; i++) x[i] = std::sqrt(x[i]);
    return x;
}

// What is known about the weights: mean (D), and the covariance as U diag(spread) Uᵀ with U unit upper triangular.
class Weights {
   public:
    static int64_t packs(int64_t D) { return 6 * D + 1 + D * D; }
    Weights(int64_t dimensions, double tau, double sigma, Pack<double>* scratch)
        : D(dimensions), mean(scratch), spread(mean + D), seen(spread + D), moved(seen + D), gain(moved + D),
          total(gain + D), factor(total + D + 1) {
        for (int64_t i = 0; i < D; i++) mean[i] = Pack<double>{}, spread[i] = splat(tau * tau);
        for (int64_t i = 0; i < D * D; i++) factor[i] = Pack<double>{};
        total[0] = splat(sigma * sigma);
    }
    // Mean and variance of y at x (D). The variance is a sum of positive terms.
    void predict(const Pack<double>* x, Pack<double>& centre, Pack<double>& variance) {
        centre = Pack<double>{};
        for (int64_t j = 0; j < D; j++) {
            centre = fused(mean[j], x[j], centre);
            seen[j] = x[j];
            for (int64_t i = 0; i < j; i++) seen[j] = fused(factor[j * D + i], x[i], seen[j]);
            moved[j] = spread[j] * seen[j];
            total[j + 1] = fused(seen[j], moved[j], total[j]);
        }
        variance = total[D];
    }
    // After predict: learn what y was beyond its mean. Bierman's update: the spread shrinks by quotients below 1.
    void learn(Pack<double> residual) {
        Pack<double> before = 1.0 / total[0];
        for (int64_t j = 0; j < D; j++) {
            const Pack<double> after = 1.0 / total[j + 1], back = -seen[j] * before;
            spread[j] *= total[j] * after;
            gain[j] = moved[j];
            for (int64_t i = 0; i < j; i++) {
                const Pack<double> old = factor[j * D + i];
                factor[j * D + i] = fused(gain[i], back, old);
                gain[i] = fused(old, moved[j], gain[i]);
            }
            before = after;
        }
        const Pack<double> step = residual * before;
        for (int64_t i = 0; i < D; i++) mean[i] = fused(gain[i], step, mean[i]);
    }

   private:
    const int64_t D;
    Pack<double>*mean, *spread, *seen, *moved, *gain, *total, *factor;  // factor[j·D + i] = U_ij for i < j
};

// Probabilities of `classes` bins with inner edges under N(mean, variance); each edge costs one erfc, of its distance
// from the mean, so that no bin is a difference of numbers near 1.
inline void binned_normal(Pack<double> mean, Pack<double> variance, const double* edges, int64_t classes,
                          Pack<double>* p) {
    const Pack<double> scale = 1.0 / root(variance + variance);
    Pack<double> tail{};                     // mass beyond the lower edge, on the far side from the mean
    Mask<double> left = Mask<double>{} - 1;  // the lower edge lies left of the mean
    for (int64_t c = 0; c < classes; c++) {
        Pack<double> next{};
        Mask<double> next_left{};
        if (c + 1 < classes) {
            const Pack<double> z = (edges[c] - mean) * scale;
            next_left = z < 0.0;
            next = half_erfc(next_left ? -z : z);
        }
        const Pack<double> inside = left ? (next_left ? next - tail : (1.0 - tail) - next) : tail - next;
        p[c] = inside < 0.0 ? Pack<double>{} : inside;
        tail = next, left = next_left;
    }
}
