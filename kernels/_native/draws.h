// Integer draws of kernels/philox/draws.py, sixteen sequences at once: arrays [index][lane].
#pragma once
#include "philox.h"

constexpr int32_t FLOOR = 5, TOTAL = 100;  // hundredths: the least entry, and the sum of a row
constexpr int64_t MOST_ENTRIES = 20;

// Ascending, by exchanges of neighbours.
inline void sort_columns(uint32_t (*words)[ROWS], int64_t count) {
    for (int64_t end = count - 1; end > 0; end--)
        for (int64_t i = 0; i < end; i++)
            for (int l = 0; l < ROWS; l++) {
                const uint32_t a = words[i][l], b = words[i + 1][l];
                words[i][l] = a < b ? a : b;
                words[i + 1][l] = a < b ? b : a;
            }
}

// draws.repair: the nearest rows with every entry ≥ 5 and sum 100.
inline void repair(int32_t (*row)[ROWS], int64_t count) {
    int32_t lack[ROWS], up[MOST_ENTRIES][ROWS] = {}, down[MOST_ENTRIES][ROWS] = {};
    for (int l = 0; l < ROWS; l++) lack[l] = TOTAL;
    for (int64_t i = 0; i < count; i++)
        for (int l = 0; l < ROWS; l++) {
            row[i][l] = row[i][l] < FLOOR ? FLOOR : row[i][l];
            lack[l] -= row[i][l];
        }
    // Places in ascending and descending order, ties to the lower index.
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < count; j++)
            for (int l = 0; l < ROWS; l++) {
                up[i][l] += j < i ? row[j][l] <= row[i][l] : row[j][l] < row[i][l];
                down[i][l] += j < i ? row[j][l] >= row[i][l] : row[j][l] > row[i][l];
            }
    int32_t surplus[ROWS], most = 0;
    for (int l = 0; l < ROWS; l++) {
        const int32_t given = lack[l] > 0 ? lack[l] : 0, each = given / int32_t(count), rest = given % int32_t(count);
        for (int64_t i = 0; i < count; i++) row[i][l] += each + (up[i][l] < rest);
        surplus[l] = lack[l] < 0 ? -lack[l] : 0;
        most = surplus[l] > most ? surplus[l] : most;
    }
    while (most > 0) {
        int32_t taken[MOST_ENTRIES][ROWS];
        for (int64_t i = 0; i < count; i++)
            for (int l = 0; l < ROWS; l++) taken[i][l] = 1;  // the place among those that have something to give
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < count; j++)
                for (int l = 0; l < ROWS; l++) taken[i][l] += (row[j][l] > FLOOR) & (down[j][l] < down[i][l]);
        for (int64_t i = 0; i < count; i++)
            for (int l = 0; l < ROWS; l++) taken[i][l] = (row[i][l] > FLOOR) & (taken[i][l] <= surplus[l]);
        most = 0;
        for (int64_t i = 0; i < count; i++)
            for (int l = 0; l < ROWS; l++) row[i][l] -= taken[i][l];
        for (int l = 0; l < ROWS; l++) {
            for (int64_t i = 0; i < count; i++) surplus[l] -= taken[i][l];
            most = surplus[l] > most ? surplus[l] : most;
        }
    }
}

// draws.simplex_hundredths of count − 1 words, which it sorts in place.
inline void simplex_hundredths(uint32_t (*words)[ROWS], int64_t count, int32_t (*row)[ROWS]) {
    // Integers below 2⁵³ in doubles; the quotient lies further from the next whole number than its rounding error.
    double floored[MOST_ENTRIES][ROWS], total[ROWS] = {};
    sort_columns(words, count - 1);
    for (int64_t i = 0; i < count; i++)
        for (int l = 0; l < ROWS; l++) {
            const double low = i > 0 ? double(words[i - 1][l]) : 0.0;
            const double high = i + 1 < count ? double(words[i][l]) : 4294967296.0;
            const double gap = 20.0 * (high - low);
            floored[i][l] = gap < 4294967296.0 ? 4294967296.0 : gap;
            total[l] += floored[i][l];
        }
    for (int64_t i = 0; i < count; i++)
        for (int l = 0; l < ROWS; l++) row[i][l] = int32_t((2 * TOTAL * floored[i][l] + total[l]) / (2.0 * total[l]));
    repair(row, count);
}

// draws.categorical for rows of cumulative weights that a state chooses: how many inner sums of its row are ≤ value.
inline void categorical(const int32_t* state, const uint32_t* value, const int32_t (*cumulative)[ROWS], int64_t states,
                        int64_t classes, int32_t* to) {
    int32_t found[ROWS] = {};
    for (int64_t s = 0; s < states; s++)
        for (int64_t c = 0; c + 1 < classes; c++)
            for (int l = 0; l < ROWS; l++)
                found[l] += (state[l] == s) & (int32_t(value[l]) >= cumulative[s * classes + c][l]);
    for (int l = 0; l < ROWS; l++) to[l] = found[l];
}

// draws.shuffle of one sequence whose words lie `stride` apart: items 0 … n − 1, the first `take` of them drawn.
inline void shuffle(const uint32_t* words, int64_t stride, int64_t take, int64_t n, int32_t* items) {
    for (int64_t i = 0; i < n; i++) items[i] = int32_t(i);
    for (int64_t i = 0; i < take; i++) {
        const int64_t other = i + below(words[i * stride], uint32_t(n - i));
        const int32_t chosen = items[other];
        items[other] = items[i];
        items[i] = chosen;
    }
}
