// The softmax of a panel's rows, tile by tile, and what its gradient needs.
#pragma once
#include "dropout.h"
#include "gemm.h"

namespace dw {

constexpr float kLowest = -__FLT_MAX__;  // stands for "nothing seen yet": finite, so that differences are

struct Running {  // softmax statistics of sixteen rows
  alignas(64) float max[kPanel], sum[kPanel];
  void reset() {
    std::fill(max, max + kPanel, kLowest);
    std::fill(sum, sum + kPanel, 0.f);
  }
  // What the sums are to be multiplied by. A row that sees nothing has none, and NaN must stay NaN.
  float inverse(int64_t lane) const { return sum[lane] == 0 ? 0.f : 1.f / sum[lane]; }
};

struct Tile {
  int64_t first, last, index;
};

// How a tile's scores become weights: softmax(s); softmax(s) ⊙ M; the same over its sum; or not at all, where M is 0 but
// the sum of the softmax needs every score.
enum Weights { kSoftmax, kWindowed, kDivided, kSumOnly };

// Turn a tile's scores into weights over the running maximum (Eq. 13, 17); earlier output must be multiplied by `rescale`.
// Normalised, keys with M = 0 do not count: the maximum is that of the others, which they may exceed.
template <Weights kind>
void weigh(Tile tile, int64_t end, const Dropout& dropout, Running& run, float* score, const float* window, float* rescale) {
  const int64_t keys = end - tile.first;
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    const vec before = load(run.max + lane);
    vec top = before;
    for (int64_t k = 0; k < keys; ++k) {
      const int64_t at = k * kPanel + lane;
      const vec x = load(score + at);
      if constexpr (kind == kDivided)
        top = load(window + at) == 0 ? top : larger(top, x);
      else
        top = larger(top, x);
    }
    vec sum{};
    for (int64_t k = 0; k < keys; ++k) {
      const int64_t at = k * kPanel + lane;
      vec weight = exp(load(score + at) - top);
      if constexpr (kind == kDivided) {
        const vec m = load(window + at);
        weight = m == 0 ? vec{} : weight * m;
      }
      sum += weight;
      if constexpr (kind != kSumOnly) {
        if (dropout.active) weight *= dropout.factor(tile.first + k, lane);
        if constexpr (kind == kWindowed) weight *= load(window + at);
        store(score + at, weight);
      }
    }
    const vec factor = exp(before - top);
    store(rescale + lane, factor);
    store(run.sum + lane, load(run.sum + lane) * factor + sum);
    store(run.max + lane, top);
  }
}

inline void rescale_output(const float* rescale, int64_t width, float* out) {
  bool unchanged = true;
  for (int64_t lane = 0; lane < kPanel; ++lane) unchanged &= rescale[lane] == 1.f;
  if (unchanged) return;
  for (int64_t j = 0; j < width; ++j)
    for (int64_t lane = 0; lane < kPanel; lane += kLanes)
      store(out + j * kPanel + lane, load(out + j * kPanel + lane) * load(rescale + lane));
}

// Gradients of keys [begin, end): score <- A after dropout, grad <- dS = A ⊙ (dA − D); softmax(x) is e^(x − max) · inverse.
inline void softmax_gradient(int64_t begin, int64_t end, const Dropout& dropout, const float* max, const float* inverse,
                             const float* dot, float* score, float* grad) {
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    const vec top = load(max + lane), scale = load(inverse + lane), center = load(dot + lane);
    for (int64_t key = begin; key < end; ++key) {
      const int64_t at = (key - begin) * kPanel + lane;
      const vec weight = exp(load(score + at) - top) * scale;
      const vec keep = dropout.active ? dropout.factor(key, lane) : splat(1.f);
      store(grad + at, weight * (load(grad + at) * keep - center));
      store(score + at, weight * keep);
    }
  }
}

// The columns of rows that `scatter_tile` multiplies by: panels, or half of one.
inline int64_t padded(int64_t width) { return width <= Narrow::lanes ? Narrow::lanes : round_up(width, kPanel); }

// dot += Σ a b over the rows of two panels: the very chain of fused multiply-adds by which `gemm` takes dO · V, so that
// where the two should cancel they do. It is spelled out because compilers tune such a chain into separate steps.
inline void add_products(int64_t rows, const float* a, const float* b, float* dot) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      const float x = a[i * kPanel + lane], y = b[i * kPanel + lane];
#if defined(FP_FAST_FMAF) || defined(__FP_FAST_FMAF)
      dot[lane] = __builtin_fmaf(x, y, dot[lane]);
#else
      dot[lane] += x * y;
#endif
    }
}

}  // namespace dw
