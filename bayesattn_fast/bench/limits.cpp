// How many multiplications and additions, and how many exponentials, a second this CPU makes in float32 when nothing is
// loaded or stored: independent chains keep its units busy. torch's own functions do not reach this on every CPU.
#include "common.h"
#include "packs.h"

#ifdef __AVX512F__
constexpr int BYTES = 64;
#elif defined(__AVX__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif
constexpr int CHAINS = 12;
typedef float Lanes __attribute__((vector_size(BYTES)));

// Operations of one round of one thread.
EXPORT int64_t operations_of_a_round() { return int64_t(2) * CHAINS * (BYTES / sizeof(float)); }

// Runs them on `threads` threads; the value only keeps the compiler from dropping the loop.
EXPORT float multiply_add(int64_t rounds, float x, int threads) {
    float sink = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sink)
    for (int t = 0; t < threads; ++t) {
        Lanes chain[CHAINS], factor = Lanes{} + x;
        for (int c = 0; c < CHAINS; ++c) chain[c] = Lanes{} + float(c + t);
        for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 12
            for (int c = 0; c < CHAINS; ++c) chain[c] = chain[c] * factor + factor;
        for (int c = 0; c < CHAINS; ++c) sink += chain[c][0];
    }
    return sink;
}

// `rounds` exponentials of 64 numbers on each of `threads` threads.
EXPORT float exponentials(int64_t rounds, int threads) {
    float sink = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sink)
    for (int t = 0; t < threads; ++t) {
        Pack<float> chain[4];
        for (int c = 0; c < 4; ++c) chain[c] = Pack<float>{} + 0.1f * float(c + t);
        for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 4
            for (int c = 0; c < 4; ++c) chain[c] = exponential(-chain[c]);
        for (int c = 0; c < 4; ++c) sink += chain[c][0];
    }
    return sink;
}
