// The filter over blocks of sequences, for discrete and for Gaussian observations.
#pragma once
#include "blocks.h"
#include "chain.h"

constexpr int64_t STEPS = 16;  // steps between two writes of the results

// As native.py packs it. Matrices are contiguous, a batch stride of 0 shares them. Absent results are null.
struct FilterProblem {
    int64_t batch, length, states, symbols, threads, validate;
    const void *transition, *emission, *initial;
    int64_t transition_stride, emission_stride, initial_stride;
    const int64_t *observations, *lengths;
    void *posterior, *predictive, *evidence, *entropy;
};

// A matrix of every sequence, or one for all with stride 0.
template <class T>
inline void load_shared(const void* from, int64_t stride, int64_t first, int64_t rows, int64_t columns, Pack<T>* to) {
    load_columns<T>(static_cast<const T*>(from) + first * stride, stride, rows, columns, to);
}

// `width` values a lane and step, to (rows, length) from step t0 on.
template <class T>
inline void store_at(void* to, int64_t width, int64_t length, int64_t first, int64_t rows, int64_t t0, int64_t steps,
                     const Pack<T>* from) {
    if (to != nullptr)
        store_columns<T>(static_cast<T*>(to) + (first * length + t0) * width, length * width, rows, steps * width, from);
}

// Results too large for the cache are written past it, a block of sequences at a time from a stage: read-for-ownership
// would cost as much as the write.
template <class T>
class Stage {
   public:
    static constexpr int64_t LARGE = 1 << 20, MOST = 1 << 14;
    Stage(void* to, int64_t width, const FilterProblem& p, int64_t first, int64_t rows)
        : to(static_cast<T*>(to)), width(width), length(p.length), first(first), rows(rows) {
        const int64_t row = width * length * int64_t(sizeof(T));
        staged = to != nullptr && row * p.batch >= LARGE && row * LANES<T> <= MOST;
    }
    void put(int64_t t0, int64_t steps, const Pack<T>* from) {
        T* base = staged ? buffer : to + first * length * width;
        if (to != nullptr) store_columns<T>(base + t0 * width, length * width, rows, steps * width, from);
    }
    void finish() {
        if (staged) stream(to + first * length * width, buffer, rows * length * width);
    }

   private:
    T* to;
    const int64_t width, length, first, rows;
    bool staged;
    alignas(64) T buffer[MOST / sizeof(T)];
};

// Symbols of one lane and step, as wide as the floats. Those beyond the alphabet are noted and replaced.
template <class T>
class Symbols {
   public:
    Symbols(const FilterProblem& p, int64_t first, int64_t rows)
        : p(p), first(first), rows(rows), limit(decltype(end[0] + 0)(p.symbols) - Mask<T>{}) {
        for (int i = 0; i < LANES<T>; i++) {
            const int64_t length = p.lengths == nullptr ? p.length : p.lengths[first + (i < rows ? i : rows - 1)];
            end[i] = decltype(end[0] + 0)(length);
        }
    }
    void load(int64_t t0, int64_t steps) {
        constexpr int L = LANES<T>;
        for (int64_t t = 0; t < steps; t += L) {
            Pack<T> rotated[L];
            const int64_t count = at_most(steps - t, L);
            for (int i = 0; i < L; i++)
                rotated[i] = bits<Pack<T>>(row(p.observations + (first + (i < rows ? i : rows - 1)) * p.length + t0 + t, count));
            transpose<T>(rotated);
            for (int i = 0; i < L && i < count; i++) {
                const Mask<T> o = bits<Mask<T>>(rotated[i]);
                bad |= (o < -1) | (o >= limit);
                block[t + i] = o;
            }
        }
    }
    // The symbol at step t0 + t, −1 past the end and for what is no symbol.
    Mask<T> at(int64_t t0, int64_t t) const {
        const Mask<T> o = block[t];
        return p.lengths == nullptr && p.symbols <= BLEND ? o : (inside(t0 + t) & (o < limit)) ? o : o * 0 - 1;
    }
    Mask<T> inside(int64_t t) const { return end > decltype(end[0] + 0)(t); }
    Mask<T> bad{};

   private:
    // The first `count` symbols from p on, −1 beyond; out of range stays out of range.
#if defined(__AVX512F__)
    static __m512i eight(const int64_t* p, int64_t count) {
        const __mmask8 there = count >= 8 ? 0xff : count <= 0 ? 0 : (1u << count) - 1;
        const __m512i x = _mm512_mask_loadu_epi64(_mm512_set1_epi64(-1), there, p);
        return _mm512_min_epi64(_mm512_max_epi64(x, _mm512_set1_epi64(-2)), _mm512_set1_epi64(INT32_MAX));
    }
    static Mask<T> row(const int64_t* p, int64_t count) {
        if constexpr (LANES<T> == 8) return (Mask<T>)eight(p, count);
        const __m256i low = _mm512_cvtepi64_epi32(eight(p, count)), high = _mm512_cvtepi64_epi32(eight(p + 8, count - 8));
        return (Mask<T>)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
#else
    static Mask<T> row(const int64_t* p, int64_t count) {
        Mask<T> symbols;
        for (int i = 0; i < LANES<T>; i++) {
            const int64_t o = i < count ? p[i] : -1;
            symbols[i] = o < -2 ? -2 : o > INT32_MAX ? INT32_MAX : o;
        }
        return symbols;
    }
#endif
    const FilterProblem& p;
    const int64_t first, rows;
    const Mask<T> limit;
    Mask<T> block[STEPS], end;
};

// Sequences first … first + rows − 1 through the discrete filter; STATES and SYMBOLS are 0 where not known before.
template <int STATES, int SYMBOLS, class T>
int filter_block(const FilterProblem& p, int64_t first, int64_t rows, Pack<T>* scratch) {
    const int64_t S = STATES ? STATES : p.states, O = SYMBOLS ? SYMBOLS : p.symbols;
    Pack<T>* transition = scratch;
    Pack<T>* emission = transition + S * S;
    Pack<T>* posterior = emission + S * O;
    Pack<T>* predictive = posterior + STEPS * S;
    // Known sizes stay in registers.
    Pack<T> small[3][STATES ? STATES : 1], entropy[STEPS];
    Pack<T>* prior = STATES ? small[0] : predictive + STEPS * O;
    Pack<T>* likelihood = STATES ? small[1] : prior + S;
    Pack<T>* post = STATES ? small[2] : likelihood + S;
    load_shared<T>(p.transition, p.transition_stride, first, rows, S * S, transition);
    load_shared<T>(p.emission, p.emission_stride, first, rows, S * O, emission);
    load_shared<T>(p.initial, p.initial_stride, first, rows, S, posterior);
    Mask<T> bad{};
    if (p.validate)
        bad = not_distributions<T>(transition, S, S) | not_distributions<T>(emission, S, O) |
              not_distributions<T>(posterior, 1, S);
    for (int64_t s = 0; s < S; s++) prior[s] = posterior[s];
    Symbols<T> symbols(p, first, rows);
    LogProduct<T> evidence;
    Stage<T> to_posterior(p.posterior, S, p, first, rows), to_predictive(p.predictive, O, p, first, rows);
    for (int64_t t0 = 0; t0 < p.length; t0 += STEPS) {
        const int64_t steps = at_most(p.length - t0, STEPS);
        symbols.load(t0, steps);
        for (int64_t t = 0; t < steps; t++) {
            const Mask<T> o = symbols.at(t0, t), missing = o < 0;
            likelihoods<STATES, SYMBOLS, T>(S, O, emission, o, likelihood);
            const Pack<T> norm = advance<STATES, T>(S, prior, likelihood, transition, post, prior);
            // Unseen steps do not count, whatever their matrix rows sum to.
            evidence.multiply(missing ? splat(T(1)) : norm);
            propagate<STATES, SYMBOLS, T>(S, O, prior, emission, predictive + t * O);
            entropy[t] = entropy_of<STATES, T>(S, post);
#pragma GCC unroll 8
            for (int64_t s = 0; s < S; s++) posterior[t * S + s] = post[s];
            if (p.lengths != nullptr) {
                const Mask<T> inside = symbols.inside(t0 + t);
                for (int64_t s = 0; s < S; s++) posterior[t * S + s] = inside ? post[s] : Pack<T>{};
                for (int64_t k = 0; k < O; k++) predictive[t * O + k] = inside ? predictive[t * O + k] : Pack<T>{};
                entropy[t] = inside ? entropy[t] : Pack<T>{};
            }
        }
        to_posterior.put(t0, steps, posterior);
        to_predictive.put(t0, steps, predictive);
        store_at<T>(p.entropy, 1, p.length, first, rows, t0, steps, entropy);
    }
    to_posterior.finish();
    to_predictive.finish();
    store_part(static_cast<T*>(p.evidence) + first, evidence.log(), rows);
    return (any(bad) ? REFUSED : 0) | (any(evidence.zero) ? IMPOSSIBLE : 0) | (any(symbols.bad) ? OUT_OF_RANGE : 0);
}
