// What every native kernel shares: the export macro and small vector-friendly helpers.
//
// Rules for a native.cpp: plain C ABI (raw pointers, sizes, strides in elements), no torch headers, no exceptions,
// 64-bit offsets, `threads` as the last argument of every entry point. Sources are compiled so that NaN and infinity
// keep their meaning (see FLAGS in build.py).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#define EXPORT extern "C" __attribute__((visibility("default")))
