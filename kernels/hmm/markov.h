// The Markov tunnel: chain, noisy inputs, and the exact answer to every input. Which word decides what is written in
// bayesattn_fast/tunnels/markov.py; integers and inputs are the reference's bit for bit, the filter runs in float64 on
// the float32 inputs and is rounded to float32 once.
#pragma once
#include "gaussian.h"
#include "philox.h"

// As native.py packs it. inputs (R, N, D) and predictive (R, N, S) float32, targets (R, N) int64, entropy (R, N)
// float32; means (S, D) float32; transition (S, S) float64; cumulative (S, S) int64 weights of sum 2³².
struct MarkovProblem {
    Draw draw;
    int64_t states, dimensions, length, threads;
    const float* means;
    const double* transition;
    const int64_t* cumulative;
    float* inputs;
    int64_t* targets;
    float *predictive, *entropy;
};

class MarkovSampler {
   public:
    explicit MarkovSampler(const MarkovProblem& p)
        : p(p), S(p.states), D(p.dimensions), even(D + D % 2), group(1 + even) {}

    static int64_t padded(int64_t n) { return (n + 63) / 64 * 64; }
    int64_t packs() const {
        return gaussian_packs(S, D) + (padded(STEPS * group + 8) + padded(STEPS * even)) / 16 + padded(STEPS * even) / 8;
    }
    int block(int64_t first, int64_t rows, Pack<double>* scratch) const {
        constexpr int L = LANES<double>;
        GaussianChain<double> chain(S, D, 1.0, scratch);
        Pack<double>* post = chain.likelihood + S;
        Pack<double>* predictive = post + STEPS * S;
        Pack<double>* x = predictive + STEPS * S;
        auto* words = reinterpret_cast<uint32_t*>(x + STEPS * D);
        for (int64_t i = 0; i < S * S; i++) chain.transition[i] = splat(p.transition[i]);
        for (int64_t i = 0; i < S * D; i++) chain.means[i] = splat(double(p.means[i]));
        for (int64_t s = 0; s < S; s++) chain.prior[s] = splat(1.0 / double(S));
        int64_t state[L];
        for (int64_t t0 = 0; t0 < p.length; t0 += STEPS) {
            const int64_t steps = at_most(p.length - t0, STEPS);
            for (int l = 0; l < L; l++) {
                if (l < rows) {
                    draw(first + l, t0, steps, words, state[l], x, l);
                } else {
                    for (int64_t i = 0; i < steps * D; i++) x[i][l] = x[i][0];
                }
            }
            for (int64_t t = 0; t < steps; t++) {
                chain.add(x + t * D, post, predictive + t * S);
                const Pack<double> entropy = entropy_quick(S, predictive + t * S);
                for (int64_t l = 0; l < rows; l++) {
                    const int64_t at = (first + l) * p.length + t0 + t;
                    for (int64_t s = 0; s < S; s++) p.predictive[at * S + s] = float(predictive[t * S + s][l]);
                    p.entropy[at] = float(entropy[l]);
                }
            }
        }
        return FINE;
    }

   private:
    // Steps t0 … of one row: its inputs, to memory and to lane l of x, and its targets.
    void draw(int64_t row, int64_t t0, int64_t steps, uint32_t* words, int64_t& state, Pack<double>* x, int l) const {
        uint32_t* noise_words = words + padded(STEPS * group + 8);
        auto* noise = reinterpret_cast<double*>(noise_words + padded(STEPS * even));
        const int64_t offset = t0 * group % 4;
        words_of_row(p.draw, row, t0 * group / 4, offset + steps * group + 1, words);
        words += offset;
        if (t0 == 0) state = below(words[0], uint32_t(S));
        for (int64_t t = 0; t < steps; t++) std::memcpy(noise_words + t * even, words + t * group + 1, even * 4);
        normals_of(noise_words, steps * even, noise);
        for (int64_t t = 0; t < steps; t++) {
            const int64_t at = row * p.length + t0 + t;
            const float* mean = p.means + state * D;
            for (int64_t i = 0; i < D; i++) {
                const float shown = float(double(mean[i]) + noise[t * even + i]);
                p.inputs[at * D + i] = shown;
                x[t * D + i][l] = double(shown);
            }
            const int64_t value = words[(t + 1) * group];
            const int64_t* weights = p.cumulative + state * S;
            int64_t next = 0;
            for (int64_t s = 0; s + 1 < S; s++) next += value >= weights[s];
            p.targets[at] = state = next;
        }
    }
    const MarkovProblem& p;
    const int64_t S, D, even, group;
};
