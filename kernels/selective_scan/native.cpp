// Selective scan, forward and backward (equations and contract: reference.py).
//
// A channel rides in each lane of a vector and time is walked step by step, a few states at a time, so that h
// stays in registers and y needs no sum across lanes. A chunk of steps is turned into [step][lane] scratch first; the
// backward pass recomputes the states of one chunk from the h that the forward pass kept at its start.
//
// Deterministic for any number of threads: the tasks and the order of every sum depend on the shape alone.
#include "lanes.h"
#include "sums.h"

#include <memory>
#include <type_traits>

namespace {

struct Sizes {
    int64_t seeds, batch, channels, states, length, groups, chunk, softplus, fixed_B, fixed_C, runs, splits;
    int64_t per_group() const { return channels / groups; }
    int64_t blocks() const { return (per_group() + LANES - 1) / LANES; }  // in one group
};

// One block of at most LANES channels of one group.
struct Block {
    int64_t seed, batch, group, first, lanes;
};

Block block_at(const Sizes& n, int64_t seed, int64_t batch, int64_t group, int64_t index) {
    int64_t within = index * LANES;
    return {seed, batch, group, group * n.per_group() + within, std::min(LANES, n.per_group() - within)};
}

struct Inputs {
    View u, delta, A, B, C, D, z, delta_bias;
};

// Memory of one thread, cut into pieces aligned to a vector.
class Scratch {
  public:
    explicit Scratch(float* memory) : next_(memory + (-(reinterpret_cast<intptr_t>(memory) / 4) & (LANES - 1))) {}
    float* take(int64_t floats) {
        float* piece = next_;
        next_ += (floats + LANES - 1) / LANES * LANES;
        return piece;
    }

  private:
    float* next_;
};

__attribute__((noinline)) vf lane_values(const View& view, const Block& b) {
    vf x = {};
    if (view && view.dtype == FLOAT32 && view.stride[1] == 1)
        return load_row<FLOAT32>(view.data, view.at(b.seed, b.first), b.lanes);
    if (view)
        for (int64_t i = 0; i < b.lanes; ++i) x[i] = element(view.data, view.at(b.seed, b.first + i), view.dtype);
    return x;
}

// B or C of one chunk: fixed, a vector over the channels for every state; else one number for every state and step.
struct Matrix {
    const float* data;
    int64_t row, step;  // strides in floats
    Matrix from(int64_t state) const { return {data + state * row, row, step}; }
    template <bool FIXED>
    vf at(int state, int64_t t) const {
        return FIXED ? load(data + state * row) : splat(data[state * row + t * step]);
    }
};

// float32 is read where it lies; the rest is first brought to [state][step], a fixed one to [state][lane].
__attribute__((noinline)) Matrix matrix_of(const View& m, bool fixed, const Block& b, const Sizes& n, int64_t start,
                                           int64_t steps, float* memory) {
    if (fixed) {
        gather(Plane(m, 1, 2), m.at(b.seed, b.first), b.lanes, n.states, memory);
        return {memory, LANES, 0};
    }
    if (m.dtype == FLOAT32)
        return {reinterpret_cast<const float*>(m.data) + m.at(b.seed, b.batch, b.group, 0, start), m.stride[3], m.stride[4]};
    for (int64_t t = 0; t < steps; t += LANES)
        gather(Plane(m, 4, 3), m.at(b.seed, b.batch, b.group, 0, start + t), std::min(LANES, steps - t), n.states,
               memory + t, n.chunk);
    return {memory, n.chunk, 1};
}

// What both passes need of one chunk, as [step][lane].
struct Chunk {
    float *x, *step, *drive, *slope, *memory_B, *memory_C;
    Matrix B, C;
    Chunk(Scratch& s, const Sizes& n)
        : x(s.take(n.chunk * LANES)), step(s.take(n.chunk * LANES)), drive(s.take(n.chunk * LANES)),
          slope(s.take(n.chunk * LANES)), memory_B(s.take(n.states * std::max(n.chunk, LANES))),
          memory_C(s.take(n.states * std::max(n.chunk, LANES))), B{}, C{} {}
    static int64_t floats(const Sizes& n) { return 4 * n.chunk * LANES + 2 * n.states * std::max(n.chunk, LANES); }

    __attribute__((noinline)) void read(const Inputs& in, const Sizes& n, const Block& b, vf bias, int64_t start, int64_t steps) {
        gather(Plane(in.u, 2, 3), in.u.at(b.seed, b.batch, b.first, start), b.lanes, steps, x);
        gather(Plane(in.delta, 2, 3), in.delta.at(b.seed, b.batch, b.first, start), b.lanes, steps, step);
        for (int64_t t = 0; t < steps; ++t) {
            vf d = load(step + t * LANES) + bias, s = splat(1.0f);
            if (n.softplus) d = softplus_lanes(d, s);
            store(step + t * LANES, d);
            store(slope + t * LANES, s);
            store(drive + t * LANES, d * load(x + t * LANES));
        }
        B = matrix_of(in.B, n.fixed_B, b, n, start, steps, memory_B);
        C = matrix_of(in.C, n.fixed_C, b, n, start, steps, memory_C);
    }
};

// W states of one chunk: h in registers, y += C h.
template <int W, bool FB, bool FC>
void advance(const Chunk& c, const float* A, Matrix B, Matrix C, int64_t steps, float* h, float* y) {
    vf a[W], s[W];
    for (int w = 0; w < W; ++w) a[w] = load(A + w * LANES), s[w] = load(h + w * LANES);
    for (int64_t t = 0; t < steps; ++t) {
        vf step = load(c.step + t * LANES), drive = load(c.drive + t * LANES), sum = load(y + t * LANES);
#pragma GCC unroll 8
        for (int w = 0; w < W; ++w) {
            s[w] = exp2_lanes(step * a[w]) * s[w] + drive * B.at<FB>(w, t);
            sum += s[w] * C.at<FC>(w, t);
        }
        store(y + t * LANES, sum);
    }
    for (int w = 0; w < W; ++w) store(h + w * LANES, s[w]);
}

template <bool FB, bool FC>
void forward_block(const Inputs& in, const View& out, const View& last, const View& kept, const Sizes& n, const Block& b,
                   Scratch scratch) {
    Chunk c(scratch, n);
    float *A = scratch.take(n.states * LANES), *h = scratch.take(n.states * LANES), *y = scratch.take(n.chunk * LANES),
          *z = scratch.take(n.chunk * LANES);
    gather(Plane(in.A, 1, 2), in.A.at(b.seed, b.first), b.lanes, n.states, A);
    for (int64_t i = 0; i < n.states * LANES; ++i) A[i] *= LOG2E;
    std::fill(h, h + n.states * LANES, 0.0f);
    vf skip = lane_values(in.D, b), bias = lane_values(in.delta_bias, b);
    for (int64_t start = 0; start < n.length; start += n.chunk) {
        int64_t steps = std::min(n.chunk, n.length - start), i = 0;
        c.read(in, n, b, bias, start, steps);
        for (int64_t t = 0; t < steps; ++t) store(y + t * LANES, skip * load(c.x + t * LANES));
        for (; i + 4 <= n.states; i += 4)
            advance<4, FB, FC>(c, A + i * LANES, c.B.from(i), c.C.from(i), steps, h + i * LANES, y);
        for (; i < n.states; ++i)
            advance<1, FB, FC>(c, A + i * LANES, c.B.from(i), c.C.from(i), steps, h + i * LANES, y);
        if (in.z) {
            gather(Plane(in.z, 2, 3), in.z.at(b.seed, b.batch, b.first, start), b.lanes, steps, z);
            for (int64_t t = 0; t < steps; ++t) {
                vf gate = load(z + t * LANES);
                store(y + t * LANES, load(y + t * LANES) * gate * sigmoid_lanes(gate));
            }
        }
        scatter(Plane(out, 2, 3), out.at(b.seed, b.batch, b.first, start), b.lanes, steps, y);
        if (start + n.chunk < n.length)
            scatter(Plane(kept, 4, 3), kept.at(b.seed, b.batch, start / n.chunk, 0, b.first), b.lanes, n.states, h);
    }
    if (last) scatter(Plane(last, 2, 3), last.at(b.seed, b.batch, b.first), b.lanes, n.states, h);
}

int64_t forward_floats(const Sizes& n) { return Chunk::floats(n) + 2 * n.states * LANES + 2 * n.chunk * LANES + 64; }

struct Outputs {
    View du, ddelta, dz, dB, dC, rows;
};

// Scratch of the backward pass, as [step][lane]: dy, y, d(silu)/dz · dout, Σ g B and Σ g h' A, and the history of W states.
constexpr int WIDE = 2;
struct Reverse {
    float *dy, *y, *gate, *g_B, *dstep, *decay, *history, *product_B, *product_C;
    Reverse(Scratch& s, const Sizes& n)
        : dy(s.take(n.chunk * LANES)), y(s.take(n.chunk * LANES)), gate(s.take(n.chunk * LANES)),
          g_B(s.take(n.chunk * LANES)), dstep(s.take(n.chunk * LANES)), decay(s.take(n.chunk * LANES * WIDE)),
          history(s.take(n.chunk * LANES * WIDE)), product_B(s.take(LANES * LANES * WIDE)),
          product_C(s.take(LANES * LANES * WIDE)) {}
    static int64_t floats(const Sizes& n) { return (5 + 2 * WIDE) * n.chunk * LANES + 2 * WIDE * LANES * LANES; }
};

// Sums across the lanes of LANES steps, written to (first block of a task) or added to one row of dB or dC.
inline void add_sums(float* row, const float* products, int64_t count, bool first) {
    vf v[LANE_COUNT];
    for (int i = 0; i < LANE_COUNT; ++i) v[i] = load(products + i * LANES);
    vf total = sums(v);
    store_row<FLOAT32>(row, 0, count, first ? total : total + load_row<FLOAT32>(row, 0, count));
}

// Where the gradients of W states go.
struct Rows {
    float *carry, *dA, *dB, *dC;  // dB, dC: a row of the output if variable, a row of partial sums if fixed
    int64_t length;
    bool first;
};

// W states of one chunk, forward again and then in reverse.
template <int W, bool FB, bool FC>
void retreat(const Chunk& c, const Reverse& r, const float* A, Matrix B, Matrix C, int64_t steps,
             const float* h, bool gated, const Rows& to) {
    constexpr int64_t ROW = W * LANES;
    vf a[W], s[W], carry[W], dA[W], sum_B[W], sum_C[W];
    for (int w = 0; w < W; ++w) {
        a[w] = load(A + w * LANES), s[w] = load(h + w * LANES), carry[w] = load(to.carry + w * LANES);
        dA[w] = sum_B[w] = sum_C[w] = vf{};
    }
    for (int64_t t = 0; t < steps; ++t) {
        vf step = load(c.step + t * LANES), drive = load(c.drive + t * LANES);
#pragma GCC unroll 4
        for (int w = 0; w < W; ++w) {
            vf decay = exp2_lanes(step * a[w]);
            store(r.decay + t * ROW + w * LANES, decay);
            s[w] = decay * s[w] + drive * B.at<FB>(w, t);
            store(r.history + t * ROW + w * LANES, s[w]);
        }
        if (gated) {
            vf y = load(r.y + t * LANES);
            for (int w = 0; w < W; ++w) y += s[w] * C.at<FC>(w, t);
            store(r.y + t * LANES, y);
        }
    }
    for (int64_t tile = (steps - 1) / LANES * LANES; tile >= 0; tile -= LANES) {
        const int64_t count = std::min(LANES, steps - tile);
        for (int64_t i = count - 1; i >= 0; --i) {
            const int64_t t = tile + i;
            vf dy = load(r.dy + t * LANES), step = load(c.step + t * LANES), drive = load(c.drive + t * LANES);
            vf g_B = load(r.g_B + t * LANES), dstep = load(r.dstep + t * LANES);
            const float* before = t > 0 ? r.history + (t - 1) * ROW : h;
#pragma GCC unroll 4
            for (int w = 0; w < W; ++w) {
                vf g = dy * C.at<FC>(w, t) + carry[w], previous = load(before + w * LANES);
                if (FC) sum_C[w] += dy * s[w];
                else store(r.product_C + (w * LANES + i) * LANES, dy * s[w]);
                if (FB) sum_B[w] += drive * g;
                else store(r.product_B + (w * LANES + i) * LANES, drive * g);
                g_B += g * B.at<FB>(w, t);
                carry[w] = g * load(r.decay + t * ROW + w * LANES);
                vf through_decay = carry[w] * previous;
                dstep += through_decay * a[w];
                dA[w] += through_decay * step;
                s[w] = previous;
            }
            store(r.g_B + t * LANES, g_B);
            store(r.dstep + t * LANES, dstep);
        }
        for (int w = 0; w < W; ++w) {
            if (!FB) add_sums(to.dB + w * to.length + tile, r.product_B + w * LANES * LANES, count, to.first);
            if (!FC) add_sums(to.dC + w * to.length + tile, r.product_C + w * LANES * LANES, count, to.first);
        }
    }
    for (int w = 0; w < W; ++w) {
        store(to.carry + w * LANES, carry[w]);
        store(to.dA + w * LANES, load(to.dA + w * LANES) + dA[w]);
        if (FB) store(to.dB + w * LANES, load(to.dB + w * LANES) + sum_B[w]);
        if (FC) store(to.dC + w * LANES, load(to.dC + w * LANES) + sum_C[w]);
    }
}

// One block of channels of one sequence. `rows` holds partial sums [row][lane]: dA, dD, ddelta_bias, fixed dB, dC.
template <bool FB, bool FC>
void backward_block(const Inputs& in, const View& dout, const View& dlast, const View& kept, const Outputs& to,
                    const Sizes& n, const Block& b, int64_t split, bool first, float* rows, Scratch scratch) {
    Chunk c(scratch, n);
    Reverse r(scratch, n);
    const int64_t N = n.states;
    float *A = scratch.take(N * LANES), *h = scratch.take(N * LANES), *carry = scratch.take(N * LANES);
    gather(Plane(in.A, 1, 2), in.A.at(b.seed, b.first), b.lanes, N, A);
    for (int64_t i = 0; i < N * LANES; ++i) A[i] *= LOG2E;
    std::fill(carry, carry + N * LANES, 0.0f);
    if (dlast) gather(Plane(dlast, 2, 3), dlast.at(b.seed, b.batch, b.first), b.lanes, N, carry);
    const vf skip = lane_values(in.D, b), bias = lane_values(in.delta_bias, b);
    vf dD = load(rows + N * LANES), dbias = load(rows + (N + 1) * LANES);
    float *fixed_B = rows + (N + 2) * LANES, *fixed_C = fixed_B + (FB ? N * LANES : 0);
    // dB and dC are contiguous (splits, E, B, G, N, L).
    const int64_t matrix = (((split * n.seeds + b.seed) * n.batch + b.batch) * n.groups + b.group) * N * n.length;
    for (int64_t start = (n.length - 1) / n.chunk * n.chunk; start >= 0; start -= n.chunk) {
        const int64_t steps = std::min(n.chunk, n.length - start);
        c.read(in, n, b, bias, start, steps);
        gather(Plane(dout, 2, 3), dout.at(b.seed, b.batch, b.first, start), b.lanes, steps, r.dy);
        if (start > 0)
            gather(Plane(kept, 4, 3), kept.at(b.seed, b.batch, start / n.chunk - 1, 0, b.first), b.lanes, N, h);
        else
            std::fill(h, h + N * LANES, 0.0f);
        if (in.z) {
            gather(Plane(in.z, 2, 3), in.z.at(b.seed, b.batch, b.first, start), b.lanes, steps, r.gate);
            for (int64_t t = 0; t < steps; ++t) {
                vf z = load(r.gate + t * LANES), s = sigmoid_lanes(z), up = load(r.dy + t * LANES);
                store(r.dy + t * LANES, up * z * s);
                store(r.gate + t * LANES, up * s * (1.0f + z * (1.0f - s)));
                store(r.y + t * LANES, skip * load(c.x + t * LANES));
            }
        }
        std::fill(r.g_B, r.g_B + steps * LANES, 0.0f);
        std::fill(r.dstep, r.dstep + steps * LANES, 0.0f);
        auto go = [&](auto width, int64_t i) {
            Rows rows_of = {carry + i * LANES, rows + i * LANES,
                            FB ? fixed_B + i * LANES : reinterpret_cast<float*>(to.dB.data) + matrix + i * n.length + start,
                            FC ? fixed_C + i * LANES : reinterpret_cast<float*>(to.dC.data) + matrix + i * n.length + start,
                            n.length, first};
            retreat<decltype(width)::value, FB, FC>(c, r, A + i * LANES, c.B.from(i), c.C.from(i), steps,
                                                    h + i * LANES, bool(in.z), rows_of);
        };
        int64_t i = 0;
        for (; i + WIDE <= N; i += WIDE) go(std::integral_constant<int, WIDE>(), i);
        for (; i < N; ++i) go(std::integral_constant<int, 1>(), i);
        for (int64_t t = 0; t < steps; ++t) {
            vf x = load(c.x + t * LANES), dy = load(r.dy + t * LANES), g_B = load(r.g_B + t * LANES);
            // dstep was summed with A·log2(e).
            vf ddelta = (load(r.dstep + t * LANES) * (1.0f / LOG2E) + x * g_B) * load(c.slope + t * LANES);
            dD += dy * x;
            dbias += ddelta;
            store(r.g_B + t * LANES, load(c.step + t * LANES) * g_B + skip * dy);
            store(r.dstep + t * LANES, ddelta);
            if (in.z) store(r.y + t * LANES, load(r.y + t * LANES) * load(r.gate + t * LANES));
        }
        scatter(Plane(to.du, 2, 3), to.du.at(b.seed, b.batch, b.first, start), b.lanes, steps, r.g_B);
        scatter(Plane(to.ddelta, 2, 3), to.ddelta.at(b.seed, b.batch, b.first, start), b.lanes, steps, r.dstep);
        if (in.z) scatter(Plane(to.dz, 2, 3), to.dz.at(b.seed, b.batch, b.first, start), b.lanes, steps, r.y);
    }
    store(rows + N * LANES, dD);
    store(rows + (N + 1) * LANES, dbias);
}

int64_t backward_floats(const Sizes& n) {
    return Chunk::floats(n) + Reverse::floats(n) + 3 * n.states * LANES + 64;
}

}  // namespace

// tensors: u, delta, A, B, C, D, z, delta_bias, out, last_state, states.
EXPORT void selective_scan_forward(const View* tensors, const Sizes* sizes, int64_t threads) {
    const Sizes n = *sizes;
    const Inputs in = *reinterpret_cast<const Inputs*>(tensors);
    const View out = tensors[8], last = tensors[9], kept = tensors[10];
    auto run = n.fixed_B ? (n.fixed_C ? forward_block<true, true> : forward_block<true, false>)
                             : (n.fixed_C ? forward_block<false, true> : forward_block<false, false>);
    const int64_t blocks = n.blocks(), tasks = n.seeds * n.batch * n.groups * blocks;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        FlushDenormals flush;
        auto memory = std::make_unique<float[]>(size_t(forward_floats(n)) + LANES);
#pragma omp for schedule(static)
        for (int64_t task = 0; task < tasks; ++task) {
            int64_t rest = task / blocks;
            Block b = block_at(n, rest / n.groups / n.batch, rest / n.groups % n.batch, rest % n.groups, task % blocks);
            run(in, out, last, kept, n, b, Scratch(memory.get()));
        }
    }
}

// tensors: the eight inputs, dout, dlast_state, states, du, ddelta, dz, dB, dC, rows.
// dB, dC float32 (splits, E, B, G, N, L); rows float32, zero, (E, runs, G, blocks, rows, LANES).
EXPORT void selective_scan_backward(const View* tensors, const Sizes* sizes, int64_t rows_per_block, int64_t threads) {
    const Sizes n = *sizes;
    const Inputs in = *reinterpret_cast<const Inputs*>(tensors);
    const View dout = tensors[8], dlast = tensors[9], kept = tensors[10];
    const Outputs to = *reinterpret_cast<const Outputs*>(tensors + 11);
    auto run = n.fixed_B ? (n.fixed_C ? backward_block<true, true> : backward_block<true, false>)
                             : (n.fixed_C ? backward_block<false, true> : backward_block<false, false>);
    const int64_t blocks = n.blocks(), tasks = n.seeds * n.runs * n.groups * n.splits;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        FlushDenormals flush;
        auto memory = std::make_unique<float[]>(size_t(backward_floats(n)) + LANES);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; ++task) {
            const int64_t split = task % n.splits, group = task / n.splits % n.groups;
            const int64_t part = task / n.splits / n.groups % n.runs, seed = task / n.splits / n.groups / n.runs;
            for (int64_t batch = n.batch * part / n.runs; batch < n.batch * (part + 1) / n.runs; ++batch) {
                const int64_t begin = blocks * split / n.splits, end = blocks * (split + 1) / n.splits;
                for (int64_t index = begin; index < end; ++index) {
                    float* rows = reinterpret_cast<float*>(to.rows.data) +
                                  (((seed * n.runs + part) * n.groups + group) * blocks + index) * rows_per_block * LANES;
                    run(in, dout, dlast, kept, to, n, block_at(n, seed, batch, group, index), split, index == begin, rows,
                        Scratch(memory.get()));
                }
            }
        }
    }
}
