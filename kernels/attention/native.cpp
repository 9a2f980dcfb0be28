// Attention forward and backward on the CPU: float32 inside, one thread per (sequence, key head), heads independent.
//
//   forward   S = scale Q Kᵀ,  P = exp(S − max),  o = P V / Σ P,  lse = max + log Σ P
//   backward  P = exp(S − lse) / Σ exp(S − lse),  b = U Vᵀ,  E = Σ P b,  dS = P (b − E + dlse),
//             dq = scale dS K,  dk = scale dSᵀ Q,  dv = Pᵀ U
//
// Eight query rows at a time against all the keys they may see: keys run along the lanes for S and b (K and V are
// transposed once per head), columns of the head for the other products. Whole rows at hand, no running maximum is
// needed, and the backward takes E from P and b themselves, so that Σ_j dS_ij = 0 holds to rounding whatever o was
// rounded to. Rescaling P to sum to one undoes the rounding of a float32 lse. Scratch is linear in N.
// Formulas: Dao et al. (2022), appendix B, and the gradient dynamics of attention cited in reference.py.
#include "exact.h"

namespace {

// Hides the scores of one row from `limit` to the end of the vectors; lane by lane, the maximum of the others.
inline vfloat row_maximum(float* s, int64_t limit, int64_t vectors) {
    const vfloat hidden = splat(-std::numeric_limits<float>::infinity());
    const int64_t full = limit / LANES;
    vfloat top = hidden;
    for (int64_t v = 0; v < full; v++) top = larger(load(s + v * LANES), top);
    for (int64_t v = full; v < vectors; v++) {
        const vfloat x = lane_numbers() + int32_t(v * LANES) < int32_t(limit) ? load(s + v * LANES) : hidden;
        store(s + v * LANES, x);
        top = larger(x, top);
    }
    return top;
}

// Scores of a block to unnormalised weights exp(s − top), 0 where hidden.
template <bool STATISTICS>
inline void exponentiate(float* s, int64_t stride, int64_t vectors, int64_t count, RowSummaries& rows) {
    vfloat total[ROWS] = {}, rest[ROWS] = {}, moment[ROWS] = {}, argmax[ROWS] = {};
    for (int64_t r = 0; r < count; r++, s += stride) {
        vfloat sum_all{}, sum_rest{}, sum_moment{}, first = splat(1e9f);
        for (int64_t v = vectors - 1; v >= 0; v--) {
            vfloat x = load(s + v * LANES) - rows.top[r];
            x = x < -87.0f ? splat(-87.0f) : x;
            const vfloat e = exponential(x);
            store(s + v * LANES, e);
            sum_all += e;
            if (STATISTICS) {
                const vfloat key = __builtin_convertvector(lane_numbers() + int32_t(v * LANES), vfloat);
                first = x == 0.0f ? key : first;
                sum_rest += x == 0.0f ? vfloat{} : e;
                sum_moment += e * x;
            }
        }
        total[r] = sum_all, rest[r] = sum_rest, moment[r] = sum_moment, argmax[r] = first;
    }
    reduce_rows<plus>(total, rows.rest);
    if (!STATISTICS) {
        for (int r = 0; r < ROWS; r++) rows.rest[r] -= 1.0f;
        return;
    }
    // The largest term, exactly 1, stays out of the sum: what is left of a near-one-hot row keeps its digits. Terms
    // that tie with it are whole, and counted as such: -fassociative-math cannot undo a conversion to int.
    float small[ROWS];
    reduce_rows<plus>(rest, small);
    for (int r = 0; r < ROWS; r++) rows.rest[r] = small[r] + float(int32_t(rows.rest[r] - small[r] + 0.5f) - 1);
    reduce_rows<plus>(moment, rows.moment);
    reduce_rows<smaller>(argmax, rows.argmax);
}

template <class T>
class Forward {
   public:
    explicit Forward(const Problem& problem)
        : p(problem),
          wide(round_up(p.width, LANES)),
          value_wide(round_up(p.value_width, LANES)),
          stride(key_stride(p.keys)),
          padded(round_up(p.keys, PANEL)),
          bound(largest_float_score<T>(p.width)),
          scratch(padded * (p.width + wide + value_wide + 1) + ROWS * (wide + value_wide + stride) + 16 * 8 +
                  Exact::scratch_size(padded, p.width, stride)),
          exact(scratch, padded, p.width, stride) {
        k_rows = scratch.take(padded * wide);
        k = scratch.take(padded * p.width);
        k_norms2 = scratch.take(padded);
        v_rows = scratch.take(padded * value_wide);
        q_rows = scratch.take(ROWS * wide);
        o_rows = scratch.take(ROWS * value_wide);
        s = scratch.take(ROWS * stride);
    }
    bool ready() const { return bool(scratch); }

    void group(int64_t b, int64_t g) {
        const int64_t keys = p.live_keys(b), queries = keys ? p.live_queries(b) : 0;
        const Rows key_rows = read_rows<T>(p.k, b, g, 0, keys, p.width, k_rows);
        if (keys) to_panels<true>(key_rows, keys, p.width, float(p.scale), k, k_norms2);
        exact.use(key_rows, keys, p.width, p.scale);
        const Rows v = read_rows<T>(p.v, b, g, 0, keys, p.value_width, v_rows);
        for (int64_t h = g * p.group_size(); h < (g + 1) * p.group_size(); h++) {
            for (int64_t i = 0; i < queries; i += ROWS) {
                const int64_t count = std::min<int64_t>(ROWS, queries - i);
                if (block(b, h, i, count, keys, v)) continue;
                // Something was not finite, and 0·NaN reaches rows that may not see it: once more, row by row, each
                // over exactly its keys.
                for (int64_t r = i; r < i + count; r++) block(b, h, r, 1, keys, v);
            }
            dead_rows(b, h, queries);
        }
    }

   private:
    bool block(int64_t b, int64_t h, int64_t first, int64_t count, int64_t keys, const Rows& v) {
        const int64_t seen = p.causal ? std::min(keys, first + count) : keys, vectors = vectors_of(seen);
        prefetch(b, h, first, count);
        const Rows q = read_rows<T>(p.q, b, h, first, count, p.width, q_rows);
        RowSummaries rows{};
        const auto limit = [&](int64_t r) { return p.causal ? std::min(keys, first + r + 1) : keys; };
        const bool large = scores_may_exceed(bound, q, count, p.width, k_norms2, seen);
        if (large)
            p.statistics ? exact.weights<true>(q, count, vectors, limit, s, rows)
                         : exact.weights<false>(q, count, vectors, limit, s, rows);
        else
            weights(q, count, vectors, limit, rows);
        float factor[ROWS];
        for (int r = 0; r < ROWS; r++) factor[r] = 1.0f / (1.0f + rows.rest[r]);
        const Rows o = output_rows<T>(p.o, b, h, first, p.value_width, o_rows);
        multiply<false, false>({seen, s, stride, v.data, v.stride, PANEL, o.data, o.stride, factor}, count,
                               value_wide / LANES);
        for (int64_t r = 0; r < ROWS; r += LANES) store(rows.rest + r, log1p(load(rows.rest + r)));
        for (int64_t r = 0; r < count; r++) finish(b, h, first + r, rows, r, factor[r]);
        return hand_over<T>(o, p.o, b, h, first, count, p.value_width);
    }

    // Unnormalised weights of ordinary scores.
    template <class Limit>
    void weights(const Rows& q, int64_t count, int64_t vectors, Limit limit, RowSummaries& rows) {
        multiply<false, false>({p.width, q.data, q.stride, k, PANEL, PANEL * p.width, s, stride}, count, vectors);
        vfloat top[ROWS] = {};
        for (int64_t r = 0; r < count; r++) top[r] = row_maximum(s + r * stride, limit(r), vectors);
        reduce_rows<larger>(top, rows.top);
        if (p.statistics)
            exponentiate<true>(s, stride, vectors, count, rows);
        else
            exponentiate<false>(s, stride, vectors, count, rows);
    }

    void prefetch(int64_t b, int64_t h, int64_t first, int64_t count) {
        const int64_t g = h / p.group_size(), next = p.next_batch(b, g), next_g = p.next_group(g);
        prefetch_rows<T, 1>(p.o, b, h, first, count, p.value_width);
        prefetch_rows<T, 0>(p.q, next, next_g * p.group_size(), first, count, p.width);
        count = std::min(count, p.keys - first);
        prefetch_rows<T, 0>(p.k, next, next_g, first, count, p.width);
        prefetch_rows<T, 0>(p.v, next, next_g, first, count, p.value_width);
    }

    // rest has become log(1 + rest).
    void finish(int64_t b, int64_t h, int64_t i, const RowSummaries& rows, int64_t r, float factor) {
        p.lse.data[b * p.lse.batch + h * p.lse.head + i * p.lse.row] = rows.top[r] + rows.rest[r];
        if (!p.statistics) return;
        const int64_t n = (b * p.heads + h) * p.queries + i;
        p.entropy[n] = rows.rest[r] - rows.moment[r] * factor;
        p.max_weight[n] = factor;
        p.argmax[n] = rows.argmax[r] < 1e9f ? int32_t(rows.argmax[r]) : 0;
    }

    void dead_rows(int64_t b, int64_t h, int64_t first) {
        write_zeros<T>(p.o, b, h, first, p.queries, p.value_width);
        for (int64_t i = first; i < p.queries; i++) {
            p.lse.data[b * p.lse.batch + h * p.lse.head + i * p.lse.row] = -std::numeric_limits<float>::infinity();
            if (!p.statistics) continue;
            const int64_t n = (b * p.heads + h) * p.queries + i;
            p.entropy[n] = p.max_weight[n] = 0.0f;
            p.argmax[n] = -1;
        }
    }

    const Problem& p;
    const int64_t wide, value_wide, stride, padded;
    const float bound;
    Scratch scratch;
    Exact exact;
    float *k_rows, *k, *k_norms2, *v_rows, *q_rows, *o_rows, *s;
};

}  // namespace
#include "backward.h"
namespace {

template <class Pass>
int run(const Problem& p) {
    const int64_t items = p.batch * p.groups;
    int failed = 0;
#pragma omp parallel num_threads(int(p.threads)) reduction(| : failed) if (p.threads > 1 && items > 1)
    {
        Pass pass(p);
        failed = !pass.ready();
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; item++)
            if (!failed) pass.group(item / p.groups, item % p.groups);
    }
    return failed;
}

template <template <class> class Pass>
int dispatch(const Problem& p) {
    switch (p.type) {
        case 0:
            return run<Pass<float>>(p);
        case 1:
            return run<Pass<bfloat>>(p);
        default:
            return run<Pass<half>>(p);
    }
}

}  // namespace

// 0, or 1 where the scratch memory could not be had.
EXPORT int attention_forward(const Problem* problem) { return dispatch<Forward>(*problem); }
EXPORT int attention_backward(const Problem* problem) { return dispatch<Backward>(*problem); }
