// Causal depthwise convolution, forward and backward (equations and contract: reference.py).
//
// A channel rides in each lane; a chunk of steps, with the W − 1 steps before it, is read as [step][lane].
// Deterministic for any number of threads: the tasks and the order of every sum depend on the shape alone.
#include "lanes.h"
#include "sums.h"

#include <algorithm>

namespace {

constexpr int64_t CHUNK = 64, WIDEST = 4, PAST = WIDEST - 1;

struct Sizes {
    int64_t seeds, batch, channels, length, width, silu, runs;
    int64_t blocks() const { return (channels + LANES - 1) / LANES; }
    int64_t past() const { return width - 1; }
};

struct Inputs {
    View x, weight, bias, seq_idx, initial;
};

struct Block {
    int64_t seed, batch, first, lanes;
};

// One chunk: x from W − 1 steps before it, the sequence index of the same positions, the weights.
struct Chunk {
    alignas(64) float x[(PAST + CHUNK) * LANES];
    int32_t sequence[PAST + CHUNK];
    vf weight[WIDEST], bias;

    void read_weights(const Inputs& in, const Sizes& n, const Block& b) {
        alignas(64) float w[WIDEST * LANES];
        gather(Plane(in.weight, 1, 2), in.weight.at(b.seed, b.first), b.lanes, n.width, w);
        for (int64_t k = 0; k < n.width; ++k) weight[k] = load(w + k * LANES);
        bias = vf{};
        if (in.bias)
            for (int64_t i = 0; i < b.lanes; ++i)
                bias[i] = element(in.bias.data, in.bias.at(b.seed, b.first + i), in.bias.dtype);
    }

    void read(const Inputs& in, const Sizes& n, const Block& b, int64_t start, int64_t steps) {
        const int64_t past = n.past(), known = std::min(start, past);
        if (known < past) {
            if (in.initial) gather(Plane(in.initial, 2, 3), in.initial.at(b.seed, b.batch, b.first), b.lanes, past, x);
            else std::fill(x, x + past * LANES, 0.0f);
        }
        gather(Plane(in.x, 2, 3), in.x.at(b.seed, b.batch, b.first, start - known), b.lanes, steps + known,
               x + (past - known) * LANES);
        if (!in.seq_idx) return;
        auto index = reinterpret_cast<const int32_t*>(in.seq_idx.data);
        for (int64_t t = -past; t < steps; ++t) {
            const int64_t at = start + t;
            sequence[past + t] = at >= 0 || in.initial ? index[in.seq_idx.at(b.seed, b.batch, std::max<int64_t>(at, 0))] : -1;
        }
    }

    // Whether position t of the chunk may read its tap k.
    bool joined(int64_t t, int64_t k, int64_t past) const {
        return sequence[t + past] >= 0 && sequence[t + k] == sequence[t + past];
    }

    template <bool SEQUENCES>
    vf preactivation(int64_t t, int64_t W) const {
        if (SEQUENCES && sequence[t + W - 1] < 0) return vf{};
        vf sum = bias;
        for (int64_t k = 0; k < W; ++k)
            if (!SEQUENCES || joined(t, k, W - 1)) sum += weight[k] * load(x + (t + k) * LANES);
        return sum;
    }
};

template <bool SEQUENCES>
void forward_block(const Inputs& in, const View& out, const Sizes& n, const Block& b) {
    const int64_t W = n.width;
    Chunk c;
    alignas(64) float y[CHUNK * LANES];
    c.read_weights(in, n, b);
    for (int64_t start = 0; start < n.length; start += CHUNK) {
        const int64_t steps = std::min(CHUNK, n.length - start);
        c.read(in, n, b, start, steps);
        for (int64_t t = 0; t < steps; ++t) {
            vf pre = c.preactivation<SEQUENCES>(t, W);
            store(y + t * LANES, n.silu ? pre * sigmoid_lanes(pre) : pre);
        }
        scatter(Plane(out, 2, 3), out.at(b.seed, b.batch, b.first, start), b.lanes, steps, y);
    }
}

// Chunks from the last to the first; the W − 1 steps of dpre that follow a chunk are kept. rows: dweight, dbias.
template <bool SEQUENCES>
void backward_block(const Inputs& in, const View& dout, const View& dx, const View& dinitial, const Sizes& n,
                    const Block& b, float* rows) {
    const int64_t W = n.width;
    Chunk c;
    alignas(64) float dpre[(CHUNK + PAST) * LANES] = {}, to[(CHUNK + PAST) * LANES];
    int32_t after[PAST];
    std::fill(after, after + PAST, -1);
    vf dweight[WIDEST], dbias = load(rows + W * LANES);
    for (int k = 0; k < W; ++k) dweight[k] = load(rows + k * LANES);
    c.read_weights(in, n, b);
    for (int64_t start = (n.length - 1) / CHUNK * CHUNK; start >= 0; start -= CHUNK) {
        const int64_t steps = std::min(CHUNK, n.length - start), past = W - 1;
        c.read(in, n, b, start, steps);
        // The steps after this chunk: those computed last time at its beginning (none after the last chunk).
        const bool ends = start + steps == n.length;
        for (int64_t t = 0; t < past; ++t)
            store(dpre + (steps + t) * LANES, ends ? vf{} : load(dpre + t * LANES));
        gather(Plane(dout, 2, 3), dout.at(b.seed, b.batch, b.first, start), b.lanes, steps, to);
        for (int64_t t = 0; t < steps; ++t) {
            vf d = load(to + t * LANES);
            if (n.silu) {
                vf pre = c.preactivation<SEQUENCES>(t, W), s = sigmoid_lanes(pre);
                d *= s * (1.0f + pre * (1.0f - s));
            }
            if (SEQUENCES && c.sequence[t + past] < 0) d = vf{};
            store(dpre + t * LANES, d);
            dbias += d;
            for (int64_t k = 0; k < W; ++k)
                if (!SEQUENCES || c.joined(t, k, past)) dweight[k] += d * load(c.x + (t + k) * LANES);
        }
        // dx of the chunk, and of the initial state before the first one: position p is tap k of step p + W − 1 − k.
        const int64_t begin = start == 0 && in.initial ? -past : 0;
        for (int64_t p = begin; p < steps; ++p) {
            vf sum = {};
            for (int64_t k = 0; k < W; ++k) {
                const int64_t t = p + past - k;
                if (t < 0) continue;
                if (SEQUENCES) {
                    const int32_t reader = t < steps ? c.sequence[t + past] : after[t - steps];
                    if (reader < 0 || reader != c.sequence[p + past]) continue;
                }
                sum += c.weight[k] * load(dpre + t * LANES);
            }
            store(to + (p - begin) * LANES, sum);
        }
        scatter(Plane(dx, 2, 3), dx.at(b.seed, b.batch, b.first, start), b.lanes, steps, to - begin * LANES);
        if (begin < 0) scatter(Plane(dinitial, 2, 3), dinitial.at(b.seed, b.batch, b.first), b.lanes, past, to);
        if (SEQUENCES)
            for (int64_t t = 0; t < past; ++t) after[t] = t < steps ? c.sequence[t + past] : -1;
    }
    for (int k = 0; k < W; ++k) store(rows + k * LANES, dweight[k]);
    store(rows + W * LANES, dbias);
}

}  // namespace

// tensors: x, weight, bias, seq_idx, initial_states, out. width 2 to 4.
EXPORT void causal_conv1d_forward(const View* tensors, const Sizes* sizes, int64_t threads) {
    const Sizes n = *sizes;
    const Inputs in = *reinterpret_cast<const Inputs*>(tensors);
    const int64_t blocks = n.blocks(), tasks = n.seeds * n.batch * blocks;
    auto run = in.seq_idx ? forward_block<true> : forward_block<false>;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        FlushDenormals flush;
#pragma omp for schedule(static)
        for (int64_t task = 0; task < tasks; ++task) {
            const int64_t first = task % blocks * LANES, row = task / blocks;
            run(in, tensors[5], n, {row / n.batch, row % n.batch, first, std::min(LANES, n.channels - first)});
        }
    }
}

// tensors: the five inputs, dout, dx, dinitial_states; rows float32, zero, (E, runs, blocks, W + 1, LANES).
EXPORT void causal_conv1d_backward(const View* tensors, const Sizes* sizes, float* rows, int64_t threads) {
    const Sizes n = *sizes;
    const Inputs in = *reinterpret_cast<const Inputs*>(tensors);
    const int64_t blocks = n.blocks(), tasks = n.seeds * n.runs * blocks;
    auto run = in.seq_idx ? backward_block<true> : backward_block<false>;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        FlushDenormals flush;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; ++task) {
            const int64_t first = task % blocks * LANES, part = task / blocks % n.runs, seed = task / blocks / n.runs;
            for (int64_t batch = n.batch * part / n.runs; batch < n.batch * (part + 1) / n.runs; ++batch)
                run(in, tensors[5], tensors[6], tensors[7], n,
                    {seed, batch, first, std::min(LANES, n.channels - first)}, rows + task * (n.width + 1) * LANES);
        }
    }
}
