// The matrix product that all kernels use: C (+)= A B, sixteen columns of B at a time, or eight if it has no more.
#pragma once
#include "vec.h"

namespace dw {

// What the registers hold of C: `parts` vectors of as many rows as hide the latency of the multiply-adds.
struct Wide {
  typedef vec vector;
  static constexpr int64_t lanes = kLanes, parts = kParts, rows = 6 * (kLanes / 8);
};
struct Narrow {
  typedef vec8 vector;
  static constexpr int64_t lanes = 8, parts = 1, rows = 12;
};

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

// As many rows as the registers hold, for all panels.
template <typename Shape, int64_t Rows, bool Transposed>
__attribute__((noinline)) void multiply(const Extent& n, const float* left, const Left& a, const Right& b, float* out,
                                        const Result& c) {
  using V = typename Shape::vector;
  constexpr int64_t lanes = Shape::lanes, parts = Shape::parts;
  const int64_t left_stride = a.stride, right_stride = b.stride, out_stride = c.stride, chunk = n.chunk;
  const bool add = c.add;
  const float* right = b.data;
  for (int64_t panel = 0; panel < n.panels; ++panel, right += b.panel_step, out += c.panel_step) {
    // Prefetch C, which may be far away and is needed last.
    if (add)
      for (int64_t i = 0; i < Rows; ++i) __builtin_prefetch(out + i * out_stride, 1);
    V sum[Rows][parts] = {};
    const float* y = right;
    for (int64_t step = 0; step < n.chunks; ++step) {
      const float* x = left + step * a.chunk_step;
      for (int64_t p = 0; p < chunk; ++p) {
        V row[parts];
        for (int64_t j = 0; j < parts; ++j) row[j] = *reinterpret_cast<const V*>(y + j * lanes);
        for (int64_t i = 0; i < Rows; ++i) {
          const V value = (Transposed ? x[i] : x[i * left_stride]) - V{};
          for (int64_t j = 0; j < parts; ++j) sum[i][j] += value * row[j];
        }
        y += right_stride;
        x += Transposed ? left_stride : 1;
      }
    }
    for (int64_t i = 0; i < Rows; ++i)
      for (int64_t j = 0; j < parts; ++j) {
        V* at = reinterpret_cast<V*>(out + i * out_stride + j * lanes);
        *at = add ? *at + sum[i][j] : sum[i][j];
      }
  }
}

template <typename Shape, bool Transposed, int64_t Rows = Shape::rows>
DW_INLINE void multiply_rows(int64_t rows, const Extent& n, const float* left, const Left& a, const Right& b,
                             float* out, const Result& c) {
  if (rows == Rows) return multiply<Shape, Rows, Transposed>(n, left, a, b, out, c);
  if constexpr (Rows > 1) multiply_rows<Shape, Transposed, Rows - 1>(rows, n, left, a, b, out, c);
}

template <bool Transposed, typename Shape = Wide>
__attribute__((noinline)) void gemm(const Extent n, const Left a, const Right b, const Result c) {
  const int64_t groups = (n.rows + Shape::rows - 1) / Shape::rows;
  for (int64_t group = 0, i = 0; group < groups; ++group) {
    // Groups of equal size: a short last group would leave the multiply-add units idle.
    const int64_t rows = n.rows / groups + (group < n.rows % groups);
    multiply_rows<Shape, Transposed>(rows, n, a.data + i * (Transposed ? 1 : a.stride), a, b, c.data + i * c.stride, c);
    i += rows;
  }
}

}  // namespace dw
