// Gradients of the filter's results, by reverse mode over the recursion. With c_t the normaliser, w_t = 1 where step t
// was observed (only then does it count in the evidence), and ā for the gradient of a:
//
//   b_t = g w_t + ā_t − Σ_s ā_t(s) a_t(s),      j̄_t = b_t / c_t            g: gradient of the evidence
//   ē_s(o_t) += j̄_t(s) prior_t(s),              prior̄_t = j̄_t e(o_t) + q̄_t
//   P̄_rs += a_{t−1}(r) prior̄_t(s),              ā_{t−1} += P prior̄_t,     initial: prior̄_1
// The predictive q E of step t, q = prior_{t+1}, adds q̄ = E ū and Ē += q ū; the entropy adds −(log2 a + 1/ln 2) ū to
// ā. A step of probability zero, which the filter passes over, passes its gradient on to the prior.
#pragma once
#include "filter.h"

// As native.py packs it; what has no upstream gradient is null. Gradients of matrices are per sequence.
struct BackwardProblem {
    FilterProblem forward;
    const void *upstream_posterior, *upstream_predictive, *upstream_entropy, *upstream_evidence;
    void *d_transition, *d_emission, *d_initial;
};

template <class T>
inline void load_at(const void* from, int64_t width, int64_t length, int64_t first, int64_t rows, int64_t t0,
                    int64_t steps, Pack<T>* to) {
    if (from != nullptr)
        load_columns<T>(static_cast<const T*>(from) + (first * length + t0) * width, length * width, rows,
                        steps * width, to);
}

inline int64_t backward_packs(int64_t S, int64_t O) {
    return 2 * S * (S + O) + 6 * S + (STEPS + 1) * S + STEPS * (S + O + 1);
}

template <class T>
class Backward {
   public:
    Backward(const BackwardProblem& problem, int64_t first, int64_t rows, Pack<T>* scratch)
        : b(problem), p(problem.forward), S(p.states), O(p.symbols), first(first), rows(rows), symbols(p, first, rows) {
        for (auto [array, size] : {std::pair{&transition, S * S}, {&emission, S * O}, {&d_transition, S * S},
                                   {&d_emission, S * O}, {&initial, S}, {&prior, S}, {&likelihood, S},
                                   {&d_post, S}, {&d_prior, S}, {&from_predictive, S}, {&posterior, (STEPS + 1) * S},
                                   {&u_posterior, STEPS * S}, {&u_predictive, STEPS * O}, {&u_entropy, STEPS}}) {
            *array = scratch;
            scratch += size;
        }
    }
    void run() {
        load_shared<T>(p.transition, p.transition_stride, first, rows, S * S, transition);
        load_shared<T>(p.emission, p.emission_stride, first, rows, S * O, emission);
        load_shared<T>(p.initial, p.initial_stride, first, rows, S, initial);
        for (int64_t i = 0; i < S * S; i++) d_transition[i] = Pack<T>{};
        for (int64_t i = 0; i < S * O; i++) d_emission[i] = Pack<T>{};
        for (int64_t s = 0; s < S; s++) d_post[s] = from_predictive[s] = Pack<T>{};
        Pack<T> upstream{};
        if (b.upstream_evidence) upstream = load_part(static_cast<const T*>(b.upstream_evidence) + first, rows);
        for (int64_t t0 = (p.length - 1) / STEPS * STEPS; t0 >= 0; t0 -= STEPS) {
            const int64_t steps = at_most(p.length - t0, STEPS), before = t0 > 0;
            symbols.load(t0, steps);
            // posterior + (t + 1)·S is that of step t0 + t.
            load_at<T>(p.posterior, S, p.length, first, rows, t0 - before, steps + before, posterior + (1 - before) * S);
            load_at<T>(b.upstream_posterior, S, p.length, first, rows, t0, steps, u_posterior);
            load_at<T>(b.upstream_predictive, O, p.length, first, rows, t0, steps, u_predictive);
            load_at<T>(b.upstream_entropy, 1, p.length, first, rows, t0, steps, u_entropy);
            for (int64_t t = steps - 1; t >= 0; t--) step(t0, t, upstream);
        }
        store_columns<T>(static_cast<T*>(b.d_transition) + first * S * S, S * S, rows, S * S, d_transition);
        store_columns<T>(static_cast<T*>(b.d_emission) + first * S * O, S * O, rows, S * O, d_emission);
        store_columns<T>(static_cast<T*>(b.d_initial) + first * S, S, rows, S, d_prior);
    }

   private:
    void step(int64_t t0, int64_t t, Pack<T> upstream) {
        const Mask<T> inside = symbols.inside(t0 + t), o = symbols.at(t0, t);
        const Pack<T>* post = posterior + (t + 1) * S;
        add_upstream(t, post, inside);
        const bool start = t0 + t == 0;
        if (start) {
            for (int64_t s = 0; s < S; s++) prior[s] = initial[s];
        } else {
            propagate<0, 0, T>(S, S, post - S, transition, prior);
        }
        likelihoods<0, 0, T>(S, O, emission, o, likelihood);
        Pack<T> norm{}, mean{};
        for (int64_t s = 0; s < S; s++) {
            norm = fused(prior[s], likelihood[s], norm);
            mean = fused(d_post[s], post[s], mean);
        }
        const Mask<T> seen = o >= 0, possible = norm > T(0);
        const Pack<T> constant = (seen ? upstream : Pack<T>{}) - mean;
        for (int64_t s = 0; s < S; s++) {
            const Pack<T> joint = (constant + d_post[s]) / norm;
            d_prior[s] = inside ? (possible ? joint * likelihood[s] : d_post[s]) : Pack<T>{};
            add_emission(s, o, (seen & possible) ? joint * prior[s] : Pack<T>{});
        }
        if (start) return;
        for (int64_t r = 0; r < S; r++) {
            Pack<T> sum{};
            for (int64_t s = 0; s < S; s++) {
                d_transition[r * S + s] = fused(post[r - S], d_prior[s], d_transition[r * S + s]);
                sum = fused(transition[r * S + s], d_prior[s], sum);
            }
            d_post[r] = sum;
        }
    }
    // What the results of step t give to its posterior.
    void add_upstream(int64_t t, const Pack<T>* post, Mask<T> inside) {
        if (b.upstream_posterior)
            for (int64_t s = 0; s < S; s++) d_post[s] += inside ? u_posterior[t * S + s] : Pack<T>{};
        if (b.upstream_entropy) {
            for (int64_t s = 0; s < S; s++) {
                const Pack<T> slope = log2_of(post[s]) + T(1.4426950408889634);
                d_post[s] -= (inside & (post[s] >= Format<T>::SMALLEST)) ? slope * u_entropy[t] : Pack<T>{};
            }
        }
        if (b.upstream_predictive == nullptr) return;
        propagate<0, 0, T>(S, S, post, transition, prior);  // q
        const Pack<T>* u = u_predictive + t * O;
        for (int64_t s = 0; s < S; s++) {
            Pack<T> sum{};
            for (int64_t k = 0; k < O; k++) {
                const Pack<T> given = inside ? u[k] : Pack<T>{};
                sum = fused(emission[s * O + k], given, sum);
                d_emission[s * O + k] = fused(prior[s], given, d_emission[s * O + k]);
            }
            from_predictive[s] = sum;
        }
        for (int64_t r = 0; r < S; r++) {
            for (int64_t s = 0; s < S; s++) {
                d_transition[r * S + s] = fused(post[r], from_predictive[s], d_transition[r * S + s]);
                d_post[r] = fused(transition[r * S + s], from_predictive[s], d_post[r]);
            }
        }
    }
    void add_emission(int64_t s, Mask<T> o, Pack<T> value) {
        for (int i = 0; i < LANES<T>; i++)
            if (o[i] >= 0) d_emission[s * O + o[i]][i] += value[i];
    }

    const BackwardProblem& b;
    const FilterProblem& p;
    const int64_t S, O, first, rows;
    Symbols<T> symbols;
    Pack<T>*transition, *emission, *d_transition, *d_emission, *initial, *prior, *likelihood, *d_post, *d_prior,
        *from_predictive, *posterior, *u_posterior, *u_predictive, *u_entropy;
};
