// The backward pass of native.cpp: equations there.
#pragma once
#include "exact.h"

namespace {

// Where the block's rows lie in scratch, and what pass two needs to know of each.
struct RowBlock {
    float *p, *b;  // weights and compatibilities, later weights and score gradients; row stride `stride`
    int64_t stride, vectors;
    int64_t limit[ROWS];
    float factor[ROWS], expected[ROWS], centre[ROWS], extra[ROWS];  // compatibilities are less `centre` E
    float variance[ROWS], score_norm2[ROWS];
    float *responsibility, *routing, *absolute_routing;
    float scale;
};

constexpr float NEARLY_ONE_HOT = 0.875f;

// For rows whose largest weight is nearly one, that of key t: E − b_t = Σ_j P_j (b_j − b_t), whose terms are small, where
// Σ_j P_j b_j − b_t would leave rounding errors only. So b becomes b − b_t.
COLD void recentre(RowBlock& block, int64_t row, float peak) {
    const float *p = block.p + row * block.stride, factor = block.factor[row];
    float* b = block.b + row * block.stride;
    const int64_t limit = block.limit[row];
    const float pivot = b[std::find(p, p + limit, peak) - p];
    vfloat moment{};
    for (int64_t v = 0; v < vectors_of(limit); v++) {
        const vint seen = lane_numbers() + int32_t(v * LANES) < int32_t(limit);
        const vfloat x = seen ? load(b + v * LANES) - pivot : vfloat{};
        store(b + v * LANES, x);
        moment += x * load(p + v * LANES);
    }
    block.centre[row] = sum(moment) * factor;
    block.expected[row] = pivot + block.centre[row];
}

// Scores and compatibilities to exp(s − lse) and b, both 0 from each row's limit on; and 1 / Σ, E.
inline void weigh(RowBlock& block, int64_t count, const float* lse, int64_t lse_step) {
    vfloat totals[ROWS] = {}, moments[ROWS] = {}, peaks[ROWS] = {};
    for (int64_t r = 0; r < count; r++) {
        float *p = block.p + r * block.stride, *b = block.b + r * block.stride;
        const float shift = lse[r * lse_step];
        const int64_t full = block.limit[r] / LANES;
        vfloat total{}, moment{}, peak{};
        for (int64_t v = 0; v < full; v++) {
            const vfloat e = exponential(load(p + v * LANES) - shift);
            store(p + v * LANES, e);
            total += e;
            moment += e * load(b + v * LANES);
            peak = larger(e, peak);
        }
        for (int64_t v = full; v < block.vectors; v++) {
            const vint seen = lane_numbers() + int32_t(v * LANES) < int32_t(block.limit[r]);
            const vfloat e = exponential(seen ? load(p + v * LANES) - shift : splat(-100.0f));
            const vfloat x = seen ? load(b + v * LANES) : vfloat{};
            store(p + v * LANES, e);
            store(b + v * LANES, x);
            total += e;
            moment += e * x;
            peak = larger(e, peak);
        }
        totals[r] = total, moments[r] = moment, peaks[r] = peak;
    }
    float total[ROWS], moment[ROWS], peak[ROWS];
    reduce_rows<plus>(totals, total);
    reduce_rows<plus>(moments, moment);
    vfloat largest = peaks[0];
    for (int r = 1; r < ROWS; r++) largest = larger(peaks[r], largest);
    for (int64_t r = 0; r < count; r++) {
        block.factor[r] = 1.0f / total[r];
        block.centre[r] = block.expected[r] = moment[r] * block.factor[r];
    }
    if (!any(largest > NEARLY_ONE_HOT)) return;
    reduce_rows<larger>(peaks, peak);
    for (int64_t r = 0; r < count; r++)
        if (peak[r] * block.factor[r] > NEARLY_ONE_HOT) recentre(block, r, peak[r]);
}

// The same from weights, and from compatibilities less those of each row's largest weight.
COLD void weigh_exact(RowBlock& block, int64_t count, const float* pivot) {
    for (int64_t r = 0; r < count; r++) {
        vfloat total{}, moment{};
        for (int64_t v = 0; v < block.vectors; v++) {
            const vfloat e = load(block.p + r * block.stride + v * LANES);
            total += e;
            moment += e * load(block.b + r * block.stride + v * LANES);
        }
        block.factor[r] = 1.0f / sum(total);
        block.centre[r] = sum(moment) * block.factor[r];
        block.expected[r] = pivot[r] + block.centre[r];
    }
}

// dq from score gradients dS, scaled: Σ_j dS_j k_j = Σ_j dS_j (k_j − k_t) + scale dlse k_t, since Σ_j dS_j = dlse. Large
// scores that compete are of keys that may be much alike, and the differences keep what tells them apart.
COLD void exact_dq(const RowBlock& block, int64_t count, const int64_t* largest, const Rows& k, int64_t wide,
                     const Rows& dq) {
    for (int64_t r = 0; r < count; r++) {
        const float *gradient = block.b + r * block.stride, *pivot = k[largest[r]];
        for (int64_t d = 0; d < wide; d += LANES) {
            vfloat total = load(pivot + d) * (block.extra[r] * block.scale);
            for (int64_t j = 0; j < block.limit[r]; j++)
                if (gradient[j] != 0.0f) total += gradient[j] * (load(k[j] + d) - load(pivot + d));
            store(dq[r] + d, total);
        }
    }
}

// P = factor · e and scale · dS with dS = P (b − E + extra), for R rows. MASK is for rows that are not finite: 0·NaN past the limit.
template <int R, bool STATISTICS, bool MASK>
inline void score_gradients(RowBlock& block, int64_t row) {
    vfloat variance[R] = {}, norm2[R] = {};
    for (int64_t v = 0; v < block.vectors; v++) {
        float *p = block.p + row * block.stride + v * LANES, *b = block.b + row * block.stride + v * LANES;
        vfloat mass{}, routing{}, absolute{};
#pragma GCC unroll 8
        for (int r = 0; r < R; r++, p += block.stride, b += block.stride) {
            vfloat weight = load(p) * block.factor[row + r];
            const vfloat centred = load(b) - block.centre[row + r];
            vfloat gradient = weight * (centred + block.extra[row + r]);
            if (MASK) {
                const vint seen = lane_numbers() + int32_t(v * LANES) < int32_t(block.limit[row + r]);
                weight = seen ? weight : vfloat{};
                gradient = seen ? gradient : vfloat{};
            }
            store(p, weight);
            store(b, gradient * block.scale);
            if (STATISTICS) {
                variance[r] += weight * centred * centred;
                norm2[r] += gradient * gradient;
                mass += weight;
                routing += gradient;
                absolute += gradient < 0.0f ? -gradient : gradient;
            }
        }
        if (STATISTICS) {
            store(block.responsibility + v * LANES, load(block.responsibility + v * LANES) + mass);
            store(block.routing + v * LANES, load(block.routing + v * LANES) + routing);
            store(block.absolute_routing + v * LANES, load(block.absolute_routing + v * LANES) + absolute);
        }
    }
    if constexpr (STATISTICS && R == ROWS) {
        reduce_rows<plus>(variance, block.variance);
        reduce_rows<plus>(norm2, block.score_norm2);
    } else if (STATISTICS) {
        block.variance[row] = sum(variance[0]);
        block.score_norm2[row] = sum(norm2[0]);
    }
}

template <bool STATISTICS, bool MASK>
inline void score_gradients(RowBlock& block, int64_t count) {
    if (count == ROWS) return score_gradients<ROWS, STATISTICS, MASK>(block, int64_t{0});
    for (int64_t r = 0; r < count; r++) score_gradients<1, STATISTICS, MASK>(block, r);
}

template <class T>
class Backward {
   public:
    explicit Backward(const Problem& problem)
        : p(problem),
          wide(round_up(p.width, LANES)),
          value_wide(round_up(p.value_width, LANES)),
          stride(key_stride(p.keys)),
          padded(round_up(p.keys, PANEL)),
          height(tile_height()),
          bound(largest_float_score<T>(p.width)),
          scratch(padded * (p.width + p.value_width + 2 * wide + 3 * value_wide) + ROWS * wide +
                  height * (wide + value_wide + 2 * stride) + padded + 3 * stride + 16 * 16 +
                  Exact::scratch_size(padded, std::max(p.width, p.value_width), stride)),
          exact(scratch, padded, std::max(p.width, p.value_width), stride) {
        k = scratch.take(padded * p.width);
        k_norms2 = scratch.take(padded);
        v = scratch.take(padded * p.value_width);
        k_scratch = scratch.take(padded * wide);
        v_scratch = scratch.take(padded * value_wide);
        dk_scratch = scratch.take(padded * wide);
        dv_scratch = scratch.take(padded * value_wide);
        dv_head = scratch.take(padded * value_wide);
        dq_scratch = scratch.take(ROWS * wide);
        q_scratch = scratch.take(height * wide);
        u_scratch = scratch.take(height * value_wide);
        weights = scratch.take(height * stride);
        gradients = scratch.take(height * stride);
        columns = scratch.take(3 * stride);
    }
    bool ready() const { return bool(scratch); }

    void group(int64_t b, int64_t g) {
        const int64_t keys = p.live_keys(b);
        k_rows = read_rows<T>(p.k, b, g, 0, keys, p.width, k_scratch);
        const Rows v_rows = read_rows<T>(p.v, b, g, 0, keys, p.value_width, v_scratch);
        dk = output_rows<T>(p.dk, b, g, 0, p.width, dk_scratch);
        dv = output_rows<T>(p.dv, b, g, 0, p.value_width, dv_scratch);
        if (keys) {
            to_panels<true>(k_rows, keys, p.width, float(p.scale), k, k_norms2);
            to_panels(v_rows, keys, p.value_width, 1.0f, v);
        }
        exact.use(k_rows, keys, p.width, p.scale);
        // Where something was not finite, 0·NaN reaches keys and rows that may not see it: once more, row by row and
        // key by key, each over exactly what it sees.
        if (!heads(b, g, keys, ROWS)) heads(b, g, keys, 1);
        write_zeros<T>(p.dk, b, g, keys, p.keys, p.width);
        write_zeros<T>(p.dv, b, g, keys, p.keys, p.value_width);
    }

   private:
    // The query heads of key head g, `step` rows or keys at a time. False where a gradient is not finite.
    bool heads(int64_t b, int64_t g, int64_t keys, int64_t step) {
        const int64_t queries = keys ? p.live_queries(b) : 0, size = p.group_size();
        bool finite = true;
        own_dv = p.statistics && size > 1;
        for (int64_t h = g * size; h < (g + 1) * size; h++) {
            fresh = h == g * size;
            if (p.statistics) std::fill(columns, columns + 3 * stride, 0.0f);
            for (int64_t i = 0; i < queries; i += height)
                finite &= tile(b, h, i, std::min(height, queries - i), keys, step);
            write_zeros<T>(p.dq, b, h, queries, p.queries, p.width);
            if (p.statistics) head_statistics(b, h, queries, keys);
        }
        finite &= hand_over<T>(dk, p.dk, b, g, 0, keys, p.width);
        return hand_over<T>(dv, p.dv, b, g, 0, keys, p.value_width) && finite;
    }

    // Rows of weights and score gradients kept at a time: two pieces of about 64 KiB, within the second-level cache.
    int64_t tile_height() const {
        return std::clamp<int64_t>(16384 / stride / ROWS * ROWS, 2 * ROWS, 8 * ROWS);
    }

    bool tile(int64_t b, int64_t h, int64_t first, int64_t count, int64_t keys, int64_t step) {
        q = read_rows<T>(p.q, b, h, first, count, p.width, q_scratch);
        u = read_rows<T>(p.u, b, h, first, count, p.value_width, u_scratch);
        bool finite = true;
        for (int64_t i = 0; i < count; i += step) finite &= block(b, h, first, i, std::min(step, count - i), keys);
        const Rows values = own_dv ? Rows{dv_head, value_wide} : dv;
        const int64_t seen = p.causal ? std::min(keys, first + count) : keys;
        for (int64_t j = 0; j < seen; j += step) {
            const int64_t from = p.causal ? std::max<int64_t>(j - first, 0) : 0;
            const bool touched = p.causal ? first > j : first > 0;
            const int64_t some = std::min(step, seen - j);
            accumulate(touched || !(fresh || own_dv), some, value_wide / LANES,
                       {count - from, weights + from * stride + j, stride, u[from], u.stride, PANEL, values[j],
                        values.stride});
            accumulate(touched || !fresh, some, wide / LANES,
                       {count - from, gradients + from * stride + j, stride, q[from], q.stride, PANEL, dk[j],
                        dk.stride});
        }
        return finite;
    }

    void accumulate(bool add, int64_t rows, int64_t vectors, const Product& product) {
        if (add)
            multiply<true, true>(product, rows, vectors);
        else
            multiply<true, false>(product, rows, vectors);
    }

    bool block(int64_t b, int64_t h, int64_t tile_first, int64_t offset, int64_t count, int64_t keys) {
        const int64_t first = tile_first + offset, seen = p.causal ? std::min(keys, first + count) : keys;
        prefetch(b, h, first, count);
        RowBlock rows;
        rows.p = weights + offset * stride;
        rows.b = gradients + offset * stride;
        rows.stride = stride;
        rows.vectors = vectors_of(seen);
        rows.responsibility = columns;
        rows.routing = columns + stride;
        rows.absolute_routing = columns + 2 * stride;
        rows.scale = float(p.scale);
        for (int64_t r = 0; r < count; r++) {
            const int64_t i = first + r;
            rows.limit[r] = p.causal ? std::min(keys, i + 1) : keys;
            rows.extra[r] = p.dlse.data ? p.dlse.data[b * p.dlse.batch + h * p.dlse.head + i * p.dlse.row] : 0.0f;
        }
        const Rows block_q{q[offset], q.stride}, block_u{u[offset], u.stride};
        const bool large = scores_may_exceed(bound, block_q, count, p.width, k_norms2, seen);
        int64_t largest[ROWS];
        if (large) {
            exact_weights(rows, count, block_q, block_u, largest);
        } else {
            multiply<false, false>({p.width, block_q.data, q.stride, k, PANEL, PANEL * p.width, rows.p, stride}, count,
                                   rows.vectors);
            multiply<false, false>(
                {p.value_width, block_u.data, u.stride, v, PANEL, PANEL * p.value_width, rows.b, stride}, count,
                rows.vectors);
            weigh(rows, count, p.lse.data + b * p.lse.batch + h * p.lse.head + first * p.lse.row, p.lse.row);
        }
        float check = 0;
        for (int64_t r = 0; r < count; r++) check += (rows.factor[r] + rows.expected[r] + rows.extra[r]) * 0.0f;
        if (check == 0.0f)
            p.statistics ? score_gradients<true, false>(rows, count) : score_gradients<false, false>(rows, count);
        else
            p.statistics ? score_gradients<true, true>(rows, count) : score_gradients<false, true>(rows, count);
        const Rows dq = output_rows<T>(p.dq, b, h, first, p.width, dq_scratch);
        if (large)
            exact_dq(rows, count, largest, k_rows, wide, dq);
        else
            multiply<false, false>({seen, rows.b, stride, k_rows.data, k_rows.stride, PANEL, dq.data, dq.stride}, count,
                                   wide / LANES);
        if (p.statistics) {
            const int64_t n = (b * p.heads + h) * p.queries + first;
            std::copy(rows.expected, rows.expected + count, p.expected + n);
            std::copy(rows.variance, rows.variance + count, p.variance + n);
            std::copy(rows.score_norm2, rows.score_norm2 + count, p.score_norm2 + n);
        }
        return hand_over<T>(dq, p.dq, b, h, first, count, p.width) && check == 0.0f;
    }

    // Weights, compatibilities and E of rows whose scores are large; `largest`, the key of each row's largest weight.
    COLD void exact_weights(RowBlock& rows, int64_t count, const Rows& block_q,
                                                 const Rows& block_u, int64_t* largest) {
        RowSummaries found;
        float pivot[ROWS];
        exact.weights<true>(
            block_q, count, rows.vectors, [&](int64_t r) { return rows.limit[r]; }, rows.p, found);
        for (int64_t r = 0; r < count; r++) largest[r] = found.argmax[r] < 1e9f ? int64_t(found.argmax[r]) : 0;
        exact.compatibilities(block_u, count, p.value_width, v, rows.vectors, rows.limit, largest, rows.b, pivot);
        weigh_exact(rows, count, pivot);
    }

    void prefetch(int64_t b, int64_t h, int64_t first, int64_t count) {
        const int64_t g = h / p.group_size(), next = p.next_batch(b, g), next_g = p.next_group(g);
        prefetch_rows<T, 1>(p.dq, b, h, first, count, p.width);
        prefetch_rows<T, 0>(p.q, next, next_g * p.group_size(), first, count, p.width);
        prefetch_rows<T, 0>(p.u, next, next_g * p.group_size(), first, count, p.value_width);
        count = std::min(count, p.keys - first);
        prefetch_rows<T, 0>(p.k, next, next_g, first, count, p.width);
        prefetch_rows<T, 0>(p.v, next, next_g, first, count, p.value_width);
        prefetch_rows<T, 1>(p.dk, b, g, first, count, p.width);
        prefetch_rows<T, 1>(p.dv, b, g, first, count, p.value_width);
    }

    void head_statistics(int64_t b, int64_t h, int64_t queries, int64_t keys) {
        const int64_t row = (b * p.heads + h) * p.queries, column = (b * p.heads + h) * p.keys;
        for (float* plane : {p.expected, p.variance, p.score_norm2})
            std::fill(plane + row + queries, plane + row + p.queries, 0.0f);
        float* planes[] = {p.responsibility, p.routing, p.absolute_routing};
        for (int i = 0; i < 3; i++) {
            std::copy(columns + i * stride, columns + i * stride + keys, planes[i] + column);
            std::fill(planes[i] + column + keys, planes[i] + column + p.keys, 0.0f);
        }
        const Rows values = own_dv ? Rows{dv_head, value_wide} : dv;
        for (int64_t j = 0; j < keys; j++) {
            vfloat squares{};
            for (int64_t d = 0; d < value_wide; d += LANES) {
                const vfloat x = load(values[j] + d);
                squares += x * x;
                if (own_dv) store(dv[j] + d, fresh ? x : load(dv[j] + d) + x);
            }
            p.value_norm[column + j] = std::sqrt(sum(squares));
        }
        std::fill(p.value_norm + column + keys, p.value_norm + column + p.keys, 0.0f);
    }

    const Problem& p;
    const int64_t wide, value_wide, stride, padded, height;
    const float bound;
    Scratch scratch;
    Exact exact;
    float *k, *k_norms2, *v, *k_scratch, *v_scratch, *dk_scratch, *dv_scratch, *dv_head, *dq_scratch, *q_scratch, *u_scratch;
    float *weights, *gradients, *columns;
    Rows k_rows{}, dk{}, dv{}, q{}, u{};
    bool fresh = true, own_dv = false;
};

}  // namespace
