// Rows shared among threads, each with scratch of its own. Rows are independent, so results do not depend on threads.
#pragma once
#include "packs.h"

inline int64_t at_most(int64_t x, int64_t limit) { return x < limit ? x : limit; }

// Calls block(first, rows, scratch) for blocks of `size` rows; returns the statuses together.
template <class T, class Block>
int in_blocks_of(int64_t size, int64_t batch, int64_t threads, int64_t scratch_packs, Block block) {
    const int64_t blocks = (batch + size - 1) / size, wanted = at_most(threads, blocks);
    int status = FINE;
#pragma omp parallel num_threads(int(wanted < 1 ? 1 : wanted)) reduction(| : status) if (wanted > 1)
    {
        Scratch<T> scratch(scratch_packs);
        if (!scratch) status |= NO_MEMORY;
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++)
            if (scratch) status |= block(b * size, at_most(batch - b * size, size), scratch.take(0));
    }
    return status;
}
// One row per lane.
template <class T, class Block>
int in_blocks(int64_t batch, int64_t threads, int64_t scratch_packs, Block block) {
    return in_blocks_of<T>(LANES<T>, batch, threads, scratch_packs, block);
}
