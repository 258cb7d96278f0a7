// Conversions between the caller's tensors and the kernels' fp32 layouts.
#pragma once
#include "problem.h"

namespace dw {

template <typename T>
void copy_rows(const T* from, int64_t from_stride, int64_t rows, int64_t width, float* to, int64_t to_stride,
               float scale) {
  for (int64_t i = 0; i < rows; ++i) {
    const T* source = from + i * from_stride;
    float* target = to + i * to_stride;
    int64_t j = 0;
    for (; j + 8 <= width; j += 8) store8(target + j, load8(source + j) * scale);
    for (; j < width; ++j) target[j] = load1(source + j) * scale;
    for (; j < to_stride; ++j) target[j] = 0.f;
  }
}

template <typename T>
void write_rows(const float* from, int64_t from_stride, int64_t rows, int64_t width, T* to, int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* source = from + i * from_stride;
    T* target = to + i * to_stride;
    int64_t j = 0;
    for (; j + 8 <= width; j += 8) store8(target + j, load8(source + j));
    for (; j < width; ++j) store1(target + j, source[j]);
  }
}

// Rows [rows × width] to a panel [width × 16]; missing rows are zeros.
inline void to_panel(const float* from, int64_t stride, int64_t rows, int64_t width, float* panel) {
  int64_t j = 0;
  for (; j + 8 <= width; j += 8) {
    for (int64_t half = 0; half < kPanel; half += 8) {
      vec8 block[8];
      for (int64_t i = 0; i < 8; ++i)
        block[i] = half + i < rows ? load8(from + (half + i) * stride + j) : vec8{};
      transpose8(block);
      for (int64_t i = 0; i < 8; ++i) store8(panel + (j + i) * kPanel + half, block[i]);
    }
  }
  for (; j < width; ++j)
    for (int64_t i = 0; i < kPanel; ++i) panel[j * kPanel + i] = i < rows ? from[i * stride + j] : 0.f;
}

// A panel [width × 16] to rows of the caller's type, each times its own factor.
template <typename T>
void from_panel(const float* panel, const float* factor, int64_t rows, int64_t width, T* to, int64_t stride) {
  int64_t j = 0;
  for (; j + 8 <= width; j += 8) {
    for (int64_t half = 0; half < rows; half += 8) {
      vec8 block[8];
      for (int64_t i = 0; i < 8; ++i) block[i] = load8(panel + (j + i) * kPanel + half) * load8(factor + half);
      transpose8(block);
      for (int64_t i = 0; i < 8 && half + i < rows; ++i) store8(to + (half + i) * stride + j, block[i]);
    }
  }
  for (; j < width; ++j)
    for (int64_t i = 0; i < rows; ++i) store1(to + i * stride + j, panel[j * kPanel + i] * factor[i]);
}

// Add a panel [width × 16] to rows of floats.
inline void add_panel(const float* panel, int64_t rows, int64_t width, float* to, int64_t stride) {
  int64_t j = 0;
  for (; j + 8 <= width; j += 8) {
    for (int64_t half = 0; half < rows; half += 8) {
      vec8 block[8];
      for (int64_t i = 0; i < 8; ++i) block[i] = load8(panel + (j + i) * kPanel + half);
      transpose8(block);
      for (int64_t i = 0; i < 8 && half + i < rows; ++i) {
        float* at = to + (half + i) * stride + j;
        store8(at, load8(at) + block[i]);
      }
    }
  }
  for (; j < width; ++j)
    for (int64_t i = 0; i < rows; ++i) to[i * stride + j] += panel[j * kPanel + i];
}

// Matrices [rows × width] in fp32: the caller's own memory where it serves, else a copy.
struct Matrix {
  const float* data;
  int64_t stride;
};

inline Matrix copy_head(const Attention& p, const Tensor& t, int64_t b, int64_t h, int64_t rows, int64_t width,
                        float* copy) {
  if (p.is_bf16)
    copy_rows(row_of<bfloat16>(t, b, h, 0), t.row, rows, width, copy, width, 1.f);
  else
    copy_rows(row_of<float>(t, b, h, 0), t.row, rows, width, copy, width, 1.f);
  return {copy, width};
}

// Only dense rows are used in place: rows far apart compete for the same cache sets and take a page each.
DW_INLINE bool needs_copy(const Attention& p, const Tensor& t, int64_t width) { return p.is_bf16 || t.row != width; }

// Queries [query, query + rows) times `scale`: rows, zero-padded to `stride`, and their panels. Those that see no key
// are zeros, for a product with a weight of 0 would keep their NaN; `blind` may be null.
inline void load_queries(const Attention& p, const Tensor& t, int64_t b, int64_t h, int64_t query, int64_t rows,
                         int64_t width, float scale, const bool* blind, float* natural, int64_t stride, float* panels) {
  if (p.is_bf16)
    copy_rows(row_of<bfloat16>(t, b, h, query), t.row, rows, width, natural, stride, scale);
  else
    copy_rows(row_of<float>(t, b, h, query), t.row, rows, width, natural, stride, scale);
  for (int64_t i = 0; blind && i < rows; ++i)
    if (blind[i]) std::memset(natural + i * stride, 0, sizeof(float) * stride);
  const int64_t padded = round_up(rows, kPanel);
  std::memset(natural + rows * stride, 0, sizeof(float) * (padded - rows) * stride);
  for (int64_t i = 0; i < rows; i += kPanel)
    to_panel(natural + i * stride, stride, kPanel, width, panels + i * width);
}

inline void store_queries(const Attention& p, const Tensor& t, int64_t b, int64_t h, int64_t query, int64_t rows,
                          int64_t width, const float* panel, const float* factor) {
  if (p.is_bf16)
    from_panel(panel, factor, rows, width, row_of<bfloat16>(t, b, h, query), t.row);
  else
    from_panel(panel, factor, rows, width, row_of<float>(t, b, h, query), t.row);
}

}  // namespace dw
