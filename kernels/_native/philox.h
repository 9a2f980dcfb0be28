// Philox4x32-10, sixteen counters at once, and normals from its words: the same bits as kernels/philox/reference.py.
// Sources that draw normals are built with `// build: exact`.
// Salmon, Moraes, Dror and Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3", section 3.3 and table 2.
#pragma once
#include "packs.h"

constexpr int ROWS = 16;  // sequences side by side in integer arrays, and counters of one call

// The sequences of a batch, seed by seed: row r is sequence first + r % size of seed r / size.
struct Draw {
    const int64_t* seeds;
    int64_t seed_count, size, first, step, stream;
    int64_t rows() const { return seed_count * size; }
};

typedef uint32_t U __attribute__((vector_size(64)));
// Both halves of the 64-bit products x·m.
inline void wide_product(U x, uint32_t m, U& high, U& low) {
#if defined(__AVX512F__)
    const __m512i factor = _mm512_set1_epi32(int32_t(m)), even = _mm512_mul_epu32((__m512i)x, factor);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)x, 32), factor);
    high = (U)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    low = (U)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
#else
    for (int i = 0; i < ROWS; i++) {
        const uint64_t product = uint64_t(x[i]) * m;
        high[i] = uint32_t(product >> 32), low[i] = uint32_t(product);
    }
#endif
}

// out[w][lane]: the four words of counter (c0, c1, step, stream) under key (k0, k1) on every lane.
NOINLINE void philox(const uint32_t* c0, const uint32_t* c1, uint32_t step, uint32_t stream, const uint32_t* k0,
                   const uint32_t* k1, uint32_t (*out)[ROWS]) {
    U a, b, c = step - U{}, d = stream - U{}, k, l;
    std::memcpy(&a, c0, sizeof a);
    std::memcpy(&b, c1, sizeof b);
    std::memcpy(&k, k0, sizeof k);
    std::memcpy(&l, k1, sizeof l);
    for (int round = 0; round < 10; round++) {
        U h0, l0, h1, l1;
        wide_product(a, 0xD2511F53u, h0, l0);
        wide_product(c, 0xCD9E8D57u, h1, l1);
        a = h1 ^ b ^ k, b = l1, c = h0 ^ d ^ l, d = l0;
        k += 0x9E3779B9u, l += 0xBB67AE85u;
    }
    std::memcpy(out[0], &a, sizeof a), std::memcpy(out[1], &b, sizeof b);
    std::memcpy(out[2], &c, sizeof c), std::memcpy(out[3], &d, sizeof d);
}

// to[w][lane] for w < count rounded up to 4: the words of rows row … row + 15 (those past the last repeat it).
NOINLINE void words_by_lane(const Draw& draw, int64_t row, int64_t count, uint32_t (*to)[ROWS]) {
    uint32_t block[ROWS], sequence[ROWS], k0[ROWS], k1[ROWS];
    for (int i = 0; i < ROWS; i++) {
        const int64_t r = row + i < draw.rows() ? row + i : draw.rows() - 1;
        const uint64_t seed = uint64_t(draw.seeds[r / draw.size]);
        sequence[i] = uint32_t(draw.first + r % draw.size);
        k0[i] = uint32_t(seed), k1[i] = uint32_t(seed >> 32);
    }
    for (int64_t w = 0; w < count; w += 4) {
        for (int i = 0; i < ROWS; i++) block[i] = uint32_t(w / 4);
        philox(block, sequence, uint32_t(draw.step), uint32_t(draw.stream), k0, k1, to + w);
    }
}

// Words 4·block … of one row, one after another: 64 at a time, so `to` must have room up to a multiple of 64.
NOINLINE void words_of_row(const Draw& draw, int64_t row, int64_t block, int64_t count, uint32_t* to) {
    uint32_t c0[ROWS], sequence[ROWS], k0[ROWS], k1[ROWS], words[4][ROWS];
    const uint64_t seed = uint64_t(draw.seeds[row / draw.size]);
    for (int i = 0; i < ROWS; i++) {
        sequence[i] = uint32_t(draw.first + row % draw.size);
        k0[i] = uint32_t(seed), k1[i] = uint32_t(seed >> 32);
    }
    for (int64_t w = 0; w < count; w += 4 * ROWS) {
        for (int i = 0; i < ROWS; i++) c0[i] = uint32_t(block + w / 4 + i);
        philox(c0, sequence, uint32_t(draw.step), uint32_t(draw.stream), k0, k1, words);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < 4; j++) to[w + 4 * i + j] = words[j][i];
    }
}

// (w·n) >> 32: integers in [0, n).
inline uint32_t below(uint32_t word, uint32_t n) { return uint32_t(uint64_t(word) * n >> 32); }

// Σ_k coefficients[k]·z^k from the highest power down, each product and sum rounded: reference._horner.
template <int N>
inline Pack<double> rounded_horner(Pack<double> z, const double (&coefficients)[N]) {
    Pack<double> total = splat(coefficients[N - 1]);
#pragma GCC unroll 12
    for (int i = N - 2; i >= 0; i--) total = total * z + coefficients[i];
    return total;
}

// Standard normals from pairs of words (u, t): √(−2 ln u)·(cos 2πt, sin 2πt), bit for bit as reference.normal.
inline void normals(Mask<double> u_words, Mask<double> t_words, Pack<double>& first, Pack<double>& second) {
    static constexpr double LOG[] = {2.0,      2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9, 2.0 / 11,
                                     2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
    static constexpr double COS[] = {1.0,           -1.0 / 2,         1.0 / 24,           -1.0 / 720,           1.0 / 40320,
                                     -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};
    static constexpr double SIN[] = {1.0,            -1.0 / 6,           1.0 / 120,
                                     -1.0 / 5040,     1.0 / 362880,       -1.0 / 39916800,
                                     1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
    const auto uniform = [](Mask<double> w) {
        return (__builtin_convertvector(w >> 9, Pack<double>) + 0.5) * 0x1p-23;
    };
    const Pack<double> u = uniform(u_words), t = uniform(t_words);
    Mask<double> e;
    const Pack<double> m = significand<double>(u, e), s = (m - 1.0) / (m + 1.0);
    const Pack<double> series = rounded_horner(s * s, LOG);
    const Pack<double> log_u = __builtin_convertvector(e, Pack<double>) * 0.6931471805599453 + s * series;
    Pack<double> radius = -2.0 * log_u;
    for (int i = 0; i < LANES<double>; i++) radius[i] = std::sqrt(radius[i]);
    const Mask<double> quarter = __builtin_convertvector(4.0 * t + 0.5, Mask<double>), turn = quarter & 3;
    const Pack<double> angle = 6.283185307179586 * (t - 0.25 * __builtin_convertvector(quarter, Pack<double>));
    const Pack<double> z = angle * angle, c = rounded_horner(z, COS), n = angle * rounded_horner(z, SIN);
    const Mask<double> swap = (turn & 1) == 1;
    const Pack<double> cosine = swap ? n : c, sine = swap ? c : n;
    first = radius * (((turn == 1) | (turn == 2)) ? -cosine : cosine);
    second = radius * (turn >= 2 ? -sine : sine);
}

// count (even) words to as many normals; both arrays with room up to a multiple of 16.
NOINLINE void normals_of(const uint32_t* words, int64_t count, double* to) {
    for (int64_t w = 0; w < count; w += 2 * LANES<double>) {
        Mask<double> u, t;
        Pack<double> first, second;
        for (int i = 0; i < LANES<double>; i++) u[i] = words[w + 2 * i], t[i] = words[w + 2 * i + 1];
        normals(u, t, first, second);
        for (int i = 0; i < LANES<double>; i++) to[w + 2 * i] = first[i], to[w + 2 * i + 1] = second[i];
    }
}

// Columns of integers, one row per lane, to int64 rows of a result.
NOINLINE void store_integers(int64_t* to, int64_t stride, int64_t rows, int64_t columns,
                                                     const int32_t (*from)[ROWS]) {
    static_assert(LANES<float> == ROWS);
    for (int64_t c = 0; c < columns; c += ROWS) {
        Pack<float> block[ROWS];
        const int64_t width = columns - c < ROWS ? columns - c : ROWS;
        for (int i = 0; i < ROWS; i++) block[i] = i < width ? load(reinterpret_cast<const float*>(from[c + i])) : Pack<float>{};
        transpose<float>(block);
        for (int i = 0; i < ROWS && i < rows; i++) {
            const Mask<float> row = bits<Mask<float>>(block[i]);
            int64_t* out = to + i * stride + c;
            if (width == ROWS) {
                for (int j = 0; j < ROWS; j++) out[j] = row[j];
            } else {
                for (int j = 0; j < width; j++) out[j] = row[j];
            }
        }
    }
}
