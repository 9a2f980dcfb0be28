// Entry points: the step for given q, k, v, the step with projections, and the trainer (equations: reference.py).
//
// Whole sequences or seeds go to threads where there are enough of them, the parts of a sequence otherwise; both ways
// sum in the same order and give the same bits.
#include "block.h"

#include <omp.h>
#include <vector>

namespace {

// Memory for one sequence, and the way through it.
struct Worker {
    const Sizes& n;
    Floats q, k, v, dq;
    std::vector<Totals> totals;
    std::vector<Scratch> scratch;
    int64_t threads;

    Worker(const Sizes& n, bool columns, int64_t threads)
        : n(n), q(n.padded() * n.wide_head()), k(n.padded() * n.wide_head()), v(n.padded() * n.wide_values()),
          dq(n.padded() * n.wide_head()), threads(std::min(threads, n.parts())) {
        // One thread needs the sum so far and one part; many need all parts.
        const int64_t copies = this->threads > 1 ? n.parts() : std::min<int64_t>(n.parts(), 2);
        for (int64_t i = 0; i < copies; ++i) totals.emplace_back(n, columns);
        for (int64_t i = 0; i < this->threads; ++i) scratch.emplace_back(n);
    }

    // The sequence whose q, k, v are in place; gradients only if wanted.
    const Totals& run(const float* w_out, const void* targets, float scale, const Statistics& out, bool gradients) {
        const Sequence s{q.data, k.data, v.data, w_out, targets, scale};
        float* to = gradients ? dq.data : nullptr;
        const int64_t parts = n.parts();
        if (threads == 1) {
            run_part(n, s, 0, to, totals[0], out, scratch[0]);
            for (int64_t part = 1; part < parts; ++part) {
                run_part(n, s, part, to, totals[1], out, scratch[0]);
                totals[0].add(totals[1]);
            }
            return totals[0];
        }
#pragma omp parallel num_threads(threads)
        {
            Scratch& mine = scratch[omp_get_thread_num()];
#pragma omp for schedule(dynamic, 1)
            for (int64_t part = 0; part < parts; ++part) run_part(n, s, part, to, totals[part], out, mine);
        }
        for (int64_t part = 1; part < parts; ++part) totals[0].add(totals[part]);
        return totals[0];
    }
};

struct Step {
    Sizes n;
    void** p;
    float scale;
    float* at(int i, int64_t offset) const { return p[i] ? static_cast<float*>(p[i]) + offset : nullptr; }
    const void* targets(int i, int64_t sequence) const {
        if (n.soft) return at(i, sequence * n.length * n.classes);
        return static_cast<int64_t*>(p[i]) + sequence * n.length;
    }
};

// Pointers: q, k, v, w_out, targets, loss, dq, dk, dv, dw_out (one a sequence), rows, indices, columns.
void step_of_sequence(const Step& a, int64_t i, Worker& w) {
    const Sizes& n = a.n;
    const int64_t N = n.length, padded = n.padded(), d = n.wide_head(), dv = n.wide_values();
    pack(a.at(0, i * N * n.head), N, n.head, w.q.data, padded, d);
    pack(a.at(1, i * N * n.head), N, n.head, w.k.data, padded, d);
    pack(a.at(2, i * N * n.values), N, n.values, w.v.data, padded, dv);
    Statistics out;
    if (a.p[10]) out = {a.at(10, i * ROW_FLOATS * N), static_cast<int64_t*>(a.p[11]) + i * 2 * N};
    const float* w_out = a.at(3, i / n.batch * n.values * n.classes);
    const Totals& total = w.run(w_out, a.targets(4, i), a.scale, out, true);
    static_cast<double*>(a.p[5])[i] = total.sums.loss / double(N);
    unpack(w.dq.data, N, n.head, d, 1.0f, a.at(6, i * N * n.head));
    unpack(total.dk.data, N, n.head, d, a.scale, a.at(7, i * N * n.head));
    unpack(total.dv.data, N, n.values, dv, 1.0f, a.at(8, i * N * n.values));
    std::copy(total.dw_out.data, total.dw_out.data + n.values * n.classes, a.at(9, i * n.values * n.classes));
    if (!a.p[12]) return;
    for (int64_t j = 0; j < N; ++j)
        for (int64_t c = 0; c < COLUMN_FLOATS; ++c) {
            float sum = 0;
            for (int64_t l = 0; l < LANES; ++l) sum += total.columns.data[(j * COLUMN_FLOATS + c) * LANES + l];
            *a.at(12, (i * COLUMN_FLOATS + c) * N + j) = sum;
        }
}

// The four weights of one seed, padded to whole vectors but for w_out, and their gradients.
struct Weights {
    Floats q, k, v, out, dq, dk, dv, dout;
    explicit Weights(const Sizes& n)
        : q(n.inputs * n.wide_head()), k(n.inputs * n.wide_head()), v(n.inputs * n.wide_values()), out(n.values * n.classes),
          dq(n.inputs * n.wide_head()), dk(n.inputs * n.wide_head()), dv(n.inputs * n.wide_values()),
          dout(n.values * n.classes) {}
};

// rows (padded, Dx) times w (Dx, pitch).
void project(const Sizes& n, const float* x, const float* w, int64_t pitch, float* to) {
    wide_products(pitch, n.padded(), x, n.inputs, 1, w, pitch, n.inputs, to, pitch, false);
}

// dw (Dx, pitch) += factor · xᵀ d, in stretches of positions, which keeps rounding small.
void gather_weight(const Sizes& n, const float* x, const float* d, int64_t pitch, float factor, float* dw) {
    constexpr int64_t STRETCH = 128;
    std::vector<float> sum(n.inputs * LANES), part(n.inputs * LANES);
    for (int64_t c = 0; c < pitch; c += LANES) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t i = 0; i < n.padded(); i += STRETCH) {
            const int64_t count = std::min(STRETCH, n.padded() - i);
            products<1>(n.inputs, x + i * n.inputs, 1, n.inputs, d + i * pitch + c, pitch, count, part.data(), LANES,
                        false);
            for (size_t e = 0; e < sum.size(); ++e) sum[e] += part[e];
        }
        for (int64_t a = 0; a < n.inputs; ++a)
            for (int64_t l = 0; l < LANES; ++l) dw[a * pitch + c + l] += factor * sum[a * LANES + l];
    }
}

// Loss and gradients of one seed's weights; x (B, padded, Dx). Returns the sums over all positions.
Sums weight_step(const Step& a, const float* x, int targets, int64_t seed, Weights& w, Worker& worker, bool gradients) {
    const Sizes& n = a.n;
    const int64_t d = n.wide_head(), dv = n.wide_values();
    if (gradients) {
        w.dq.clear(n.inputs * d), w.dk.clear(n.inputs * d), w.dv.clear(n.inputs * dv);
        w.dout.clear(n.values * n.classes);
    }
    Sums sums;
    for (int64_t b = 0; b < n.batch; ++b) {
        const float* rows = x + b * n.padded() * n.inputs;
        project(n, rows, w.q.data, d, worker.q.data);
        project(n, rows, w.k.data, d, worker.k.data);
        project(n, rows, w.v.data, dv, worker.v.data);
        const Totals& total = worker.run(w.out.data, a.targets(targets, seed * n.batch + b), a.scale, {}, gradients);
        sums.add(total.sums);
        if (!gradients) continue;
        gather_weight(n, rows, worker.dq.data, d, 1.0f, w.dq.data);
        gather_weight(n, rows, total.dk.data, d, a.scale, w.dk.data);
        gather_weight(n, rows, total.dv.data, dv, 1.0f, w.dv.data);
        for (int64_t i = 0; i < n.values * n.classes; ++i) w.dout.data[i] += total.dw_out.data[i];
    }
    return sums;
}

void pack_weights(const Step& a, int first, int64_t seed, Weights& w) {
    const Sizes& n = a.n;
    pack(a.at(first, seed * n.inputs * n.head), n.inputs, n.head, w.q.data, n.inputs, n.wide_head());
    pack(a.at(first + 1, seed * n.inputs * n.head), n.inputs, n.head, w.k.data, n.inputs, n.wide_head());
    pack(a.at(first + 2, seed * n.inputs * n.values), n.inputs, n.values, w.v.data, n.inputs, n.wide_values());
    const float* out = a.at(first + 3, seed * n.values * n.classes);
    std::copy(out, out + n.values * n.classes, w.out.data);
}

void unpack_four(const Step& a, int first, int64_t seed, const float* q, const float* k, const float* v,
                 const float* out) {
    const Sizes& n = a.n;
    unpack(q, n.inputs, n.head, n.wide_head(), 1.0f, a.at(first, seed * n.inputs * n.head));
    unpack(k, n.inputs, n.head, n.wide_head(), 1.0f, a.at(first + 1, seed * n.inputs * n.head));
    unpack(v, n.inputs, n.values, n.wide_values(), 1.0f, a.at(first + 2, seed * n.inputs * n.values));
    std::copy(out, out + n.values * n.classes, a.at(first + 3, seed * n.values * n.classes));
}

Floats padded_inputs(const Sizes& n, const float* x) {
    Floats rows(n.batch * n.padded() * n.inputs);
    for (int64_t b = 0; b < n.batch; ++b)
        pack(x + b * n.length * n.inputs, n.length, n.inputs, rows.data + b * n.padded() * n.inputs, n.padded(),
             n.inputs);
    return rows;
}

double norm(const Floats& x, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += double(x.data[i]) * x.data[i];
    return std::sqrt(sum);
}

void descend(Floats& w, const Floats& dw, int64_t count, float rate) {
    for (int64_t i = 0; i < count; ++i) w.data[i] -= rate * dw.data[i];
}

constexpr int64_t RECORD = 11;  // numbers of a record, see native.py

// Pointers: x, targets, w_q, w_k, w_v, w_out (updated in place), rates (E, 4), loss (E, steps + 1), records,
// held-out x, held-out targets. `every`: steps between records; a loss above `limit` or NaN ends a seed's training.
void train_seed(const Step& a, int64_t seed, int64_t steps, int64_t every, double limit, Worker& worker) {
    const Sizes& n = a.n;
    const int64_t q = n.inputs * n.wide_head(), v = n.inputs * n.wide_values(), o = n.values * n.classes;
    const int64_t each = n.batch * n.length * n.inputs, records = steps / every + 1;
    const double positions = double(n.batch * n.length), nan = std::numeric_limits<double>::quiet_NaN();
    Weights w(n);
    pack_weights(a, 2, seed, w);
    Floats x = padded_inputs(n, a.at(0, seed * each)), held = padded_inputs(n, a.at(a.p[9] ? 9 : 0, seed * each));
    const float* rate = a.at(6, seed * 4);
    double *loss = static_cast<double*>(a.p[7]) + seed * (steps + 1),
           *record = static_cast<double*>(a.p[8]) + seed * records * RECORD;
    std::fill(loss, loss + steps + 1, nan);
    std::fill(record, record + records * RECORD, nan);
    for (int64_t t = 0; t <= steps; ++t) {
        const Sums sums = weight_step(a, x.data, 1, seed, w, worker, true);
        loss[t] = sums.loss / positions;
        if (!(loss[t] <= limit)) break;
        if (t % every == 0) {
            double* to = record + t / every * RECORD;
            to[0] = sums.predictive_entropy / positions, to[1] = sums.correct / positions;
            to[2] = sums.routing_entropy / positions, to[3] = sums.variance * positions;
            to[4] = norm(w.dq, q), to[5] = norm(w.dk, q), to[6] = norm(w.dv, v), to[7] = norm(w.dout, o);
            if (a.p[9]) {
                const Sums fresh = weight_step(a, held.data, 10, seed, w, worker, false);
                to[8] = fresh.loss / positions, to[9] = fresh.predictive_entropy / positions;
                to[10] = fresh.correct / positions;
            }
        }
        if (t == steps) break;
        descend(w.q, w.dq, q, rate[0]), descend(w.k, w.dk, q, rate[1]);
        descend(w.v, w.dv, v, rate[2]), descend(w.out, w.dout, o, rate[3]);
    }
    unpack_four(a, 2, seed, w.q.data, w.k.data, w.v.data, w.out.data);
}

// `work(i, worker)` for all i: by one thread each where there are at least as many, else by all threads together.
template <class Work>
void share(const Sizes& n, int64_t tasks, bool columns, int64_t threads, const Work& work) {
    if (threads == 1 || tasks < threads) {
        Worker worker(n, columns, threads);
        for (int64_t i = 0; i < tasks; ++i) work(i, worker);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        Worker worker(n, columns, 1);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < tasks; ++i) work(i, worker);
    }
}

Step step_of(void** p, const int64_t* sizes, double scale) {
    Step a{{}, p, float(scale)};
    std::memcpy(&a.n, sizes, sizeof a.n);
    return a;
}

}  // namespace

EXPORT void attention_cross_entropy(void** p, const int64_t* sizes, double scale, int64_t threads) {
    const Step a = step_of(p, sizes, scale);
    share(a.n, a.n.seeds * a.n.batch, p[12] != nullptr, threads,
          [&](int64_t i, Worker& worker) { step_of_sequence(a, i, worker); });
}

// Pointers: x, targets, w_q, w_k, w_v, w_out, loss, dw_q, dw_k, dw_v, dw_out.
EXPORT void single_head_step(void** p, const int64_t* sizes, double scale, int64_t threads) {
    const Step a = step_of(p, sizes, scale);
    share(a.n, a.n.seeds, false, threads, [&](int64_t seed, Worker& worker) {
        const Sizes& n = a.n;
        Weights w(n);
        pack_weights(a, 2, seed, w);
        Floats x = padded_inputs(n, a.at(0, seed * n.batch * n.length * n.inputs));
        const Sums sums = weight_step(a, x.data, 1, seed, w, worker, true);
        static_cast<double*>(p[6])[seed] = sums.loss / double(n.batch * n.length);
        unpack_four(a, 7, seed, w.dq.data, w.dk.data, w.dv.data, w.dout.data);
    });
}

EXPORT void train_single_head(void** p, const int64_t* sizes, double scale, int64_t steps, int64_t every, double limit,
                              int64_t threads) {
    const Step a = step_of(p, sizes, scale);
    share(a.n, a.n.seeds, false, threads,
          [&](int64_t seed, Worker& worker) { train_seed(a, seed, steps, every, limit, worker); });
}
