// Dot products of one vector with eight rows at a time.
#pragma once
#include "vec.h"

namespace dw {

// Sum each of eight vectors: eight dot products side by side.
DW_INLINE vec8 sum_each(const vec8 (&x)[8]) {
  vec8 pair[4], quad[2];
  for (int i = 0; i < 4; ++i)
    pair[i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13) +
              __builtin_shufflevector(x[2 * i], x[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  for (int i = 0; i < 2; ++i)
    quad[i] = __builtin_shufflevector(pair[2 * i], pair[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
              __builtin_shufflevector(pair[2 * i], pair[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
  return __builtin_shufflevector(quad[0], quad[1], 0, 1, 2, 3, 8, 9, 10, 11) +
         __builtin_shufflevector(quad[0], quad[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

// Ask for the memory of a row `ahead` elements from here, as far as the L2 cache.
template <typename T>
DW_INLINE void prefetch(const T* row, int64_t ahead) {
  __builtin_prefetch(row + ahead, 0, 2);
}

// The products of a query with eight rows; of fewer at the end, where the last is repeated. The next rows are `ahead`
// elements from here.
template <typename T>
DW_INLINE vec8 dot_rows(const float* q, const T* first, int64_t stride, int64_t rows, int64_t width, int64_t ahead) {
  const T* row[8];
  for (int64_t i = 0; i < 8; ++i, first += i < rows ? stride : 0) row[i] = first;
  vec8 sum[8] = {};
  int64_t j = 0;
  for (; j + 8 <= width; j += 8) {
    const vec8 part = load8(q + j);
    for (int i = 0; i < 8; ++i) sum[i] += part * load8(row[i] + j);
    if (j % 16 == 0)
      for (int i = 0; i < 8; ++i) prefetch(row[i] + j, ahead);
  }
  vec8 product = sum_each(sum);
  for (; j < width; ++j)
    for (int i = 0; i < 8; ++i) product[i] += q[j] * load1(row[i] + j);
  return product;
}

}  // namespace dw
