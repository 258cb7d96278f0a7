// The one matrix product that everything here is made of: C (+)= A B, sixteen columns of B at a time.
#pragma once
#include "vec.h"

namespace dw {

// A's rows that share the registers: rows × parts accumulators hide the latency of the multiply-adds.
constexpr int64_t kRows = 6 * (kLanes / 8);

struct Left {  // A, in chunks along the inner dimension; element (i, p) at i * stride + p, or transposed
  const float* data;
  int64_t stride;
  int64_t chunk_step;
};
struct Right {  // B, with `panel_step` between its panels of sixteen columns
  const float* data;
  int64_t stride;
  int64_t panel_step;
};
struct Result {
  float* data;
  int64_t stride;
  int64_t panel_step;
  bool add;
};
struct Extent {
  int64_t rows, panels, chunks, chunk;
};

template <int64_t Rows, bool Transposed>
__attribute__((noinline)) void tile(const Extent n, const Left a, const Right b, const Result c) {
  vec sum[Rows][kParts];
  for (int64_t i = 0; i < Rows; ++i)
    for (int64_t j = 0; j < kParts; ++j)
      sum[i][j] = c.add ? load(c.data + i * c.stride + j * kLanes) : vec{};
  const float* right = b.data;
  for (int64_t chunk = 0; chunk < n.chunks; ++chunk) {
    const float* left = a.data + chunk * a.chunk_step;
    for (int64_t p = 0; p < n.chunk; ++p) {
      vec row[kParts];
      for (int64_t j = 0; j < kParts; ++j) row[j] = load(right + j * kLanes);
      for (int64_t i = 0; i < Rows; ++i) {
        const vec x = splat(Transposed ? left[i] : left[i * a.stride]);
        for (int64_t j = 0; j < kParts; ++j) sum[i][j] += x * row[j];
      }
      right += b.stride;
      left += Transposed ? a.stride : 1;
    }
  }
  for (int64_t i = 0; i < Rows; ++i)
    for (int64_t j = 0; j < kParts; ++j) store(c.data + i * c.stride + j * kLanes, sum[i][j]);
}

template <bool Transposed, int64_t Rows = kRows>
DW_INLINE void tile_of(int64_t rows, const Extent& n, const Left& a, const Right& b, const Result& c) {
  if (rows == Rows) return tile<Rows, Transposed>(n, a, b, c);
  if constexpr (Rows > 1) tile_of<Transposed, Rows - 1>(rows, n, a, b, c);
}

template <bool Transposed>
void gemm(const Extent n, const Left a, const Right b, const Result c) {
  const int64_t groups = (n.rows + kRows - 1) / kRows;
  for (int64_t g = 0, i = 0; g < groups; ++g) {
    // An even share each: a short last group would leave the multiply-add units waiting.
    const int64_t rows = n.rows / groups + (g < n.rows % groups);
    const Left left{a.data + i * (Transposed ? 1 : a.stride), a.stride, a.chunk_step};
    for (int64_t panel = 0; panel < n.panels; ++panel) {
      const Right right{b.data + panel * b.panel_step, b.stride, 0};
      tile_of<Transposed>(rows, n, left, right, {c.data + i * c.stride + panel * c.panel_step, c.stride, 0, c.add});
    }
    i += rows;
  }
}

}  // namespace dw
