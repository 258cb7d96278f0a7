// Dropout from a counter: whether a weight stays depends on the seed, its row and its key alone, so backward replays it.
#pragma once
#include "problem.h"

namespace dw {

DW_INLINE uint64_t splitmix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

DW_INLINE uvec mix(uvec x) {  // Wellons' lowbias32
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

struct DropoutRate {
  bool active;
  uint32_t threshold;
  float scale;

  explicit DropoutRate(double dropout) : active(dropout > 0) {
    threshold = uint32_t(std::min(dropout * 4294967296.0, 4294967295.0));
    scale = dropout < 1 ? float(1 / (1 - dropout)) : 0.f;
  }
  // What elements are multiplied by: 0, or 1 / (1 - p). `low` and `high` are the bits of their rows.
  DW_INLINE vec factor(uvec low, uvec high, uvec key) const {
    const uvec random = mix(mix(low + key) ^ high);
    return random >= threshold ? splat(scale) : vec{};
  }
};

// For panels, with a row per lane.
struct Dropout : DropoutRate {
  alignas(64) uint32_t low[kPanel], high[kPanel];

  explicit Dropout(const Attention& p) : DropoutRate(p.dropout) {}
  void seed_panel(const Attention& p, int64_t b, int64_t h, int64_t query) {
    for (int64_t lane = 0; active && lane < kPanel; ++lane) {
      const uint64_t row = uint64_t((b * p.heads + h) * p.queries + query + lane);
      const uint64_t bits = splitmix(p.seed ^ splitmix(row));
      low[lane] = uint32_t(bits);
      high[lane] = uint32_t(bits >> 32);
    }
  }
  DW_INLINE vec factor(int64_t key, int64_t lane) const {
    const uvec lo = *reinterpret_cast<const uvec*>(low + lane), hi = *reinterpret_cast<const uvec*>(high + lane);
    return DropoutRate::factor(lo, hi, uvec{} + uint32_t(key));
  }
};

// For rows, with a key per lane.
struct RowDropout : DropoutRate {
  uint64_t seed;
  uvec low, high, lanes;

  RowDropout(double dropout, uint64_t chosen) : DropoutRate(dropout), seed(chosen), low{}, high{} {
    for (int64_t i = 0; i < kLanes; ++i) lanes[i] = uint32_t(i);
  }
  void seed_row(int64_t row) {
    const uint64_t bits = splitmix(seed ^ splitmix(uint64_t(row)));
    low = uvec{} + uint32_t(bits);
    high = uvec{} + uint32_t(bits >> 32);
  }
  // Of keys [key, key + kLanes).
  DW_INLINE vec factor(int64_t key) const {
    return active ? DropoutRate::factor(low, high, lanes + uint32_t(key)) : splat(1.f);
  }
};

}  // namespace dw
