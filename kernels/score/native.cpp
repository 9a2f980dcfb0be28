// build: exact
// Scores of logits against the exact predictive, one row of classes per SIMD lane; the definition is reference.py.
//
// With m the largest logit, d_c = x_c − m and Z = Σ e^d:  ln q_c = d_c − ln Z,  H(q) = ln Z − Σ e^d d / Z. A block of 16
// (float) or 8 (double) rows stays in the cache from the logits to every score, and no softmax reaches memory.
#include "blocks.h"

namespace {

constexpr double LN2 = 0.69314718055994530942, LOG2E = 1.4426950408889634;

// As native.py packs it: logits and p (R, C), targets (R,) int64; results (R,), absent ones null.
struct ScoreProblem {
    int64_t rows, classes, threads;
    const void *logits, *p;
    const int64_t* targets;
    void *loss, *sampled_loss, *entropy, *kl, *tvd, *accuracy, *impossible;
};
// Losses against p where it is there, else on the targets; upstream (R,) and d_logits (R, C) of the backward pass.
struct LossProblem {
    int64_t rows, classes, threads;
    const void *logits, *p;
    const int64_t* targets;
    void* loss;
    const void* upstream;
    void* d_logits;
};

template <class T>
inline Pack<T> natural_log(Pack<T> x) {
    return x == x ? log2_of(x) * T(LN2) : x;
}

// A block of rows: x becomes e^(x − m), which sums to `total`.
template <class T>
struct Row {
    Pack<T> peak, total, log_total;

    void load(const void* logits, int64_t C, int64_t first, int64_t rows, Pack<T>* x) {
        load_columns<T>(static_cast<const T*>(logits) + first * C, C, rows, C, x);
        peak = x[0];
        for (int64_t c = 1; c < C; c++) peak = x[c] > peak ? x[c] : peak;
        total = Pack<T>{};
    }
};

// A sum over classes, strip by strip: in one long float sum of 32,000 terms the last ones lose their digits.
constexpr int64_t STRIP = 128;
template <class T>
struct Sum {
    Pack<T> whole{}, strip{};

    void operator+=(const Pack<T>& term) { strip += term; }
    void fold() {
        whole += strip;
        strip = Pack<T>{};
    }
};

// term(c) for every class; the sums are folded after every strip.
template <class Term, class... Sums>
inline void over_classes(int64_t C, Term term, Sums&... sums) {
    for (int64_t start = 0; start < C; start += STRIP) {
        const int64_t end = start + STRIP < C ? start + STRIP : C;
        for (int64_t c = start; c < end; c++) term(c);
        (sums.fold(), ...);
    }
}

// Logits of the answers, one a lane; −1 in `bad` for what is no class.
template <class T>
inline Pack<T> chosen(const int64_t* targets, int64_t rows, int64_t C, const Pack<T>* x, bool& bad) {
    Pack<T> found{};
    for (int64_t i = 0; i < LANES<T>; i++) {
        const int64_t c = targets[i < rows ? i : rows - 1];
        const bool fine = c >= 0 && c < C;
        bad |= !fine;
        found[i] = fine ? x[c][i] : T(0);
    }
    return found;
}

template <class T>
int score_block(const ScoreProblem& s, int64_t first, int64_t rows, Pack<T>* scratch) {
    const int64_t C = s.classes;
    Pack<T>*x = scratch, *p = x + C, *exponentials = p + C;
    Row<T> row;
    row.load(s.logits, C, first, rows, x);
    load_columns<T>(static_cast<const T*>(s.p) + first * C, C, rows, C, p);
    bool bad = false;
    const Pack<T> answer = chosen<T>(s.targets + first, rows, C, x, bad);
    Sum<T> total, weighted, crossed, mass, apart, impossible, divergence;
    Pack<T> ties{};
    const auto first_pass = [&](int64_t c) {
        const Pack<T> d = x[c] - row.peak, e = exponential(d);
        ties += x[c] == row.peak ? splat(T(1)) : Pack<T>{};
        total += e;
        weighted += e == T(0) ? Pack<T>{} : e * d;
        crossed += p[c] == T(0) ? Pack<T>{} : p[c] * d;
        mass += p[c];
        x[c] = d;
        exponentials[c] = e;
    };
    over_classes(C, first_pass, total, weighted, crossed, mass);
    row.total = total.whole;
    const Pack<T> log_total = natural_log<T>(row.total), scale = T(1) / row.total;
    const auto second_pass = [&](int64_t c) {
        const Pack<T> q = exponentials[c] * scale, difference = p[c] - q;
        // Term by term: a difference of two sums would lose what they share.
        const Pack<T> bits_lost = log2_of(p[c]) - (x[c] - log_total) * T(LOG2E);
        divergence += p[c] < Format<T>::SMALLEST ? Pack<T>{} : p[c] * bits_lost;
        apart += difference < T(0) ? -difference : difference;
        impossible += p[c] == T(0) ? q : Pack<T>{};
    };
    over_classes(C, second_pass, apart, impossible, divergence);
    const auto put = [&](void* to, Pack<T> value) { store_part(static_cast<T*>(to) + first, value, rows); };
    const Pack<T> loss = mass.whole * log_total - crossed.whole;
    const Pack<T> spread = (log_total - weighted.whole * scale) * T(LOG2E);
    put(s.loss, loss);
    put(s.sampled_loss, log_total - (answer - row.peak));
    put(s.entropy, spread < T(0) ? Pack<T>{} : spread);
    put(s.kl, row.total == row.total ? divergence.whole : row.total);
    put(s.tvd, apart.whole * T(0.5));
    const Pack<T> hit = answer == row.peak ? T(1) / ties : Pack<T>{};
    put(s.accuracy, row.total == row.total ? hit : row.total);
    put(s.impossible, impossible.whole);
    return bad ? OUT_OF_RANGE : FINE;
}

template <class T>
int loss_block(const LossProblem& s, int64_t first, int64_t rows, Pack<T>* x) {
    const int64_t C = s.classes;
    Row<T> row;
    row.load(s.logits, C, first, rows, x);
    bool bad = false;
    Sum<T> total, crossed_p, mass_p;
    Pack<T>* p = x + C;
    Pack<T> crossed{}, mass = splat(T(1));
    if (s.p)
        load_columns<T>(static_cast<const T*>(s.p) + first * C, C, rows, C, p);
    else
        crossed = chosen<T>(s.targets + first, rows, C, x, bad) - row.peak;
    const auto pass = [&](int64_t c) {
        const Pack<T> d = x[c] - row.peak, e = exponential(d);
        total += e;
        x[c] = e;
        if (s.p) {
            crossed_p += p[c] == T(0) ? Pack<T>{} : p[c] * d;
            mass_p += p[c];
        }
    };
    over_classes(C, pass, total, crossed_p, mass_p);
    row.total = total.whole;
    if (s.p) {
        crossed = crossed_p.whole;
        mass = mass_p.whole;
    }
    if (s.loss) store_part(static_cast<T*>(s.loss) + first, mass * natural_log<T>(row.total) - crossed, rows);
    if (s.d_logits == nullptr) return bad ? OUT_OF_RANGE : FINE;
    const Pack<T> upstream = load_part(static_cast<const T*>(s.upstream) + first, rows), scale = upstream * mass / row.total;
    for (int64_t c = 0; c < C; c++) x[c] = s.p ? x[c] * scale - p[c] * upstream : x[c] * scale;
    if (!s.p)
        for (int64_t i = 0; i < rows; i++) {
            const int64_t c = s.targets[first + i];
            if (c >= 0 && c < C) x[c][i] -= upstream[i];
        }
    store_columns<T>(static_cast<T*>(s.d_logits) + first * C, C, rows, C, x);
    return bad ? OUT_OF_RANGE : FINE;
}

template <class T>
int score_as(const ScoreProblem& s) {
    return in_blocks<T>(s.rows, s.threads, 3 * s.classes, [&](int64_t first, int64_t rows, Pack<T>* scratch) {
        return score_block<T>(s, first, rows, scratch);
    });
}
template <class T>
int loss_as(const LossProblem& s) {
    return in_blocks<T>(s.rows, s.threads, 2 * s.classes, [&](int64_t first, int64_t rows, Pack<T>* scratch) {
        return loss_block<T>(s, first, rows, scratch);
    });
}

}  // namespace

EXPORT int score(const ScoreProblem* s, int64_t is_double) { return is_double ? score_as<double>(*s) : score_as<float>(*s); }
EXPORT int cross_entropy(const LossProblem* s, int64_t is_double) {
    return is_double ? loss_as<double>(*s) : loss_as<float>(*s);
}
