// log Σ e^x of rows of logits, and the largest values of each, in passes over a row that stays in the L2 cache.
#include <cmath>

#include "parallel.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace dw {

// Eight bytes per field, in the order of kernels/ranking.py.
struct Ranking {
  const float* x;
  float* log_sums;  // null: not wanted
  float* top;       // `count` values of each row, largest first, and their columns; null: not wanted
  int64_t* columns;
  int64_t rows, width, count, threads;
};

namespace {

constexpr int64_t kStep = 4 * kLanes;  // values that are compared at a time

DW_INLINE bool any(ivec chosen) {
#if defined(__AVX512F__) && DW_LANES == 16
  return _mm512_test_epi32_mask((__m512i)chosen, (__m512i)chosen);
#elif defined(__AVX2__) && DW_LANES == 8
  return _mm256_movemask_ps((__m256)chosen);
#else
  int32_t bits = 0;
  for (int64_t i = 0; i < kLanes; ++i) bits |= chosen[i];
  return bits;
#endif
}

DW_INLINE vec largest_of(const float* x) {
  return larger(larger(load(x), load(x + kLanes)), larger(load(x + 2 * kLanes), load(x + 3 * kLanes)));
}

float log_sum(const float* x, int64_t width) {
  const int64_t whole = width / kStep * kStep;
  float highest = -__FLT_MAX__;  // finite, so that differences are
  vec top = splat(highest);
  for (int64_t i = 0; i < whole; i += kStep) top = larger(top, largest_of(x + i));
  for (int64_t i = 0; i < kLanes; ++i) highest = std::max(highest, top[i]);
  for (int64_t i = whole; i < width; ++i) highest = std::max(highest, x[i]);
  vec sum[4] = {};
  for (int64_t i = 0; i < whole; i += kStep)
    for (int64_t j = 0; j < 4; ++j) sum[j] += exp(load(x + i + j * kLanes) - highest);
  const vec all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  float total = 0;
  for (int64_t i = 0; i < kLanes; ++i) total += all[i];
  for (int64_t i = whole; i < width; ++i) total += std::exp(x[i] - highest);
  return highest + std::log(total);
}

// Of equal values the first column comes first. NaN is never among them.
void find_top(const float* x, int64_t width, int64_t count, float* top, int64_t* columns) {
  std::fill(top, top + count, -__builtin_inff());
  std::fill(columns, columns + count, 0);
  const auto insert = [&](float value, int64_t column) {
    int64_t place = count - 1;
    for (; place > 0 && value > top[place - 1]; --place) {
      top[place] = top[place - 1];
      columns[place] = columns[place - 1];
    }
    top[place] = value;
    columns[place] = column;
  };
  const int64_t whole = width / kStep * kStep;
  for (int64_t i = 0; i < whole; i += kStep) {
    if (!any(largest_of(x + i) > splat(top[count - 1]))) continue;
    for (int64_t j = i; j < i + kStep; ++j)
      if (x[j] > top[count - 1]) insert(x[j], j);
  }
  for (int64_t i = whole; i < width; ++i)
    if (x[i] > top[count - 1]) insert(x[i], i);
}

}  // namespace
}  // namespace dw

extern "C" __attribute__((visibility("default"))) void dw_rank(const dw::Ranking* given) {
  using namespace dw;
  const Ranking p = *given;
  std::atomic<int64_t> next{0};
  run_team(std::min(p.threads, p.rows), [&] {
    for (int64_t row; (row = next++) < p.rows;) {
      const float* x = p.x + row * p.width;
      if (p.log_sums) p.log_sums[row] = log_sum(x, p.width);
      if (p.top) find_top(x, p.width, p.count, p.top + row * p.count, p.columns + row * p.count);
    }
  });
}
