// A hidden Markov chain on every lane: the recursion of reference.py, one sequence per lane, arrays [index][lane].
#pragma once
#include "packs.h"

// A step's normaliser below this is handled with care: its reciprocal may overflow, or it is zero.
template <class T>
constexpr T LOW = sizeof(T) == 4 ? T(1e-20) : T(1e-200);

// ln of a running product, whose mantissa and exponent are kept apart: no rounding error of a long sum.
template <class T>
struct LogProduct {
    Pack<T> product = splat(T(1));
    Mask<T> exponent{};
    Mask<T> zero{};  // −1 where a factor was zero

    void multiply(Pack<T> x) {
        if (__builtin_expect(any_below(x, LOW<T>), 0)) x = lifted(x);
        product *= x;
        if (__builtin_expect(any_below(product, T(1e-12)), 0)) fold();
    }
    Pack<T> log() const {
        const Pack<T> value = (log2_of(product) + __builtin_convertvector(exponent, Pack<T>)) * T(0.69314718055994530942);
        return zero ? splat(-std::numeric_limits<T>::infinity()) : product == product ? value : product;
    }

   private:
    // Small factors to normal ones, zero to one; what that leaves out goes to the exponent or the mark.
    __attribute__((noinline)) Pack<T> lifted(Pack<T> x) {
        fold();
        const Mask<T> none = x == T(0), tiny = (x < LOW<T>)&~none;
        const T lift = T(int64_t(1) << Format<T>::LIFT);
        zero |= none;
        exponent -= tiny & (2 * Format<T>::LIFT);
        return none ? splat(T(1)) : tiny ? x * lift * lift : x;
    }
    void fold() {
        Mask<T> e;
        const Pack<T> kept = significand<T>(product, e);
        const Mask<T> number = product == product;  // NaN stays what it is
        product = number ? kept : product;
        exponent += e & number;
    }
};

// to[j] = Σ_i belief[i] matrix[i][j]: a belief carried one step, or to the observations.
template <int ROWS_, int COLUMNS, class T>
inline void propagate(int64_t rows, int64_t columns, const Pack<T>* belief, const Pack<T>* matrix, Pack<T>* to) {
    const int64_t R = ROWS_ ? ROWS_ : rows, C = COLUMNS ? COLUMNS : columns;
#pragma GCC unroll 8
    for (int64_t j = 0; j < C; j++) {
        Pack<T> sum = belief[0] * matrix[j];
#pragma GCC unroll 8
        for (int64_t i = 1; i < R; i++) sum = fused(belief[i], matrix[i * C + j], sum);
        to[j] = sum;
    }
}

// One step: post = prior·likelihood normalised, or prior where that is impossible; next = the belief carried on, which
// may take prior's place and does not wait for the normaliser. Returns the normaliser.
template <int FIXED, class T>
inline Pack<T> advance(int64_t states, const Pack<T>* prior, const Pack<T>* likelihood, const Pack<T>* transition,
                       Pack<T>* post, Pack<T>* next) {
    const int64_t S = FIXED ? FIXED : states;
    Pack<T> norm{};
#pragma GCC unroll 8
    for (int64_t s = 0; s < S; s++) {
        post[s] = prior[s] * likelihood[s];
        norm += post[s];
    }
    if (__builtin_expect(any_below(norm, LOW<T>), 0)) {
        for (int64_t s = 0; s < S; s++) post[s] = norm > T(0) ? post[s] / norm : prior[s];
        propagate<FIXED, FIXED, T>(S, S, post, transition, next);
        return norm;
    }
    const Pack<T> scale = reciprocal(norm);
    propagate<FIXED, FIXED, T>(S, S, post, transition, next);
#pragma GCC unroll 8
    for (int64_t s = 0; s < S; s++) post[s] *= scale, next[s] *= scale;
    return norm;
}

// e_s(o) for every state; 1 where o < 0. Up to BLEND symbols are chosen by comparisons, more by look-ups.
constexpr int64_t BLEND = 8;
template <int STATES, int SYMBOLS, class T>
inline void likelihoods(int64_t states, int64_t symbols, const Pack<T>* emission, Mask<T> o, Pack<T>* likelihood) {
    const int64_t S = STATES ? STATES : states, O = SYMBOLS ? SYMBOLS : symbols;
    if (O <= BLEND) {
#pragma GCC unroll 8
        for (int64_t s = 0; s < S; s++) likelihood[s] = emission[s * O];
#pragma GCC unroll 8
        for (int64_t k = 1; k < O; k++) {
            const Mask<T> seen = o == decltype(o[0] + 0)(k);
#pragma GCC unroll 8
            for (int64_t s = 0; s < S; s++) likelihood[s] = seen ? emission[s * O + k] : likelihood[s];
        }
        const Mask<T> missing = o < 0;
        if (__builtin_expect(any(missing), 0))
            for (int64_t s = 0; s < S; s++) likelihood[s] = missing ? splat(T(1)) : likelihood[s];
        return;
    }
    const Mask<T> missing = o < 0, row = missing ? Mask<T>{} : o;
    for (int64_t s = 0; s < S; s++) {
        const T* table = reinterpret_cast<const T*>(emission + s * symbols);
        Pack<T> found;
        for (int i = 0; i < LANES<T>; i++) found[i] = table[row[i] * LANES<T> + i];
        likelihood[s] = missing ? splat(T(1)) : found;
    }
}

// −1 in the lanes where some entry is negative or NaN, or a row does not sum to 1 within 1e-4.
template <class T>
inline Mask<T> not_distributions(const Pack<T>* matrix, int64_t rows, int64_t columns) {
    Mask<T> bad{};
    for (int64_t r = 0; r < rows; r++) {
        Pack<T> sum{};
        for (int64_t c = 0; c < columns; c++) {
            sum += matrix[r * columns + c];
            bad |= ~(matrix[r * columns + c] >= T(0));
        }
        const Pack<T> excess = sum - T(1);
        bad |= ~((excess < T(0) ? -excess : excess) <= T(1e-4));
    }
    return bad;
}
