// Which tiles of keys a panel's window reaches. M = F_l G_r + F_r G_l, F grows and G falls from key to key, so in a tile M is
// at most F_l(end) G_r(start) + F_r(end) G_l(start): the sums of the pointers at its edges are enough to know that all of M is
// below the threshold there, before any of it is built.
#pragma once
#include "problem.h"

namespace dw {

// What a window does, for loops that must not ask.
enum Kind { kMultiplicative, kAdditive, kNormalized };

DW_INLINE bool is_cut(const Problem& p) { return p.threshold > 0; }

// A pointer's mass in a tile, summed over its keys, that is too small to reach a gradient in fp32.
constexpr float kNegligible = 1e-12f;

// Tell whether M may reach the threshold in a tile, for any of a panel's first `rows` queries: `before` are the sums of both
// pointers up to the tile, `mass` those in it. The bound leaves room for the roundings of M. NaN reaches everything.
inline bool reaches(float threshold, int64_t rows, const float (*before)[kPanel], const float (*mass)[kPanel]) {
  bool below = true;
  for (int64_t lane = 0; lane < rows; ++lane) {
    const float left = before[0][lane], right = before[1][lane];
    const float bound = (left + mass[0][lane]) * (1.f - right) + (right + mass[1][lane]) * (1.f - left);
    below &= bound * 1.00001f + 5e-7f < threshold;
  }
  return !below;
}

// G of both pointers over a tile of one panel, for normalised windows: their small values count, and 1 − F would leave
// nothing but roundings of them. `after` are the sums beyond the tile.
struct Suffix {
  float* data[2] = {};  // sums of φ from each key of the tile to its end, before they are multiplied by `factor`
  const float (*after)[kPanel] = nullptr;

  void sum(int side, const float* phi, int64_t keys) const {
    for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
      vec total{};
      for (int64_t key = keys; key-- > 0;) {
        total += load(phi + key * kPanel + lane);
        store(data[side] + key * kPanel + lane, total);
      }
    }
  }
  // Where G was needed last, store a gradient dF of keys [first, last): it is that of one segment.
  DW_INLINE void replace(int64_t first, int64_t last, int64_t lane, vec left, vec right) const {
    for (int64_t key = first; key < last; ++key) {
      store(data[0] + key * kPanel + lane, key + 1 < last ? vec{} : left);
      store(data[1] + key * kPanel + lane, key + 1 < last ? vec{} : right);
    }
  }
  // slope += φ times the sum of dF from its key to the tile's end; returns that of the whole tile.
  DW_INLINE vec add_products(int side, int64_t keys, int64_t lane, const float* phi, float* slope) const {
    vec total{};
    for (int64_t at = keys * kPanel + lane; (at -= kPanel) >= 0;) {
      total += load(data[side] + at);
      store(slope + at, load(slope + at) + load(phi + at) * total);
    }
    return total;
  }
  DW_INLINE vec operator()(int side, int64_t key, int64_t lane, vec factor) const {
    return load(after[side] + lane) + load(data[side] + key * kPanel + lane) * factor;
  }
};

}  // namespace dw
