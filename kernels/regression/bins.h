// The mass of a normal in bins, and its entropy in bits: edge by edge for any bins, and faster for narrow equal ones.
#pragma once
#include "blocks.h"

// ½ erfc(x) for x ≥ 0: relative error 3e-14, at 0; 0 where it is below the smallest number.
//   erfc x = e^(−x²) f(t)/(1 + 2x),  t = (x − 5/2)/(x + 5/2)
// with f by Chebyshev interpolation on [−1, 1]; the form is Shepherd and Laframboise's (1981).
inline Pack<double> half_erfc(Pack<double> x) {
    static constexpr double C[] = {1.26483818436686148,     -0.122356763082381968,   -0.099024539573609547,
                                   0.157629919021244807,    -0.102967056037892992,   0.0327608933205079606,
                                   0.000931892799563063076, -0.00438207897293871125, 0.00049186602854652627,
                                   0.000632128659057943948, -8.84806964111983943e-5, -0.000113540508856245735,
                                   6.27206228153371769e-6,  2.27490658222663165e-5,  2.59286649771896102e-6,
                                   -4.3073058970104437e-6,  -1.55736984655793491e-6, 6.34739971660338202e-7,
                                   5.02141704119834545e-7,  -5.12102640066322966e-8, -1.03842205375185051e-7,
                                   -1.78541054333108481e-10, 1.08022678688848933e-8};
    x = x > 28.0 ? splat(28.0) : x;
    const Pack<double> high = x * x, low = fused(x, x, -high), a = x + 2.5, b = 2.0 * x + 1.0, r = 0.5 / (a * b);
    const Pack<double> e = exponential(-high);
    return (e - e * low) * horner((x - 2.5) * b * (r + r), C) * (a * r);
}
inline Pack<double> root(Pack<double> x) {
    for (int i = 0; i < LANES<double>; i++) x[i] = std::sqrt(x[i]);
    return x;
}

// Probabilities of `classes` bins with inner edges under N(mean, variance); each edge costs one erfc, of its distance
// from the mean, so that no bin is a difference of numbers near 1.
inline void binned_normal(Pack<double> mean, Pack<double> variance, const double* edges, int64_t classes,
                          Pack<double>* p) {
    const Pack<double> scale = 1.0 / root(variance + variance);
    Pack<double> tail{};                     // mass beyond the lower edge, on the far side from the mean
    Mask<double> left = Mask<double>{} - 1;  // the lower edge lies left of the mean
    for (int64_t c = 0; c < classes; c++) {
        Pack<double> next{};
        Mask<double> next_left{};
        if (c + 1 < classes) {
            const Pack<double> z = (edges[c] - mean) * scale;
            next_left = z < 0.0;
            next = half_erfc(next_left ? -z : z);
        }
        const Pack<double> inside = left ? (next_left ? next - tail : (1.0 - tail) - next) : tail - next;
        p[c] = inside < 0.0 ? Pack<double>{} : inside;
        tail = next, left = next_left;
    }
}

// of[i][j] = (−1)^j/(j! (2i + 2j + 1) (2i)!): C_i/(2i)! below, as a series in β.
struct Moments {
    static constexpr int TERMS = 8;
    float of[TERMS][5] = {};
    static constexpr Moments table() {
        Moments made{};
        double even = 1.0;
        for (int i = 0; i < TERMS; i++) {
            if (i > 0) even *= (2 * i - 1) * 2 * i;
            double sign = 1.0;
            for (int j = 0; j < 5; j++) {
                if (j > 0) sign /= -j;
                made.of[i][j] = float(sign / ((2 * i + 2 * j + 1) * even));
            }
        }
        return made;
    }
};

// The same in float32 for equal bins of at most WIDEST deviations, where one erfc an edge would be most of the work.
// With m the middle of a bin and h its width in deviations, a = mh/2 and A = a²,
//
//   p = h ∫_0^1 φ(m) e^(−βt²) cosh(at) dt = h φ(m) Σ_i C_i(β) Aⁱ/(2i)!,   β = h²/8,   C_i = ∫_0^1 t^2i e^(−βt²) dt
//
// a sum of positive terms. φ at equal steps is a product: φ(m + h) = φ(m) r, r ← r e^(−h²). log2 p is a series in A
// too, known to float32 wherever p counts, so the entropy needs no logarithm.
class EqualBins {
   public:
    static constexpr int W = LANES<double>, HALVES = LANES<float> / W;
    static constexpr double WIDEST = 0.6;
    // Inner edges, equally spaced.
    EqualBins(const double* edges, int64_t classes)
        : edges(edges), C(classes), width(C > 2 ? (edges[C - 2] - edges[0]) / double(C - 2) : 0.0) {}

    // A half's mean, variance and what follows from them; `wide` marks the lanes that must go edge by edge.
    struct Half {
        Pack<double> mean, scale, h, peak, density, ratio, decay, bits;
        Mask<double> wide;
    };
    // out[c][lane] for both halves, and the entropies. Lanes marked wide get anything.
    void fill(const Pack<double>* mean, const Pack<double>* variance, Half* halves, float (*out)[LANES<float>]) const {
        alignas(64) float widths[LANES<float>], levels[LANES<float>];
        for (int i = 0; i < HALVES; i++) {
            halves[i] = prepared(mean[i], variance[i]);
            store_single(widths + i * W, halves[i].h);
            store_single(levels + i * W, log2_quick(halves[i].peak));
        }
        const Series series(load(widths), load(levels));
        for (int64_t c = 1; c + 1 < C; c += RUN) run(halves, series, c, at_most(C - 1 - c, RUN), out);
        for (int64_t c = 0; c < C; c += C - 1)
            for (int i = 0; i < HALVES; i++) store_single(out[c] + i * W, end(halves[i], c));
        const Pack<float> ends = surprise<float>(load(out[0])) + surprise<float>(load(out[C - 1]));
        for (int i = 0; i < HALVES; i++) {
            halves[i].bits += half_of(ends, i);
            halves[i].bits = halves[i].bits < 0.0 ? Pack<double>{} : halves[i].bits;
        }
    }

   private:
    // φ is a product over so many bins. It vanishes in float64 beyond 38 deviations, and RUN·WIDEST = 19 of them do not
    // lead from there to the 15 within which float32 holds it.
    static constexpr int64_t RUN = 32;
    static constexpr int TERMS = Moments::TERMS, LOGS = 5;
    // Coefficients of p/(h φ(m) C_0) and of log2 p in A, which begins with that of the peak.
    struct Series {
        Pack<float> mass[TERMS], log[LOGS];
        Series(Pack<float> h, Pack<float> level) {
            static constexpr float LOG2E = 1.44269504f;
            static constexpr Moments moments = Moments::table();
            const Pack<float> beta = h * h * 0.125f, first = 1.0f / horner(beta, moments.of[0]);
#pragma GCC unroll 12
            for (int i = 1; i < TERMS; i++) mass[i] = horner(beta, moments.of[i]) * first;
            mass[0] = splat(1.0f);
#pragma GCC unroll 6
            for (int i = 1; i < LOGS; i++) {
                log[i] = mass[i];
#pragma GCC unroll 6
                for (int j = 1; j < i; j++) log[i] -= float(j) / float(i) * (log[j] * mass[i - j]);
            }
#pragma GCC unroll 6
            for (int i = 1; i < LOGS; i++) log[i] *= LOG2E;
            log[0] = level;
            log[1] -= 2.0f * LOG2E / (h * h);  // of φ: −m²/2 · log2 e, m² = 4A/h²
        }
    };
    Half prepared(Pack<double> mean, Pack<double> variance) const {
        static constexpr double C0[] = {1.0, -1.0 / 3, 1.0 / 10, -1.0 / 42, 1.0 / 216, -1.0 / 1320, 1.0 / 9360};
        Half x{};
        x.mean = mean;
        x.scale = 1.0 / root(variance);
        x.h = width * x.scale;
        x.wide = ~((x.h <= WIDEST) & (x.h >= 1e-9));
        x.h = x.wide ? splat(WIDEST) : x.h;
        x.peak = x.h * horner(x.h * x.h * 0.125, C0) * 0.3989422804014327;
        x.decay = exponential(-x.h * x.h);
        return x;
    }
    void run(Half* halves, const Series& series, int64_t first, int64_t steps, float (*out)[LANES<float>]) const {
        alignas(64) float starts[LANES<float>], slopes[LANES<float>];
        for (int i = 0; i < HALVES; i++) {
            Half& x = halves[i];
            Pack<double> m = (edges[first - 1] + 0.5 * width - x.mean) * x.scale;
            m = m < -64.0 ? splat(-64.0) : m > 64.0 ? splat(64.0) : m;
            x.density = x.peak * exponential(-0.5 * m * m);
            // e^(−h(m + h/2)), of either sign: e^40 keeps the exponent negative.
            x.ratio = exponential(-x.h * (m + 0.5 * x.h) - 40.0) * 2.3538526683701998541e17;
            store_single(starts + i * W, 0.5 * m * x.h);
            store_single(slopes + i * W, 0.5 * x.h * x.h);
        }
        const Pack<float> start = load(starts), slope = load(slopes);
        Pack<float> sum{}, step{};
        Pack<double> density[HALVES], ratio[HALVES], decay[HALVES];
        for (int i = 0; i < HALVES; i++) 
            density[i] = halves[i].density, ratio[i] = halves[i].ratio, decay[i] = halves[i].decay;
        for (int64_t c = 0; c < steps; c++) {
            const Pack<float> a = fused(step, slope, start), A = a * a;
            step += 1.0f;
            Pack<float> mass = series.mass[TERMS - 1], log = series.log[LOGS - 1];
#pragma GCC unroll 12
            for (int i = TERMS - 2; i >= 0; i--) mass = fused(mass, A, series.mass[i]);
#pragma GCC unroll 12
            for (int i = LOGS - 2; i >= 0; i--) log = fused(log, A, series.log[i]);
            const Pack<float> p = joined(density[0] * half_of(mass, 0), density[1] * half_of(mass, 1));
            store(out[first + c], p);
            sum = fused(p, log, sum);
#pragma GCC unroll 2
            for (int i = 0; i < HALVES; i++) {
                density[i] *= ratio[i];
                ratio[i] *= decay[i];
            }
        }
        for (int i = 0; i < HALVES; i++) halves[i].bits -= half_of(sum, i);
    }
    static Pack<float> joined(Pack<double> low, Pack<double> high) {
#if defined(__AVX512F__)
        const __m256 a = _mm512_cvtpd_ps((__m512d)low), b = _mm512_cvtpd_ps((__m512d)high);
        return (Pack<float>)_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(a)), _mm256_castps_pd(b), 1);
#else
        float both[LANES<float>];
        store_single(both, low), store_single(both + W, high);
        return load(both);
#endif
    }
    static Pack<double> half_of(Pack<float> x, int i) {
#if defined(__AVX512F__)
        const __m512d all = _mm512_castps_pd((__m512)x);
        const __m256d part = i == 0 ? _mm512_castpd512_pd256(all) : _mm512_extractf64x4_pd(all, 1);
        return (Pack<double>)_mm512_cvtps_pd(_mm256_castpd_ps(part));
#else
        typedef float Part __attribute__((vector_size(32)));
        Part part;
        std::memcpy(&part, reinterpret_cast<const char*>(&x) + 32 * i, sizeof part);
        return __builtin_convertvector(part, Pack<double>);
#endif
    }
    // The first or the last bin, which takes the tail.
    Pack<double> end(const Half& x, int64_t c) const {
        const Pack<double> z = (edges[c == 0 ? 0 : C - 2] - x.mean) * x.scale * 0.70710678118654752;
        const Pack<double> out = c == 0 ? -z : z, tail = half_erfc(out < 0.0 ? -out : out);
        return out < 0.0 ? 1.0 - tail : tail;
    }
    const double* edges;
    const int64_t C;
    const double width;
};
