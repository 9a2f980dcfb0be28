// What the two passes share: the problem as Python hands it over, and rows of heads in and out of float32 scratch.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "matmul.h"

struct bfloat {
    uint16_t raw;
};
using half = _Float16;

// A tensor (B, heads, N, width): strides in elements, 0 where expanded. A plane (B, H, N) of float32 likewise.
struct Tensor4 {
    void* data;
    int64_t batch, head, row, column;
};
struct Plane {
    float* data;
    int64_t batch, head, row;
};

// Mirrors LAYOUT in native.py, field by field. Absent tensors are null. Statistics are contiguous.
struct Problem {
    int64_t type, batch, heads, groups, queries, keys, width, value_width, causal, statistics, threads;
    double scale;
    const int32_t *lengths, *query_lengths;
    Tensor4 q, k, v, o, u, dq, dk, dv;
    Plane lse, dlse;
    float *entropy, *max_weight;
    int32_t* argmax;
    float *expected, *variance, *score_norm2;
    float *responsibility, *routing, *absolute_routing, *value_norm;

    int64_t group_size() const { return heads / groups; }
    int64_t live_queries(int64_t b) const {
        return query_lengths ? std::clamp<int64_t>(query_lengths[b], 0, queries) : queries;
    }
    // The key head after (b, g), wrapping round at the end.
    int64_t next_batch(int64_t b, int64_t g) const { return g + 1 < groups ? b : (b + 1) % batch; }
    int64_t next_group(int64_t g) const { return (g + 1) % groups; }
    // Keys that some live row can see.
    int64_t live_keys(int64_t b) const {
        const int64_t live = lengths ? std::clamp<int64_t>(lengths[b], 0, keys) : keys;
        return causal ? std::min(live, live_queries(b)) : (live_queries(b) ? live : 0);
    }
};

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
inline int64_t vectors_of(int64_t n) { return (n + LANES - 1) / LANES; }
// Row stride of a (rows × keys) scratch; the odd vector keeps rows out of the same cache sets.
inline int64_t key_stride(int64_t keys) {
    const int64_t stride = round_up(std::max<int64_t>(keys, 1), PANEL);
    return stride % 256 == 0 ? stride + LANES : stride;
}

inline vfloat widen(const float* p) { return load(p); }
inline vfloat widen(const bfloat* p) {
    typedef uint16_t vshort __attribute__((vector_size(2 * LANES)));
    typedef uint32_t vlong __attribute__((vector_size(4 * LANES)));
    vshort raw;
    std::memcpy(&raw, p, sizeof raw);
    const vlong shifted = __builtin_convertvector(raw, vlong) << 16;
    vfloat x;
    std::memcpy(&x, &shifted, sizeof x);
    return x;
}
inline vfloat widen(const half* p) {
    float x[LANES];
    for (int i = 0; i < LANES; i++) x[i] = float(p[i]);
    return load(x);
}

inline void narrow(vfloat x, float* p) { store(p, x); }
inline void narrow(vfloat x, bfloat* p) {
    typedef uint16_t vshort __attribute__((vector_size(2 * LANES)));
    typedef uint32_t vlong __attribute__((vector_size(4 * LANES)));
    vlong raw;
    std::memcpy(&raw, &x, sizeof raw);
    const vlong rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16;  // to nearest, ties to even
    const vlong size = raw & 0x7fffffffu;
    const vshort out = __builtin_convertvector(size > 0x7f800000u ? (raw >> 16) | 0x40u : rounded, vshort);
    std::memcpy(p, &out, sizeof out);
}
inline void narrow(vfloat x, half* p) {
    for (int i = 0; i < LANES; i++) p[i] = half(x[i]);
}

template <class T>
inline T* at(const Tensor4& t, int64_t b, int64_t h) {
    return static_cast<T*>(t.data) + b * t.batch + h * t.head;
}

// Rows of float32 in memory, in a tensor itself or in scratch. A row ends in a whole vector.
struct Rows {
    float* data;
    int64_t stride;
    float* operator[](int64_t i) const { return data + i * stride; }
};

// Whether the kernels can read or write the tensor in place: float32, rows of whole vectors.
template <class T>
inline bool in_place(const Tensor4& t, int64_t width) {
    return std::is_same_v<T, float> && t.column == 1 && width % LANES == 0;
}

template <class T>
inline void read_row(const T* from, int64_t step, int64_t width, float* to) {
    int64_t i = 0;
    if (step == 1)
        for (; i + LANES <= width; i += LANES) store(to + i, widen(from + i));
    for (; i < width; i += LANES) {
        T rest[LANES] = {};
        for (int64_t j = 0; j < std::min<int64_t>(LANES, width - i); j++) rest[j] = from[(i + j) * step];
        store(to + i, widen(rest));
    }
}

template <class T>
inline void write_row(const float* from, int64_t width, T* to, int64_t step) {
    int64_t i = 0;
    if (step == 1)
        for (; i + LANES <= width; i += LANES) narrow(load(from + i), to + i);
    for (; i < width; i += LANES) {
        T rest[LANES];
        narrow(load(from + i), rest);
        for (int64_t j = 0; j < std::min<int64_t>(LANES, width - i); j++) to[(i + j) * step] = rest[j];
    }
}

template <class T>
inline void write_zeros(const Tensor4& t, int64_t b, int64_t h, int64_t first, int64_t last, int64_t width) {
    T* to = at<T>(t, b, h);
    for (int64_t i = first; i < last; i++)
        for (int64_t d = 0; d < width; d++) to[i * t.row + d * t.column] = T{};
}

// Rows [first, first + count) of one head: where they lie, or a copy in `scratch`, zero up to a whole vector.
template <class T>
inline Rows read_rows(const Tensor4& t, int64_t b, int64_t h, int64_t first, int64_t count, int64_t width,
                      float* scratch) {
    T* from = at<T>(t, b, h) + first * t.row;
    if constexpr (std::is_same_v<T, float>)
        if (in_place<T>(t, width)) return {from, t.row};
    const Rows rows{scratch, round_up(width, LANES)};
    for (int64_t i = 0; i < count; i++) read_row(from + i * t.row, t.column, width, rows[i]);
    return rows;
}

// Where to leave rows of one head for `hand_over`: in the tensor itself, or in `scratch`.
template <class T>
inline Rows output_rows(const Tensor4& t, int64_t b, int64_t h, int64_t first, int64_t width, float* scratch) {
    if constexpr (std::is_same_v<T, float>)
        if (in_place<T>(t, width)) return {at<T>(t, b, h) + first * t.row, t.row};
    return {scratch, round_up(width, LANES)};
}

// Brings the rows to the tensor unless they are there already. False where one of them is not finite.
template <class T>
inline bool hand_over(const Rows& rows, const Tensor4& t, int64_t b, int64_t h, int64_t first, int64_t count,
                      int64_t width) {
    T* to = at<T>(t, b, h) + first * t.row;
    const bool copy = !in_place<T>(t, width);
    vint broken{};
    for (int64_t i = 0; i < count; i++) {
        for (int64_t d = 0; d < width; d += LANES) broken |= not_finite(load(rows[i] + d));
        if (copy) write_row(rows[i], width, to + i * t.row, t.column);
    }
    return !any(broken);
}

// Asks for rows [first, first + count) of one head ahead of their use: a head of this field's sizes is too short for
// the hardware to see the stream coming.
template <class T, int WRITE>
inline void prefetch_rows(const Tensor4& t, int64_t b, int64_t h, int64_t first, int64_t count, int64_t width) {
    if (t.column != 1) return;
    const T* row = at<T>(t, b, h) + first * t.row;
    for (; count > 0; count--, row += t.row)
        for (int64_t d = 0; d < width; d += 64 / int64_t(sizeof(T))) __builtin_prefetch(row + d, WRITE, 2);
}

// `factor` times the n rows, transposed into panels of PANEL keys: panel p, then column d, then key. The lanes past
// the last key repeat it; nobody uses them. The squares of what each row has become add up to `norms2`.
template <bool NORMS = false>
inline void to_panels(const Rows& rows, int64_t n, int64_t width, float factor, float* panels,
                      float* norms2 = nullptr) {
    for (int64_t j = 0; j < n; j += LANES) {
        vfloat squares[4] = {};  // four sums, so that none waits for the last
        for (int64_t d = 0; d < width; d += LANES) {
            vfloat block[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) block[i] = load(rows[std::min(j + i, n - 1)] + d) * factor;
            transpose(block);
            if (NORMS)
#pragma GCC unroll 16
                for (int i = 0; i < LANES; i++) squares[i % 4] += block[i] * block[i];
            float* to = panels + j / PANEL * PANEL * width + d * PANEL + j % PANEL;
            const int64_t columns = std::min<int64_t>(LANES, width - d);
            if (columns == LANES) {
#pragma GCC unroll 16
                for (int i = 0; i < LANES; i++) store(to + i * PANEL, block[i]);
            } else {
                for (int64_t i = 0; i < columns; i++) store(to + i * PANEL, block[i]);
            }
        }
        if (NORMS) store(norms2 + j, (squares[0] + squares[1]) + (squares[2] + squares[3]));
    }
}

// Scratch of one thread, cut into pieces; linear in the number of keys.
class Scratch {
   public:
    explicit Scratch(int64_t floats)
        : base_(static_cast<float*>(std::aligned_alloc(64, round_up(4 * floats, 64)))), next_(base_) {
        // Lanes past the end of a row are computed with and thrown away: they must not hold slow denormals or NaN.
        if (base_) std::fill(base_, base_ + floats, 0.0f);
    }
    ~Scratch() { std::free(base_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    explicit operator bool() const { return base_ != nullptr; }
    float* take(int64_t floats) {
        float* piece = next_;
        next_ += round_up(floats, 16);
        return piece;
    }

   private:
    float *base_, *next_;
};
