// The last step of a reduction whose parts were summed by different tasks.
#pragma once
#include "common.h"

#include <algorithm>

// out[o, i] = Σ_k in[o, k, i], k in order, so that the number of threads does not show.
EXPORT void sum_middle(const float* in, int64_t outer, int64_t count, int64_t inner, float* out, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t o = 0; o < outer; ++o) {
        float* to = out + o * inner;
        std::copy(in + o * count * inner, in + o * count * inner + inner, to);
        for (int64_t k = 1; k < count; ++k)
            for (int64_t i = 0; i < inner; ++i) to[i] += in[(o * count + k) * inner + i];
    }
}
