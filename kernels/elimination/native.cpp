// build: exact
// Predictives by elimination on the CPU, and the tunnels that ask for them; the definition is reference.py.
//
//   bijection   p(π(x) = y | pairs) = [y = π(x)] where x was seen, else [y unused]/(V − n)
//   recall      p(y | store, query) = [y = value of the key], or [y not stored]/(V − N)
#include "blocks.h"
#include "draws.h"

namespace {

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

// What one thread keeps of the sequence at hand: V symbols.
template <class T>
struct Knowledge {
    static int64_t packs(int64_t symbols) { return 3 * (symbols / LANES<float> + 1) * int64_t(sizeof(T) / 4); }
    Knowledge(int64_t symbols, Pack<float>* scratch)
        : V(symbols), unused(reinterpret_cast<T*>(scratch)), bits(unused + V), value_of(reinterpret_cast<int32_t*>(bits + V + 1)) {
        for (int64_t n = 1; n <= V; n++) bits[n] = T(std::log2(double(n)));
    }
    void forget() {
        free = V;
        for (int64_t v = 0; v < V; v++) unused[v] = T(1), value_of[v] = -1;
    }
    // The predictive at `key` to p (V) and its entropy; learns the pair. Returns p(value), 0 for a contradiction, from
    // which nothing is learnt.
    T add(int64_t key, int64_t value, T* p, T* entropy) {
        const int32_t known = value_of[key];
        if (known >= 0) {
            for (int64_t v = 0; v < V; v++) p[v] = T(0);
            p[known] = T(1);
            *entropy = T(0);
            return T(known == value);
        }
        const T share = T(1) / T(free);
        for (int64_t v = 0; v < V; v++) p[v] = unused[v] * share;
        *entropy = bits[free];
        if (unused[value] == T(0)) return T(0);
        unused[value] = T(0);
        value_of[key] = int32_t(value);
        free--;
        return share;
    }
    const int64_t V;
    int64_t free = 0;
    T *unused, *bits;
    int32_t* value_of;
};

template <class T>
int bijection(const BijectionProblem& p) {
    const int64_t V = p.symbols, L = p.length;
    return in_blocks_of<float>(1, p.batch, p.threads, Knowledge<T>::packs(V) + 2, [&](int64_t row, int64_t, Pack<float>* scratch) {
        Knowledge<T> known(V, scratch);
        known.forget();
        int status = FINE;
        double evidence = 0.0;
        for (int64_t k = row * L; k < (row + 1) * L; k++) {
            const int64_t key = p.keys[k], value = p.values[k];
            if (uint64_t(key) >= uint64_t(V) || uint64_t(value) >= uint64_t(V)) return int(OUT_OF_RANGE);
            const T likelihood = known.add(key, value, static_cast<T*>(p.predictive) + k * V, static_cast<T*>(p.entropy) + k);
            if (likelihood == T(0)) status |= IMPOSSIBLE;
            evidence += std::log(double(likelihood));
        }
        static_cast<T*>(p.evidence)[row] = T(evidence);
        return status;
    });
}

int sample_bijection(const BijectionSample& p) {
    const int64_t V = p.symbols, L = p.pairs, length = p.stride * (L - 1) + 1, words = (V - 1 + L + 3) / 4 * 4;
    const int64_t packs = words + Knowledge<float>::packs(V) + 2 + 2 * (V / LANES<float> + 1);
    return in_blocks<float>(p.draw.rows(), p.threads, packs, [&](int64_t first, int64_t rows, Pack<float>* scratch) {
        auto* drawn = reinterpret_cast<uint32_t(*)[ROWS]>(scratch);
        auto* pi = reinterpret_cast<int32_t*>(scratch + words);
        auto* order = pi + V;
        Knowledge<float> known(V, scratch + words + 2 * (V / LANES<float> + 1));
        words_by_lane(p.draw, first, words, drawn);
        const int64_t shift = p.shared_symbols ? 0 : V, separator = V + shift;
        for (int64_t i = 0; i < rows; i++) {
            const uint32_t* own = drawn[0] + i;
            shuffle(own, ROWS, V - 1, V, pi);
            own += (V - 1) * ROWS;
            if (!p.with_replacement) shuffle(own, ROWS, L, V, order);
            known.forget();
            int64_t* tokens = p.tokens + (first + i) * length;
            for (int64_t k = 0; k < L; k++) {
                const int64_t key = p.with_replacement ? below(own[k * ROWS], uint32_t(V)) : order[k], value = pi[key];
                const int64_t at = (first + i) * L + k, token = k * p.stride;
                tokens[token] = key;
                if (k + 1 < L) {
                    tokens[token + 1] = value + shift;
                    if (p.stride == 3) tokens[token + 2] = separator;
                }
                p.targets[at] = value;
                known.add(key, value, p.predictive + at * V, p.entropy + at);
            }
        }
        return FINE;
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
