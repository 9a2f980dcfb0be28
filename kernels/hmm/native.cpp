// build: exact
// Filtering of hidden Markov models on the CPU, one sequence per SIMD lane; the definition is reference.py.
//
//   a_t(s) ∝ e_s(o_t) Σ_r a_{t−1}(r) P(r → s),   p(o_{t+1} | o_≤t) = Σ_rs a_t(r) P(r → s) e_s(o),   H(a_t) in bits
//
// Blocks of 16 (float) or 8 (double) sequences are independent, so results do not depend on batch or threads. Matrices
// and observations are transposed on the way in and results on the way out, in the (B, T, S) layout of the reference.
// Rabiner (1989), "A tutorial on hidden Markov models", eq. 19–20 with the scaling of section V.A.
#include "backward.h"
#include "markov.h"
#include "sample.h"

namespace {

template <int STATES, int SYMBOLS, class T>
int filter_as(const FilterProblem& p) {
    const int64_t packs = p.states * (p.states + p.symbols + 3 + STEPS) + STEPS * p.symbols;
    return in_blocks<T>(p.batch, p.threads, packs, [&](int64_t first, int64_t rows, Pack<T>* scratch) {
        return filter_block<STATES, SYMBOLS, T>(p, first, rows, scratch);
    });
}

template <class T>
int filter(const FilterProblem& p) {
    return p.states == 5 && p.symbols == 5 ? filter_as<5, 5, T>(p) : filter_as<0, 0, T>(p);
}

template <class T>
int gaussian(const GaussianProblem& p) {
    const int64_t packs = gaussian_packs(p.states, p.dimensions);
    return in_blocks<T>(p.batch, p.threads, packs, [&](int64_t first, int64_t rows, Pack<T>* scratch) {
        return gaussian_block<T>(p, first, rows, scratch);
    });
}

template <class T>
int backward(const BackwardProblem& p) {
    const int64_t packs = backward_packs(p.forward.states, p.forward.symbols);
    return in_blocks<T>(p.forward.batch, p.forward.threads, packs, [&](int64_t first, int64_t rows, Pack<T>* scratch) {
        Backward<T>(p, first, rows, scratch).run();
        return FINE;
    });
}

int sample(const SampleProblem& p) {
    const HmmSampler sampler(p);
    return in_blocks<float>(p.draw.rows(), p.threads, sampler.packs(), [&](int64_t first, int64_t rows, Pack<float>* scratch) {
        return sampler.block(first, rows, scratch);
    });
}

int sample_markov(const MarkovProblem& p) {
    const MarkovSampler sampler(p);
    return in_blocks<double>(p.draw.rows(), p.threads, sampler.packs(), [&](int64_t first, int64_t rows, Pack<double>* scratch) {
        return sampler.block(first, rows, scratch);
    });
}

}  // namespace

EXPORT int hmm_filter(const FilterProblem* p, int64_t is_double) {
    return is_double ? filter<double>(*p) : filter<float>(*p);
}
EXPORT int hmm_filter_backward(const BackwardProblem* p, int64_t is_double) {
    return is_double ? backward<double>(*p) : backward<float>(*p);
}
EXPORT int gaussian_filter(const GaussianProblem* p, int64_t is_double) {
    return is_double ? gaussian<double>(*p) : gaussian<float>(*p);
}
EXPORT int hmm_sample(const SampleProblem* p) { return sample(*p); }
EXPORT int markov_sample(const MarkovProblem* p) { return sample_markov(*p); }
