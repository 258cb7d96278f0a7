// The matrix product that all kernels use: C (+)= A B. B has panels of sixteen columns, of which AVX-512 takes up to four
// at a time, or a single one of eight.
#pragma once
#include "vec.h"

namespace dw {

// What the registers hold of C: `parts` vectors of each of `rows` rows and `panels` panels. Enough to hide the latency of the
// multiply-adds, and enough panels that elements of A, each loaded for one row, do not keep them waiting for loads.
struct Wide {
  typedef vec vector;
  static constexpr int64_t lanes = kLanes, parts = kParts, panels = 1, rows = 6 * (kLanes / 8);
};
struct Narrow {
  typedef vec8 vector;
  static constexpr int64_t lanes = 8, parts = 1, panels = 1, rows = 12;
};
#if DW_LANES == 16
struct WidePair : Wide {
  static constexpr int64_t panels = 2;
};
struct WideQuad : Wide {
  static constexpr int64_t panels = 4, rows = 6;
};
#endif

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
  constexpr int64_t lanes = Shape::lanes, parts = Shape::parts, columns = Shape::panels * parts;
  const int64_t left_stride = a.stride, right_stride = b.stride, out_stride = c.stride, chunk = n.chunk;
  const auto place = [](int64_t column, int64_t panel_step) { return column / parts * panel_step + column % parts * lanes; };
  const int64_t right_step = b.panel_step, out_step = c.panel_step;
  const bool add = c.add;
  const float* right = b.data;
  for (int64_t panel = 0; panel < n.panels; panel += Shape::panels) {
    // Prefetch C, which may be far away and is needed last.
    if (add)
      for (int64_t i = 0; i < Rows; ++i)
        for (int64_t j = 0; j < columns; j += parts) __builtin_prefetch(out + i * out_stride + place(j, out_step), 1);
    V sum[Rows][columns] = {};
    const float* y = right;
    for (int64_t step = 0; step < n.chunks; ++step) {
      const float* x = left + step * a.chunk_step;
      for (int64_t p = 0; p < chunk; ++p) {
        V row[columns];
        for (int64_t j = 0; j < columns; ++j) row[j] = *reinterpret_cast<const V*>(y + place(j, right_step));
        for (int64_t i = 0; i < Rows; ++i) {
          const V value = (Transposed ? x[i] : x[i * left_stride]) - V{};
          for (int64_t j = 0; j < columns; ++j) sum[i][j] += value * row[j];
        }
        y += right_stride;
        x += Transposed ? left_stride : 1;
      }
    }
#pragma GCC unroll 12
    for (int64_t i = 0; i < Rows; ++i)
#pragma GCC unroll 4
      for (int64_t j = 0; j < columns; ++j) {
        V* at = reinterpret_cast<V*>(out + i * out_stride + place(j, out_step));
        *at = add ? *at + sum[i][j] : sum[i][j];
      }
    right += Shape::panels * right_step;
    out += Shape::panels * out_step;
  }
}

template <typename Shape, bool Transposed, int64_t Rows = Shape::rows>
DW_INLINE void multiply_rows(int64_t rows, const Extent& n, const float* left, const Left& a, const Right& b,
                             float* out, const Result& c) {
  if (rows == Rows) return multiply<Shape, Rows, Transposed>(n, left, a, b, out, c);
  if constexpr (Rows > 1) multiply_rows<Shape, Transposed, Rows - 1>(rows, n, left, a, b, out, c);
}

// A number of panels that the shape divides.
template <bool Transposed, typename Shape>
__attribute__((noinline)) void multiply_panels(const Extent n, const Left a, const Right b, const Result c) {
  const int64_t groups = (n.rows + Shape::rows - 1) / Shape::rows;
  for (int64_t group = 0, i = 0; group < groups; ++group) {
    // Groups of equal size: a short last group would leave the multiply-add units idle.
    const int64_t rows = n.rows / groups + (group < n.rows % groups);
    multiply_rows<Shape, Transposed>(rows, n, a.data + i * (Transposed ? 1 : a.stride), a, b, c.data + i * c.stride, c);
    i += rows;
  }
}

template <bool Transposed>
DW_INLINE void gemm(const Extent n, const Left a, const Right b, const Result c) {
  int64_t done = 0;
  const auto take = [&](auto shape, int64_t panels) {
    multiply_panels<Transposed, decltype(shape)>({n.rows, panels, n.chunks, n.chunk}, a,
                                                 {b.data + done * b.panel_step, b.stride, b.panel_step},
                                                 {c.data + done * c.panel_step, c.stride, c.panel_step, c.add});
    done += panels;
  };
#if DW_LANES == 16
  if (n.panels >= 4) take(WideQuad{}, n.panels / 4 * 4);
  if (n.panels - done >= 2) take(WidePair{}, 2);
#endif
  if (done < n.panels) take(Wide{}, n.panels - done);
}

}  // namespace dw
