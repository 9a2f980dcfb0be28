// Integer draws of kernels/philox/draws.py, sixteen sequences at once: arrays [index][lane].
#pragma once
#include "philox.h"

constexpr int32_t FLOOR = 5, TOTAL = 100;  // hundredths: the least entry, and the sum of a row
constexpr int64_t MOST_ENTRIES = 20;

// Ascending, by exchanges of neighbours. Here and below FIXED is the number of entries, 0 where only `n` tells.
template <int FIXED>
NOINLINE void sort_columns(uint32_t (*words)[ROWS], int64_t n) {
    const int64_t count = FIXED ? FIXED : n;
    for (int64_t end = count - 1; end > 0; end--)
        for (int64_t i = 0; i < end; i++)
            for (int l = 0; l < ROWS; l++) {
                const uint32_t a = words[i][l], b = words[i + 1][l];
                words[i][l] = a < b ? a : b;
                words[i + 1][l] = a < b ? b : a;
            }
}

// draws.repair: the nearest rows with every entry ≥ 5 and sum 100. Comparisons give −1, hence the signs.
template <int FIXED>
NOINLINE void repair(int32_t (*rows)[ROWS], int64_t n) {
    const int64_t count = FIXED ? FIXED : n;
    typedef Mask<float> I;
    I row[MOST_ENTRIES], down[MOST_ENTRIES], lack = I{} + TOTAL;
    for (int64_t i = 0; i < count; i++) {
        std::memcpy(row + i, rows[i], sizeof(I));
        row[i] = row[i] < FLOOR ? I{} + FLOOR : row[i];
        lack -= row[i];
    }
    // What is missing: each as much, and one more for the smallest, in ascending order with ties to the lower index.
    const I given = lack > 0 ? lack : I{};
    I each, rest;
    for (int l = 0; l < ROWS; l++) each[l] = given[l] / int32_t(count), rest[l] = given[l] % int32_t(count);
    I more[MOST_ENTRIES];
    for (int64_t i = 0; i < count; i++) {
        I up{}, larger{};
        for (int64_t j = 0; j < i; j++) up += row[j] <= row[i], larger += row[j] >= row[i];
        for (int64_t j = i + 1; j < count; j++) up += row[j] < row[i], larger += row[j] > row[i];
        down[i] = -larger;
        more[i] = each - (-up < rest);
    }
    for (int64_t i = 0; i < count; i++) row[i] += more[i];
    // What is too much: one each from the largest above the floor, in rounds.
    I surplus = lack < 0 ? -lack : I{};
    while (any(surplus > 0)) {
        I taken[MOST_ENTRIES], total{};
        for (int64_t i = 0; i < count; i++) {
            I before{};  // −1 for each that comes earlier and has something to give
            for (int64_t j = 0; j < count; j++) before += (row[j] > FLOOR) & (down[j] < down[i]);
            taken[i] = (row[i] > FLOOR) & (-before < surplus);
        }
        for (int64_t i = 0; i < count; i++) row[i] += taken[i], total += taken[i];
        surplus += total;
    }
    for (int64_t i = 0; i < count; i++) std::memcpy(rows[i], row + i, sizeof(I));
}

// draws.simplex_hundredths of count − 1 words, which it sorts in place.
template <int FIXED = 0>
NOINLINE void simplex_hundredths(uint32_t (*words)[ROWS], int64_t n, int32_t (*row)[ROWS]) {
    const int64_t count = FIXED ? FIXED : n;
    // Integers below 2⁵³ in doubles. A quotient by 2·total < 2³⁹ is whole, or 1/(2·total) from the next whole number: a
    // quarter of that on top, and the rounding error of 2⁻⁴⁴ changes no whole part.
    double floored[MOST_ENTRIES][ROWS], total[ROWS] = {}, share[ROWS];
    sort_columns<FIXED ? FIXED - 1 : 0>(words, count - 1);
    for (int64_t i = 0; i < count; i++)
        for (int l = 0; l < ROWS; l++) {
            const double low = i > 0 ? double(words[i - 1][l]) : 0.0;
            const double high = i + 1 < count ? double(words[i][l]) : 4294967296.0;
            const double gap = 20.0 * (high - low);
            floored[i][l] = gap < 4294967296.0 ? 4294967296.0 : gap;
            total[l] += floored[i][l];
        }
    for (int l = 0; l < ROWS; l++) share[l] = 1.0 / (2.0 * total[l]);
    for (int64_t i = 0; i < count; i++)
        for (int l = 0; l < ROWS; l++) row[i][l] = int32_t((2 * TOTAL * floored[i][l] + total[l] + 0.25) * share[l]);
    repair<FIXED>(row, count);
}

// draws.categorical for rows of cumulative weights that a state chooses: how many inner sums of its row are ≤ value.
template <int FIXED = 0>
NOINLINE void categorical(const int32_t* state, const uint32_t* value, const int32_t (*cumulative)[ROWS], int64_t rows,
                          int64_t columns, int32_t* to) {
    const int64_t states = FIXED ? FIXED : rows, classes = FIXED ? FIXED : columns;
    typedef Mask<float> I;
    I at, drawn, found{};
    std::memcpy(&at, state, sizeof at), std::memcpy(&drawn, value, sizeof drawn);
    for (int64_t s = 0; s < states; s++) {
        I passed{};
        for (int64_t c = 0; c + 1 < classes; c++) {
            I sum;
            std::memcpy(&sum, cumulative[s * classes + c], sizeof sum);
            passed -= drawn >= sum;
        }
        found = at == int32_t(s) ? passed : found;
    }
    std::memcpy(to, &found, sizeof found);
}

// draws.shuffle of one sequence whose words lie `stride` apart: items 0 … n − 1, `step` apart, the first `take` of them
// drawn.
inline void shuffle(const uint32_t* words, int64_t stride, int64_t take, int64_t n, int32_t* items, int64_t step = 1) {
    for (int64_t i = 0; i < n; i++) items[i * step] = int32_t(i);
    for (int64_t i = 0; i < take; i++) {
        const int64_t other = i + below(words[i * stride], uint32_t(n - i));
        const int32_t chosen = items[other * step];
        items[other * step] = items[i * step];
        items[i * step] = chosen;
    }
}

// The same of ROWS sequences at once, for few items: exchanges by comparison, which cost n² / 2 steps but no look-up.
constexpr int64_t FEW = 32;
NOINLINE void shuffle_lanes(const uint32_t (*words)[ROWS], int64_t take, int64_t n, int32_t (*items)[ROWS]) {
    typedef Mask<float> I;
    I item[FEW];
    for (int64_t i = 0; i < n; i++) item[i] = I{} + int32_t(i);
    for (int64_t i = 0; i < take; i++) {
        U word, high, low;
        std::memcpy(&word, words[i], sizeof word);
        wide_product(word, uint32_t(n - i), high, low);
        const I other = (I)high + int32_t(i), own = item[i];
        I chosen = own;
        for (int64_t j = i + 1; j < n; j++) {
            const I here = other == int32_t(j);
            chosen = here ? item[j] : chosen;
            item[j] = here ? own : item[j];
        }
        item[i] = chosen;
    }
    std::memcpy(items, item, n * sizeof(I));
}
