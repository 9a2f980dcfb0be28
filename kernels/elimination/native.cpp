// build: exact
// Predictives by elimination on the CPU, and the tunnels that ask for them; the definition is reference.py.
//
//   bijection   p(π(x) = y | pairs) = [y = π(x)] where x was seen, else [y unused]/(V − n)
//   recall      p(y | store, query) = [y = value of the key], or [y not stored]/(V − N)
#include "blocks.h"
#include "draws.h"

namespace {

constexpr int64_t LARGE = 1 << 20;  // bytes of a result that is not to pass through the cache

// As native.py packs it.
struct BijectionProblem {
    int64_t batch, length, symbols, threads;
    const int64_t *keys, *values;
    void *predictive, *entropy, *evidence;
};
struct RecallProblem {
    int64_t batch, stored, queries, values, threads, validate;
    const int64_t *stored_keys, *stored_values, *asked;
    void *predictive, *entropy;
};
struct BijectionSample {
    Draw draw;
    int64_t symbols, pairs, stride, shared_symbols, with_replacement, threads;
    int64_t *tokens, *targets;
    float *predictive, *entropy;
};
struct RecallSample {
    Draw draw;
    int64_t pairs, symbols, fillers, queries, unseen_below, threads;  // unseen_below: ⌊p·2³²⌋, −1 for p = 0
    int64_t *tokens, *targets;
    float *predictive, *entropy;
};

// log2 n and 1/n of the numbers that may be left of V symbols; what all rows share.
template <class T>
class Counts {
   public:
    explicit Counts(int64_t symbols) : memory(2 * (symbols / LANES<T> + 1)), bits(reinterpret_cast<T*>(memory.take(0))), share(bits + symbols + 1) {
        for (int64_t n = 1; memory && n <= symbols; n++) bits[n] = T(std::log2(double(n))), share[n] = T(1) / T(n);
    }
    explicit operator bool() const { return bool(memory); }

   private:
    Scratch<T> memory;

   public:
    T *const bits, *const share;
};

// Equal shares for the symbols whose bit is set, 0 for the others.
template <class T>
inline void shares(const uint64_t* set, int64_t symbols, T share, T* p) {
#if defined(__AVX512F__)
    for (int64_t v = 0; v < symbols;) {
        uint64_t here = set[v / 64];
        for (const int64_t end = at_most(v + 64, symbols); v < end; v += LANES<T>, here >>= LANES<T>) {
            if constexpr (sizeof(T) == 4) {
                store_part<T>(p + v, (Pack<T>)_mm512_maskz_mov_ps(__mmask16(here), _mm512_set1_ps(share)), end - v);
            } else {
                store_part<T>(p + v, (Pack<T>)_mm512_maskz_mov_pd(__mmask8(here), _mm512_set1_pd(share)), end - v);
            }
        }
    }
#else
    for (int64_t v = 0; v < symbols; v++) p[v] = set[v / 64] >> (v % 64) & 1 ? share : T(0);
#endif
}

// What one thread keeps of the sequence at hand: a bit for each of V symbols that is unused, and the values of keys.
template <class T>
struct Knowledge {
    static int64_t packs(int64_t symbols) { return symbols / LANES<float> + symbols / 512 + 2; }
    Knowledge(const Counts<T>& counts, int64_t symbols, Pack<float>* scratch)
        : counts(counts), V(symbols), words(V / 64 + 1), unused(reinterpret_cast<uint64_t*>(scratch)),
          value_of(reinterpret_cast<int32_t*>(unused + words)) {}
    void forget() {
        free = V;
        for (int64_t w = 0; w < words; w++) unused[w] = ~uint64_t(0);
        for (int64_t v = 0; v < V; v++) value_of[v] = -1;
    }
    // The predictive at `key` to p (V) and its entropy; learns the pair. Returns 1/p(value), 0 for a contradiction,
    // from which nothing is learnt.
    int64_t add(int64_t key, int64_t value, T* p, T* entropy) {
        const int32_t known = value_of[key];
        if (known >= 0) {
            for (int64_t v = 0; v < V; v++) p[v] = T(0);
            p[known] = T(1);
            *entropy = T(0);
            return known == value;
        }
        shares(unused, V, counts.share[free], p);
        *entropy = counts.bits[free];
        const uint64_t bit = uint64_t(1) << (value % 64);
        if (!(unused[value / 64] & bit)) return 0;
        unused[value / 64] &= ~bit;
        value_of[key] = int32_t(value);
        return free--;
    }
    const Counts<T>& counts;
    const int64_t V, words;
    int64_t free = 0;
    uint64_t* unused;
    int32_t* value_of;
};

template <class T>
int bijection(const BijectionProblem& p) {
    const int64_t V = p.symbols, L = p.length;
    const Counts<T> counts(V);
    if (!counts) return NO_MEMORY;
    return in_blocks_of<float>(1, p.batch, p.threads, Knowledge<T>::packs(V), [&](int64_t row, int64_t, Pack<float>* scratch) {
        Knowledge<T> known(counts, V, scratch);
        known.forget();
        int status = FINE;
        double bits = 0.0;
        for (int64_t k = row * L; k < (row + 1) * L; k++) {
            const int64_t key = p.keys[k], value = p.values[k];
            if (uint64_t(key) >= uint64_t(V) || uint64_t(value) >= uint64_t(V)) return int(OUT_OF_RANGE);
            const int64_t among = known.add(key, value, static_cast<T*>(p.predictive) + k * V, static_cast<T*>(p.entropy) + k);
            if (among == 0) status |= IMPOSSIBLE;
            bits += among == 0 ? std::numeric_limits<double>::infinity() : double(counts.bits[among]);
        }
        static_cast<T*>(p.evidence)[row] = T(-0.69314718055994530942 * bits);
        return status;
    });
}

// Sixteen rows at a time: the permutation and the order of the keys, then row by row what they give.
class BijectionSampler {
   public:
    BijectionSampler(const BijectionSample& p, const Counts<float>& counts)
        : p(p), counts(counts), V(p.symbols), L(p.pairs), length(p.stride * (L - 1) + 1), words((V - 1 + L + 3) / 4 * 4) {}
    int64_t packs() const { return words + 2 * V + Knowledge<float>::packs(V) + L * V + 2; }

    int block(int64_t first, int64_t rows, Pack<float>* scratch) const {
        auto* drawn = reinterpret_cast<uint32_t(*)[ROWS]>(scratch);
        auto* pi = reinterpret_cast<int32_t(*)[ROWS]>(scratch + words);
        auto* keys = pi + V;
        Knowledge<float> known(counts, V, scratch + words + 2 * V);
        words_by_lane(p.draw, first, words, drawn);
        permute(drawn, V - 1, pi);
        drawn += V - 1;
        if (!p.with_replacement) permute(drawn, L, keys);
        // Made in the cache and, where the whole is large, written past it.
        auto* staged = reinterpret_cast<float*>(keys + V) + ROWS * Knowledge<float>::packs(V);
        const int64_t large = p.draw.rows() * L * V * int64_t(sizeof(float)) >= LARGE, size = L * V;
        for (int64_t i = 0; i < rows; i++) {
            const int64_t row = first + i;
            float* predictive = V <= FEW || large ? staged + i * size : p.predictive + row * size;
            const Row to{p.tokens + row * length, p.targets + row * L, predictive, p.entropy + row * L};
            if (V <= FEW && !p.with_replacement) few(to, pi[0] + i, keys[0] + i);
            else any(to, pi[0] + i, keys[0] + i, drawn[0] + i, known);
        }
        if (large) stream(p.predictive + first * size, staged, rows * size);
        else if (V <= FEW) std::memcpy(p.predictive + first * size, staged, rows * size * sizeof(float));
        return FINE;
    }

   private:
    // The first `take` entries of a rearrangement of 0 … V − 1 are drawn, in every lane.
    void permute(const uint32_t (*drawn)[ROWS], int64_t take, int32_t (*items)[ROWS]) const {
        if (V <= FEW) return shuffle_lanes(drawn, take, V, items);
        for (int i = 0; i < ROWS; i++) shuffle(drawn[0] + i, ROWS, take, V, items[0] + i, ROWS);
    }
    struct Row {
        int64_t *tokens, *targets;
        float *predictive, *entropy;
    };
    // One row, whose numbers lie ROWS apart.
    void any(Row to, const int32_t* pi, const int32_t* keys, const uint32_t* drawn, Knowledge<float>& known) const {
        known.forget();
        for (int64_t k = 0; k < L; k++) {
            const int64_t key = p.with_replacement ? below(drawn[k * ROWS], uint32_t(V)) : keys[k * ROWS], value = pi[key * ROWS];
            show(to.tokens + k * p.stride, key, value, k + 1 < L);
            to.targets[k] = value;
            known.add(key, value, to.predictive + k * V, to.entropy + k);
        }
    }
    // The same for at most FEW symbols and distinct keys. A row of the predictive is written in whole packs, whose
    // excess the next one overwrites.
    void few(Row to, const int32_t* pi, const int32_t* keys) const {
        const int64_t pairs = L, symbols = V, stride = p.stride;
        const float *bits = counts.bits + V, *share = counts.share + V;
        uint32_t unused = ~uint32_t(0);
        for (int64_t k = 0; k < pairs; k++) {
            const int64_t key = keys[k * ROWS], value = pi[key * ROWS];
            show(to.tokens, key, value, k + 1 < pairs);
            to.tokens += stride;
            to.targets[k] = value;
            to.entropy[k] = bits[-k];
            store(to.predictive, chosen(unused, share[-k]));
            if (symbols > 16) store(to.predictive + 16, chosen(unused >> 16, share[-k]));
            to.predictive += symbols;
            unused &= ~(uint32_t(1) << value);
        }
    }
    // share in the lanes of the set's bits.
    static Pack<float> chosen(uint32_t set, float share) {
#if defined(__AVX512F__)
        return (Pack<float>)_mm512_maskz_mov_ps(__mmask16(set), _mm512_set1_ps(share));
#else
        Pack<float> made;
        for (int l = 0; l < 16; l++) made[l] = set >> l & 1 ? share : 0.0f;
        return made;
#endif
    }
    void show(int64_t* tokens, int64_t key, int64_t value, bool answered) const {
        const int64_t shift = p.shared_symbols ? 0 : V;
        tokens[0] = key;
        if (!answered) return;
        tokens[1] = value + shift;
        if (p.stride == 3) tokens[2] = V + shift;
    }
    const BijectionSample& p;
    const Counts<float>& counts;
    const int64_t V, L, length, words;
};

int sample_bijection(const BijectionSample& p) {
    const Counts<float> counts(p.symbols);
    if (!counts) return NO_MEMORY;
    const BijectionSampler sampler(p, counts);
    return in_blocks<float>(p.draw.rows(), p.threads, sampler.packs(), [&](int64_t first, int64_t rows, Pack<float>* scratch) {
        return sampler.block(first, rows, scratch);
    });
}

// possible/Σ possible of one query, whose key was found among the stored ones or not.
template <class T, class Int>
int answer(const Int* keys, const Int* values, int64_t stored, Int query, const T* unstored, int64_t V, T* p, T* entropy) {
    int64_t matches = 0;
    for (int64_t n = 0; n < stored; n++) matches += keys[n] == query;
    if (matches > 0) {
        for (int64_t v = 0; v < V; v++) p[v] = T(0);
        for (int64_t n = 0; n < stored; n++) p[values[n]] = keys[n] == query ? T(1) / T(matches) : p[values[n]];
        *entropy = matches > 1 ? T(std::log2(double(matches))) : T(0);
        return FINE;
    }
    int64_t free = 0;
    for (int64_t v = 0; v < V; v++) free += unstored[v] != T(0);
    const T share = T(1) / T(free);
    for (int64_t v = 0; v < V; v++) p[v] = unstored[v] * share;  // NaN where nothing is left: refused by the caller
    *entropy = free > 0 ? T(std::log2(double(free))) : std::numeric_limits<T>::quiet_NaN();
    return free > 0 ? FINE : REFUSED;
}

template <class T>
int recall(const RecallProblem& p) {
    const int64_t V = p.values, N = p.stored;
    return in_blocks_of<float>(1, p.batch, p.threads, V / 8 + 2, [&](int64_t row, int64_t, Pack<float>* scratch) {
        T* unstored = reinterpret_cast<T*>(scratch);
        const int64_t *keys = p.stored_keys + row * N, *values = p.stored_values + row * N;
        int status = FINE;
        for (int64_t v = 0; v < V; v++) unstored[v] = T(1);
        for (int64_t n = 0; n < N; n++) {
            if (uint64_t(values[n]) >= uint64_t(V)) return int(OUT_OF_RANGE);
            if (unstored[values[n]] == T(0)) status |= REFUSED;
            unstored[values[n]] = T(0);
        }
        for (int64_t n = 0; p.validate && n < N; n++) {
            int64_t same = 0;
            for (int64_t m = 0; m < n; m++) same += keys[m] == keys[n];
            if (same > 0) status |= REFUSED;
        }
        for (int64_t m = row * p.queries; m < (row + 1) * p.queries; m++)
            status |= answer<T, int64_t>(keys, values, N, p.asked[m], unstored, V, static_cast<T*>(p.predictive) + m * V,
                                         static_cast<T*>(p.entropy) + m);
        return status;
    });
}

class RecallSampler {
   public:
    explicit RecallSampler(const RecallSample& p)
        : p(p), N(p.pairs), V(p.symbols), M(p.queries), extra(p.unseen_below >= 0 ? M : 0),
          words((2 * N + M + 3 * extra + 3) / 4 * 4), padded(V / LANES<float> + 1),
          length(4 * N + p.fillers + 3 * M + (M - 1) * (p.fillers / 2)) {}
    int64_t packs() const { return words + 4 * padded + N / LANES<float> + 1; }

    int block(int64_t first, int64_t rows, Pack<float>* scratch) const {
        auto* drawn = reinterpret_cast<uint32_t(*)[ROWS]>(scratch);
        words_by_lane(p.draw, first, words, drawn);
        for (int64_t i = 0; i < rows; i++) row(first + i, drawn[0] + i, scratch + words);
        return FINE;
    }

   private:
    void row(int64_t row, const uint32_t* drawn, Pack<float>* scratch) const {
        auto* values = reinterpret_cast<int32_t*>(scratch);
        auto* keys = reinterpret_cast<int32_t*>(scratch + padded);
        auto* unstored = reinterpret_cast<float*>(scratch + 2 * padded);
        auto* chosen = reinterpret_cast<int32_t*>(scratch + 3 * padded);
        const uint32_t *choice = drawn + N * ROWS, *key_words = choice + M * ROWS;
        const uint32_t *unseen = key_words + (N + extra) * ROWS, *answers = unseen + extra * ROWS;
        shuffle(drawn, ROWS, N, V, values);
        shuffle(choice, ROWS, M, N, chosen);
        shuffle(key_words, ROWS, N + extra, V, keys);
        for (int64_t v = 0; v < V; v++) unstored[v] = 1.0f;
        for (int64_t n = 0; n < N; n++) unstored[values[n]] = 0.0f;
        int64_t* tokens = store(p.tokens + row * length, keys, values);
        for (int64_t m = 0; m < M; m++) {
            int32_t query = keys[chosen[m]], target = values[chosen[m]];
            if (extra && int64_t(unseen[m * ROWS]) < p.unseen_below) {
                query = keys[N + m];
                target = values[N + below(answers[m * ROWS], uint32_t(V - N))];
            }
            const int64_t at = row * M + m;
            *tokens++ = QUERY, *tokens++ = query + FIRST_KEY, *tokens++ = ASK;
            for (int64_t f = 0; m + 1 < M && f < p.fillers / 2; f++) *tokens++ = FILLER;
            p.targets[at] = target;
            answer<float, int32_t>(keys, values, N, query, unstored, V, p.predictive + at * V, p.entropy + at);
        }
    }
    int64_t* store(int64_t* tokens, const int32_t* keys, const int32_t* values) const {
        for (int64_t n = 0; n < N; n++) {
            *tokens++ = STORE, *tokens++ = keys[n] + FIRST_KEY;
            *tokens++ = SEP, *tokens++ = values[n] + FIRST_KEY + V;
        }
        for (int64_t f = 0; f < p.fillers; f++) *tokens++ = FILLER;
        return tokens;
    }
    enum Token : int64_t { STORE, SEP, FILLER, QUERY, ASK, FIRST_KEY };
    const RecallSample& p;
    const int64_t N, V, M, extra, words, padded, length;
};

}  // namespace

EXPORT int bijection_predictive(const BijectionProblem* p, int64_t is_double) {
    return is_double ? bijection<double>(*p) : bijection<float>(*p);
}
EXPORT int recall_predictive(const RecallProblem* p, int64_t is_double) {
    return is_double ? recall<double>(*p) : recall<float>(*p);
}
EXPORT int bijection_sample(const BijectionSample* p) { return sample_bijection(*p); }
EXPORT int recall_sample(const RecallSample* p) {
    const RecallSampler sampler(*p);
    return in_blocks<float>(p->draw.rows(), p->threads, sampler.packs(), [&](int64_t first, int64_t rows, Pack<float>* scratch) {
        return sampler.block(first, rows, scratch);
    });
}
