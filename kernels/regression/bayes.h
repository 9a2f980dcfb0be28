// Bayesian linear regression, one sequence per lane: Bierman's update.
// G. J. Bierman (1977), "Factorization methods for discrete sequential estimation", section V.3.
#pragma once
#include "blocks.h"

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
