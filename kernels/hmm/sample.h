// The HMM tunnel: parameters, chain, tokens, and the exact answer to every token, sixteen sequences at a time.
// Which word decides what is written in bayesattn_fast/tunnels/hmm.py; integers are the reference's, the filter runs in
// float64 and is rounded to float32 once.
#pragma once
#include "draws.h"
#include "filter.h"

constexpr int32_t TRANS = 96, EMIT = 97, SEP = 98, OBS = 99, FIRST_SYMBOL = 100;

// As native.py packs it. tokens (R, N) and targets (R, K) int64; predictive (R, K, C), entropy (R, K) float32.
struct SampleProblem {
    Draw draw;
    int64_t states, symbols, observations, next_observation, threads;
    int64_t *tokens, *targets;
    float *predictive, *entropy;
};

class HmmSampler {
   public:
    explicit HmmSampler(const SampleProblem& p)
        : p(p), S(p.states), O(p.symbols), K(p.observations), header(3 + S * (S + O)), length(header + 2 * K),
          classes(p.next_observation ? O : S), word_count((S * (S + O - 2) + 2 * K + 2 + 3) / 4 * 4) {}

    // Packs of scratch: integers first (words, matrices and their sums, tokens, walk), then the filter's.
    int64_t packs() const {
        return word_count + 2 * S * (S + O) + length + 2 * (K + 1) + 2 * S * (S + O) + 8 * (S > O ? S : O) +
               STEPS * (classes + 1);
    }
    int block(int64_t first, int64_t rows, Pack<float>* scratch) const {
        auto* integers = reinterpret_cast<int32_t(*)[ROWS]>(scratch);
        auto* words = reinterpret_cast<uint32_t(*)[ROWS]>(integers);
        auto* transition = integers + word_count;
        auto* emission = transition + S * S;
        auto* sums = emission + S * O;
        auto* tokens = sums + S * (S + O);
        auto* states = tokens + length;
        auto* seen = states + K + 1;
        words_by_lane(p.draw, first, word_count, words);
        const auto draw = [&](auto fixed) {
            constexpr int FIXED = decltype(fixed)::value;
            for (int64_t s = 0; s < S; s++) simplex_hundredths<FIXED>(words + s * (S - 1), S, transition + s * S);
            for (int64_t s = 0; s < S; s++)
                simplex_hundredths<FIXED>(words + S * (S - 1) + s * (O - 1), O, emission + s * O);
            accumulate(transition, S, sums);
            accumulate(emission, O, sums + S * S);
            walk<FIXED>(words + S * (S + O - 2), sums, states, seen);
            write_tokens(transition, emission, seen, tokens);
            store_integers(p.tokens + first * length, length, rows, length, tokens);
            store_integers(p.targets + first * K, K, rows, K, p.next_observation ? seen + 1 : states);
            answer<FIXED>(transition, seen, first, rows, reinterpret_cast<Pack<double>*>(seen + K + 1));
        };
        S == 5 && O == 5 ? draw(std::integral_constant<int, 5>()) : draw(std::integral_constant<int, 0>());
        return FINE;
    }

   private:
    void accumulate(const int32_t (*matrix)[ROWS], int64_t columns, int32_t (*sums)[ROWS]) const {
        for (int64_t r = 0; r < S; r++)
            for (int64_t c = 0; c < columns; c++)
                for (int l = 0; l < ROWS; l++)
                    sums[r * columns + c][l] = matrix[r * columns + c][l] + (c > 0 ? sums[r * columns + c - 1][l] : 0);
    }
    template <int FIXED>
    void walk(const uint32_t (*words)[ROWS], const int32_t (*sums)[ROWS], int32_t (*states)[ROWS],
              int32_t (*seen)[ROWS]) const {
        uint32_t value[ROWS];
        for (int l = 0; l < ROWS; l++) states[0][l] = int32_t(below(words[0][l], uint32_t(S)));
        for (int64_t t = 0; t <= K; t++) {
            for (int l = 0; l < ROWS; l++) value[l] = below(words[1 + 2 * t][l], TOTAL);
            categorical<FIXED>(states[t], value, sums + S * S, S, O, seen[t]);
            if (t == K) return;
            for (int l = 0; l < ROWS; l++) value[l] = below(words[2 + 2 * t][l], TOTAL);
            categorical<FIXED>(states[t], value, sums, S, S, states[t + 1]);
        }
    }
    void write_tokens(const int32_t (*transition)[ROWS], const int32_t (*emission)[ROWS], const int32_t (*seen)[ROWS],
                      int32_t (*tokens)[ROWS]) const {
        const auto fill = [](int32_t* to, int32_t token) { for (int l = 0; l < ROWS; l++) to[l] = token; };
        const auto shifted = [](int32_t* to, const int32_t* from, int32_t by) { for (int l = 0; l < ROWS; l++) to[l] = from[l] + by; };
        fill(tokens[0], TRANS);
        for (int64_t i = 0; i < S * S; i++) shifted(tokens[1 + i], transition[i], -FLOOR);
        fill(tokens[1 + S * S], EMIT);
        for (int64_t i = 0; i < S * O; i++) shifted(tokens[2 + S * S + i], emission[i], -FLOOR);
        fill(tokens[header - 1], SEP);
        for (int64_t t = 0; t < K; t++) {
            fill(tokens[header + 2 * t], OBS);
            shifted(tokens[header + 1 + 2 * t], seen[t], FIRST_SYMBOL);
        }
    }
    // The filter of both halves of the lanes, since a double is twice as wide.
    template <int FIXED>
    void answer(const int32_t (*matrices)[ROWS], const int32_t (*seen)[ROWS], int64_t first, int64_t rows,
                Pack<double>* scratch) const {
        constexpr int L = LANES<double>;
        const int64_t states = FIXED ? FIXED : S, symbols = FIXED ? FIXED : O, C = FIXED ? FIXED : classes;
        const int64_t cells = S * (S + O), most = S > O ? S : O;
        const bool next_observation = p.next_observation;
        Pack<double>* halves = scratch;  // of each half of the lanes: transition, then emission
        // Known sizes stay in registers: prior, likelihood, posterior and predictive of each half.
        Pack<double> small[FIXED ? 8 : 1][FIXED ? FIXED : 1];
        const auto belief = [&](int i) { return FIXED ? small[FIXED ? i : 0] : halves + 2 * cells + i * most; };
        auto* out = reinterpret_cast<float(*)[ROWS]>(halves + 2 * cells + 8 * most);  // STEPS × C
        auto* bits_out = reinterpret_cast<Pack<float>*>(out) + STEPS * C;
        for (int half = 0; half < 2; half++) {
            for (int64_t i = 0; i < cells; i++)
                for (int l = 0; l < L; l++) halves[half * cells + i][l] = matrices[i][half * L + l] * (1.0 / double(TOTAL));
            for (int64_t s = 0; s < states; s++) belief(half)[s] = splat(1.0 / double(states));
        }
        for (int64_t t0 = 0; t0 < K; t0 += STEPS) {
            const int64_t steps = at_most(K - t0, STEPS);
            for (int64_t t = 0; t < steps; t++) {
#pragma GCC unroll 2
                for (int half = 0; half < 2; half++) {
                    const Pack<double>* probability = halves + half * cells;
                    Pack<double>*prior = belief(half), *likelihood = belief(2 + half), *post = belief(4 + half);
                    Mask<double> o;
                    for (int l = 0; l < L; l++) o[l] = seen[t0 + t][half * L + l];
                    likelihoods<FIXED, FIXED, double>(states, symbols, probability + states * states, o, likelihood);
                    advance<FIXED, double>(states, prior, likelihood, probability, post, prior);
                    if (next_observation) {
                        propagate<FIXED, FIXED, double>(states, symbols, prior, probability + states * states, belief(6 + half));
                        post = belief(6 + half);
                    }
#pragma GCC unroll 8
                    for (int64_t c = 0; c < C; c++) store_single(out[t * C + c] + half * L, post[c]);
                }
            }
            for (int64_t t = 0; t < steps; t++)
                bits_out[t] = entropy_of<FIXED, float>(C, reinterpret_cast<Pack<float>*>(out) + t * C);
            store_at<float>(p.predictive, C, K, first, rows, t0, steps, reinterpret_cast<Pack<float>*>(out));
            store_at<float>(p.entropy, 1, K, first, rows, t0, steps, bits_out);
        }
    }
    const SampleProblem& p;
    const int64_t S, O, K, header, length, classes, word_count;
};
