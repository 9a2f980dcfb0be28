// Blocks of queries of one attention head with readout and cross-entropy (equations: reference.py).
//
// The queries of a block (32, or 16 without AVX-512) ride in the lanes of two vectors. The scores of such a block
// against all its keys are kept, so each is computed once and exponentiated once: at most 32 N numbers, which stay in
// the second-level cache up to N ≈ 10⁴.
// Heads are padded to whole vectors and lengths to whole blocks inside; padding carries weight zero.
//
// Deterministic for any number of threads, and the trainer gives the bits of the single step: the blocks are dealt to
// a number of parts that depends on the length alone, and the parts are summed in order.
#pragma once
#include "tiles.h"

#include <algorithm>
#include <memory>

namespace {

constexpr int64_t QUERIES = 2 * LANES, TILE = 64, ROW_FLOATS = 8, COLUMN_FLOATS = 3;
constexpr float LN2 = 0.693147180559945309417f;

struct Sizes {
    int64_t seeds, batch, length, inputs, head, values, classes, causal, soft;
    int64_t padded() const { return round_up(length, QUERIES); }
    int64_t wide_head() const { return round_up(head, LANES); }
    int64_t wide_values() const { return round_up(values, LANES); }
    int64_t blocks() const { return padded() / QUERIES; }
    int64_t parts() const { return std::clamp<int64_t>(blocks() / 8, 1, 8); }
    float weight() const { return 1.0f / float(batch * length); }
};

struct Floats {
    std::unique_ptr<float[]> memory;
    float* data;
    explicit Floats(int64_t count) : memory(new float[count + LANES]) {
        data = memory.get() + (-(reinterpret_cast<intptr_t>(memory.get()) / 4) & (LANES - 1));
    }
    void clear(int64_t count) { std::fill(data, data + count, 0.0f); }
};

// Statistics of one sequence; null where not asked for. rows [8][N], indices [2][N].
struct Statistics {
    float* rows = nullptr;
    int64_t* indices = nullptr;
};

// One sequence: q, k (padded, wide_head), v (padded, wide_values), all zero beyond the true sizes.
struct Sequence {
    const float *q, *k, *v, *w_out;
    const void* targets;  // int64 [N], or float [N][C]
    float scale;
};

// Sums over the positions of one part.
struct Sums {
    double loss = 0, predictive_entropy = 0, correct = 0, routing_entropy = 0, variance = 0;
    void add(const Sums& o) {
        loss += o.loss, predictive_entropy += o.predictive_entropy, correct += o.correct;
        routing_entropy += o.routing_entropy, variance += o.variance;
    }
};

// What a part adds up: dk (padded, wide_head), dv (padded, wide_values), dw_out (values, C), columns (padded, 3, LANES).
struct Totals {
    Floats dk, dv, dw_out, columns;
    int64_t sizes[4];
    Sums sums;
    Totals(const Sizes& n, bool columns_too)
        : dk(n.padded() * n.wide_head()), dv(n.padded() * n.wide_values()), dw_out(n.values * n.classes),
          columns(columns_too ? n.padded() * COLUMN_FLOATS * LANES : 0),
          sizes{n.padded() * n.wide_head(), n.padded() * n.wide_values(), n.values * n.classes,
                columns_too ? n.padded() * COLUMN_FLOATS * LANES : 0} {}
    void clear() {
        dk.clear(sizes[0]), dv.clear(sizes[1]), dw_out.clear(sizes[2]), columns.clear(sizes[3]);
        sums = {};
    }
    void add(const Totals& o) {
        float* to[4] = {dk.data, dv.data, dw_out.data, columns.data};
        const float* from[4] = {o.dk.data, o.dv.data, o.dw_out.data, o.columns.data};
        for (int a = 0; a < 4; ++a)
            for (int64_t i = 0; i < sizes[a]; ++i) to[a][i] += from[a][i];
        sums.add(o.sums);
    }
};

// Memory of one thread for one block of queries.
struct Scratch {
    Floats scores, q, o, u, u_rows, dq, logits, y, compatibility, dw_out;
    explicit Scratch(const Sizes& n)
        : scores(n.padded() * QUERIES), q(n.wide_head() * QUERIES), o(n.wide_values() * QUERIES), u(n.wide_values() * QUERIES),
          u_rows(n.wide_values() * QUERIES), dq(n.wide_head() * QUERIES), logits(n.classes * QUERIES),
          y(n.classes * QUERIES), compatibility(TILE * QUERIES), dw_out(n.values * n.classes * LANES) {}
};

struct Pair {
    vf a, b;
    static Pair of(const float* p) { return {load(p), load(p + LANES)}; }
    static Pair splat2(float x) { return {splat(x), splat(x)}; }
    void to(float* p) const { store(p, a), store(p + LANES, b); }
};
inline Pair operator+(Pair x, Pair y) { return {x.a + y.a, x.b + y.b}; }
inline Pair operator-(Pair x, Pair y) { return {x.a - y.a, x.b - y.b}; }
inline Pair operator*(Pair x, Pair y) { return {x.a * y.a, x.b * y.b}; }
inline Pair operator/(Pair x, Pair y) { return {x.a / y.a, x.b / y.b}; }
inline Pair exp2_pair(Pair x) { return {exp2_lanes(x.a), exp2_lanes(x.b)}; }
inline Pair larger(Pair x, Pair y) { return {x.a > y.a ? x.a : y.a, x.b > y.b ? x.b : y.b}; }
inline Pair magnitude(Pair x) { return {floats(bits(x.a) & 0x7fffffff), floats(bits(x.b) & 0x7fffffff)}; }
inline Pair log_pair(Pair x) {
    for (int i = 0; i < LANES; ++i) x.a[i] = std::log(x.a[i]), x.b[i] = std::log(x.b[i]);
    return x;
}
inline float lane(const Pair& x, int64_t i) { return i < LANES ? x.a[i] : x.b[i - LANES]; }

const vi COUNT = lane_numbers();

// Numbers of a block's rows that both passes share.
struct Rows {
    Pair peak, inverse, lse, entropy;  // peak: the largest score, in units of log 2
    vi argmax_a, argmax_b;
};

template <bool STATISTICS>
class Block {
  public:
    Block(const Sizes& n, const Sequence& s, Scratch& m, int64_t index)
        : n(n), s(s), m(m), first(index * QUERIES), count(std::min(QUERIES, n.length - first)),
          keys(n.causal ? first + QUERIES : n.padded()) {}

    void forward(Sums& sums) {
        score();
        normalise();
        for (int64_t i = 0; i < count; ++i) sums.routing_entropy += lane(r.entropy, i);
        readout(sums);
    }

    void backward(float* dq, Totals& t, const Statistics& out);

  private:
    const Sizes& n;
    const Sequence& s;
    Scratch& m;
    int64_t first, count, keys;
    Rows r;
    Pair nll, predictive_entropy;
    int64_t predicted[QUERIES];

    void score();
    void normalise();
    void readout(Sums& sums);
    void read_targets();
    void back_to_values(Pair& expected);
    void write(const Statistics& out, Pair expected, Pair variance, Pair squares) const;
};

template <bool STATISTICS>
void Block<STATISTICS>::score() {
    const int64_t d = n.wide_head();
    for (int64_t half = 0; half < QUERIES; half += LANES)
        for (int64_t c = 0; c < d; c += LANES)
            flip(s.q + (first + half) * d + c, d, m.q.data + c * QUERIES + half, QUERIES);
    for (int64_t i = 0; i < n.head * QUERIES; ++i) m.q.data[i] *= s.scale * LOG2E;
    products<2>(keys, s.k, d, 1, m.q.data, QUERIES, n.head, m.scores.data, QUERIES, false);
    const vf none = splat(-std::numeric_limits<float>::infinity());
    for (int64_t j = n.causal ? first : n.length; j < keys; ++j) {
        Pair x = Pair::of(m.scores.data + j * QUERIES);
        vi later = vi{} + int32_t(n.causal ? j - first : QUERIES);
        Pair{select(later > COUNT, none, x.a), select(later > COUNT + LANE_COUNT, none, x.b)}.to(m.scores.data + j * QUERIES);
    }
    r.peak = {none, none};
    r.argmax_a = r.argmax_b = vi{};
    for (int64_t j = 0; j < keys; ++j) {
        Pair x = Pair::of(m.scores.data + j * QUERIES);
        if (STATISTICS) {
            r.argmax_a = (x.a > r.peak.a) ? vi{} + int32_t(j) : r.argmax_a;
            r.argmax_b = (x.b > r.peak.b) ? vi{} + int32_t(j) : r.argmax_b;
        }
        r.peak = larger(x, r.peak);
    }
    // larger() passes over NaN; a diverging run must show it.
}

// exp of the scores in place, o = Σ α v, and the rows' normalisers.
template <bool STATISTICS>
void Block<STATISTICS>::normalise() {
    const int64_t dv = round_up(n.values, 4);
    Pair total = Pair::splat2(0), weighted = Pair::splat2(0), zero = Pair::splat2(0);
    for (int64_t start = 0; start < keys; start += TILE) {
        const int64_t tile = std::min(TILE, keys - start);
        float* e = m.scores.data + start * QUERIES;
        Pair part = zero, part_weighted = zero;
        for (int64_t j = 0; j < tile; ++j) {
            Pair x = Pair::of(e + j * QUERIES) - r.peak, w = exp2_pair(x);
            // e^−∞ · −∞ would be NaN: what is masked is far below any score that counts.
            x = larger(x, Pair::splat2(-1e4f));
            part = part + w, part_weighted = part_weighted + w * x;
            w.to(e + j * QUERIES);
        }
        total = total + part, weighted = weighted + part_weighted;
        products<2>(dv, s.v + start * n.wide_values(), 1, n.wide_values(), e, QUERIES, tile, m.o.data, QUERIES, start > 0);
    }
    r.inverse = Pair::splat2(1) / total;
    Pair log_total = log_pair(total);
    r.lse = r.peak * Pair::splat2(LN2) + log_total;
    r.entropy = log_total - weighted * r.inverse * Pair::splat2(LN2);
    for (int64_t i = 0; i < LANES; ++i) {  // padding takes no part in anything
        if (i >= count) r.inverse.a[i] = 0;
        if (i + LANES >= count) r.inverse.b[i] = 0;
    }
    for (int64_t d = 0; d < n.values; ++d) (Pair::of(m.o.data + d * QUERIES) * r.inverse).to(m.o.data + d * QUERIES);
}

template <bool STATISTICS>
void Block<STATISTICS>::read_targets() {
    std::fill(m.y.data, m.y.data + n.classes * QUERIES, 0.0f);
    for (int64_t i = 0; i < count; ++i) {
        if (!n.soft) {
            m.y.data[static_cast<const int64_t*>(s.targets)[first + i] * QUERIES + i] = 1.0f;
            continue;
        }
        const float* row = static_cast<const float*>(s.targets) + (first + i) * n.classes;
        for (int64_t c = 0; c < n.classes; ++c) m.y.data[c * QUERIES + i] = row[c];
    }
}

// logits, ln p, the loss, and ∂L/∂logits in their place.
template <bool STATISTICS>
void Block<STATISTICS>::readout(Sums& sums) {
    read_targets();
    const int64_t C = n.classes;
    products<2>(C, s.w_out, 1, C, m.o.data, QUERIES, n.values, m.logits.data, QUERIES, false);
    Pair peak = Pair::of(m.logits.data), total = Pair::splat2(0), moment = total, given = total, right = total;
    std::fill(predicted, predicted + QUERIES, 0);
    for (int64_t c = 1; c < C; ++c) {
        Pair z = Pair::of(m.logits.data + c * QUERIES);
        for (int64_t i = 0; i < QUERIES; ++i)
            if (lane(z, i) > lane(peak, i)) predicted[i] = c;
        peak = larger(z, peak);
    }
    for (int64_t c = 0; c < C; ++c) {
        Pair z = Pair::of(m.logits.data + c * QUERIES) - peak, y = Pair::of(m.y.data + c * QUERIES);
        Pair w = exp2_pair(z * Pair::splat2(LOG2E));
        total = total + w, moment = moment + w * z, given = given + y, right = right + y * z;
        w.to(m.logits.data + c * QUERIES);
    }
    Pair log_total = log_pair(total), inverse = Pair::splat2(1) / total;
    nll = given * log_total - right;
    predictive_entropy = log_total - moment * inverse;
    for (int64_t i = 0; i < count; ++i) {
        sums.loss += lane(nll, i), sums.predictive_entropy += lane(predictive_entropy, i);
        int64_t best = 0;
        for (int64_t c = 1; c < C; ++c)
            if (m.y.data[c * QUERIES + i] > m.y.data[best * QUERIES + i]) best = c;
        sums.correct += predicted[i] == best;
    }
    const Pair weight = Pair::splat2(n.weight());
    for (int64_t c = 0; c < C; ++c) {
        Pair p = Pair::of(m.logits.data + c * QUERIES) * inverse, y = Pair::of(m.y.data + c * QUERIES);
        Pair g = (p * given - y) * weight;
        g.to(m.logits.data + c * QUERIES);
    }
    for (int64_t c = 0; c < C; ++c)
        for (int64_t i = count; i < QUERIES; ++i) m.logits.data[c * QUERIES + i] = 0.0f;
}

// u = W_O ∂L/∂z by columns and by rows, E_α[b] = u·o, and dw_out.
template <bool STATISTICS>
void Block<STATISTICS>::back_to_values(Pair& expected) {
    const int64_t dv = n.wide_values(), C = n.classes;
    std::fill(m.u.data + n.values * QUERIES, m.u.data + dv * QUERIES, 0.0f);
    products<2>(n.values, s.w_out, C, 1, m.logits.data, QUERIES, C, m.u.data, QUERIES, false);
    expected = Pair::splat2(0);
    for (int64_t d = 0; d < n.values; ++d) {
        Pair o = Pair::of(m.o.data + d * QUERIES);
        expected = expected + o * Pair::of(m.u.data + d * QUERIES);
        for (int64_t c = 0; c < C; ++c) {
            Pair z = Pair::of(m.logits.data + c * QUERIES);
            float* to = m.dw_out.data + (d * C + c) * LANES;
            store(to, load(to) + (o.a * z.a + o.b * z.b));
        }
    }
    for (int64_t half = 0; half < QUERIES; half += LANES)
        for (int64_t c = 0; c < dv; c += LANES)
            flip(m.u.data + c * QUERIES + half, QUERIES, m.u_rows.data + half * dv + c, dv);
}

template <bool STATISTICS>
void Block<STATISTICS>::backward(float* dq, Totals& t, const Statistics& out) {
    const int64_t d = n.wide_head(), dv = n.wide_values();
    Pair expected, zero = Pair::splat2(0), variance = zero, squares = zero;
    back_to_values(expected);
    for (int64_t start = 0; start < keys; start += TILE) {
        const int64_t tile = std::min(TILE, keys - start);
        float *alpha = m.scores.data + start * QUERIES, *g = m.compatibility.data;
        products<2>(tile, s.v + start * dv, dv, 1, m.u.data, QUERIES, n.values, g, QUERIES, false);
        for (int64_t j = 0; j < tile; ++j) {
            Pair a = Pair::of(alpha + j * QUERIES) * r.inverse, b = Pair::of(g + j * QUERIES) - expected, ds = a * b;
            a.to(alpha + j * QUERIES), ds.to(g + j * QUERIES);
            variance = variance + ds * b;
            if (STATISTICS) {
                squares = squares + ds * ds;
                float* column = t.columns.data + (start + j) * COLUMN_FLOATS * LANES;
                Pair size = magnitude(ds);
                store(column, load(column) + (a.a + a.b));
                store(column + LANES, load(column + LANES) + (ds.a + ds.b));
                store(column + 2 * LANES, load(column + 2 * LANES) + (size.a + size.b));
            }
        }
        products<2>(round_up(n.head, 4), s.k + start * d, 1, d, g, QUERIES, tile, m.dq.data, QUERIES, start > 0);
        wide_products(dv, tile, alpha, QUERIES, 1, m.u_rows.data, dv, QUERIES, t.dv.data + start * dv, dv, true);
        wide_products(d, tile, g, QUERIES, 1, s.q + first * d, d, QUERIES, t.dk.data + start * d, d, true);
    }
    std::fill(m.dq.data + n.head * QUERIES, m.dq.data + d * QUERIES, 0.0f);
    for (int64_t i = 0; i < n.head * QUERIES; ++i) m.dq.data[i] *= s.scale;
    for (int64_t half = 0; half < QUERIES; half += LANES)
        for (int64_t c = 0; c < d; c += LANES)
            flip(m.dq.data + c * QUERIES + half, QUERIES, dq + (first + half) * d + c, d);
    for (int64_t i = 0; i < count; ++i) t.sums.variance += lane(variance, i);
    if (STATISTICS) write(out, expected, variance, squares);
}

template <bool STATISTICS>
void Block<STATISTICS>::write(const Statistics& out, Pair expected, Pair variance, Pair squares) const {
    const Pair rows[ROW_FLOATS] = {r.lse, r.entropy, expected, variance, squares, r.inverse, nll, predictive_entropy};
    for (int64_t i = 0; i < count; ++i) {
        for (int64_t a = 0; a < ROW_FLOATS; ++a) out.rows[a * n.length + first + i] = lane(rows[a], i);
        out.indices[first + i] = i < LANES ? r.argmax_a[i] : r.argmax_b[i - LANES];
        out.indices[n.length + first + i] = predicted[i];
    }
}

// One part of the blocks of one sequence: the p-th, and so on every `parts` blocks, there and back for equal work.
template <bool STATISTICS>
void run_part(const Sizes& n, const Sequence& s, int64_t part, float* dq, Totals& t, const Statistics& out, Scratch& m) {
    FlushDenormals flush;
    t.clear();
    m.dw_out.clear(n.values * n.classes * LANES);
    const int64_t parts = n.parts();
    for (int64_t round = 0; round * parts < n.blocks(); ++round) {
        const int64_t index = round * parts + (round % 2 ? parts - 1 - part : part);
        if (index >= n.blocks()) continue;
        Block<STATISTICS> block(n, s, m, index);
        block.forward(t.sums);
        if (dq) block.backward(dq, t, out);
    }
    for (int64_t i = 0; i < n.values * n.classes; ++i)
        for (int64_t l = 0; l < LANES; ++l) t.dw_out.data[i] += m.dw_out.data[i * LANES + l];
}

void run_part(const Sizes& n, const Sequence& s, int64_t part, float* dq, Totals& t, const Statistics& out, Scratch& m) {
    if (out.rows) run_part<true>(n, s, part, dq, t, out, m);
    else run_part<false>(n, s, part, dq, t, out, m);
}

// rows (N, d) into rows (padded, pitch), zero beyond, and back.
void pack(const float* from, int64_t rows, int64_t d, float* to, int64_t padded, int64_t pitch) {
    std::fill(to, to + padded * pitch, 0.0f);
    for (int64_t i = 0; i < rows; ++i) std::copy(from + i * d, from + i * d + d, to + i * pitch);
}

void unpack(const float* from, int64_t rows, int64_t d, int64_t pitch, float factor, float* to) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t c = 0; c < d; ++c) to[i * d + c] = from[i * pitch + c] * factor;
}

}  // namespace
