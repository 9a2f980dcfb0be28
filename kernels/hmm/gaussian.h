// The filter of a chain seen through Gaussian noise: likelihoods N(x_t; μ_s, noise² I), in logarithms.
#pragma once
#include "filter.h"

// As native.py packs it.
struct GaussianProblem {
    int64_t batch, length, states, dimensions, threads, validate;
    const void *inputs, *means, *transition, *initial;
    int64_t transition_stride, initial_stride;
    void *posterior, *predictive, *entropy, *evidence;
    double noise;
};

// Scratch of one block, in packs.
inline int64_t gaussian_packs(int64_t states, int64_t dimensions) {
    return states * (states + 2 + 2 * STEPS + dimensions) + STEPS * dimensions;
}

// One sequence per lane; `add` takes its inputs step by step.
template <class T>
class GaussianChain {
   public:
    GaussianChain(int64_t states, int64_t dimensions, double noise, Pack<T>* scratch)
        : S(states),
          D(dimensions),
          scale(T(-0.5 / (noise * noise))),
          constant(-0.5 * double(dimensions) * std::log(2.0 * 3.14159265358979323846 * noise * noise)),
          transition(scratch),
          means(transition + S * S),
          prior(means + S * D),
          likelihood(prior + S) {}

    // x (D): the posterior after it, the law of the next state.
    void add(const Pack<T>* x, Pack<T>* post, Pack<T>* next) {
        // The largest logarithm among states the chain can be in is taken out: a far input is not impossible.
        const T lowest = std::numeric_limits<T>::lowest();
        Pack<T> peak = splat(lowest);
        for (int64_t s = 0; s < S; s++) {
            Pack<T> squared{};
            for (int64_t i = 0; i < D; i++) {
                const Pack<T> difference = x[i] - means[s * D + i];
                squared = fused(difference, difference, squared);
            }
            likelihood[s] = scale * squared;
            const Pack<T> reachable = prior[s] == T(0) ? splat(lowest) : likelihood[s];
            peak = reachable > peak ? reachable : peak;
        }
        for (int64_t s = 0; s < S; s++) {
            const Pack<T> excess = likelihood[s] - peak;
            // States without prior mass may lie above the peak: their excess must not overflow to inf · 0.
            likelihood[s] = exponential(excess > T(0) ? Pack<T>{} : excess);
        }
        evidence.multiply(advance<0, T>(S, prior, likelihood, transition, post, next));
        for (int i = 0; i < LANES<T>; i++) total[i] += constant + double(peak[i]);
        for (int64_t s = 0; s < S; s++) prior[s] = next[s];
    }
    double log_evidence(int lane) const { return total[lane] + double(evidence.log()[lane]); }

   private:
    const int64_t S, D;
    const T scale;
    const double constant;

   public:
    Pack<T>*transition, *means, *prior, *likelihood;  // transition (S, S), means (S, D) and prior are the caller's to fill
    LogProduct<T> evidence;
    double total[LANES<T>] = {};
};

template <class T>
int gaussian_block(const GaussianProblem& p, int64_t first, int64_t rows, Pack<T>* scratch) {
    const int64_t S = p.states, D = p.dimensions;
    GaussianChain<T> chain(S, D, p.noise, scratch);
    Pack<T>* posterior = chain.likelihood + S;
    Pack<T>* predictive = posterior + STEPS * S;
    Pack<T>* x = predictive + STEPS * S;
    Pack<T> entropy[STEPS];
    load_shared<T>(p.transition, p.transition_stride, first, rows, S * S, chain.transition);
    load_shared<T>(p.initial, p.initial_stride, first, rows, S, chain.prior);
    load_shared<T>(p.means, 0, 0, rows, S * D, chain.means);
    Mask<T> bad{};
    if (p.validate) {
        bad = not_distributions<T>(chain.transition, S, S) | not_distributions<T>(chain.prior, 1, S);
        for (int64_t i = 0; i < S * D; i++) bad |= not_finite<T>(chain.means[i]);
    }
    for (int64_t t0 = 0; t0 < p.length; t0 += STEPS) {
        const int64_t steps = at_most(p.length - t0, STEPS);
        load_columns<T>(static_cast<const T*>(p.inputs) + (first * p.length + t0) * D, p.length * D, rows, steps * D, x);
        if (p.validate)
            for (int64_t i = 0; i < steps * D; i++) bad |= not_finite<T>(x[i]);
        for (int64_t t = 0; t < steps; t++) {
            chain.add(x + t * D, posterior + t * S, predictive + t * S);
            entropy[t] = entropy_of<0, T>(S, predictive + t * S);
        }
        store_at<T>(p.posterior, S, p.length, first, rows, t0, steps, posterior);
        store_at<T>(p.predictive, S, p.length, first, rows, t0, steps, predictive);
        store_at<T>(p.entropy, 1, p.length, first, rows, t0, steps, entropy);
    }
    for (int64_t i = 0; i < rows; i++) static_cast<T*>(p.evidence)[first + i] = T(chain.log_evidence(i));
    return any(bad) ? REFUSED : FINE;
}
