// What ends a residual block: x + dropout(branch), and its layer norm. Rows are independent; each is read once.
#include <cmath>

#include "dropout.h"
#include "parallel.h"

namespace dw {

// Eight bytes per field, in the order of kernels/residual.py. Tensors are dense [rows × width].
struct Residual {
  const void *x, *branch;       // x may be null: dropout alone
  const float *weight, *bias;   // of the norm; null without one
  void* out;                    // the type of x, or of the branch if there is no x
  float* statistics;            // per row: mean, 1 / deviation
  const void* grad;
  void *grad_x, *grad_branch;
  float* grad_norm;             // [2 × width]: of the weight, then of the bias
  int64_t x_is_bf16, branch_is_bf16, rows, width;
  uint64_t seed;
  double dropout, eps;
  int64_t threads;
};

namespace {

constexpr int64_t kRows = 64;  // rows per unit of work, whatever the number of threads: sums then have one order

// Call step(column, count) for each vector of a row; the last may have fewer than kLanes elements.
template <typename Step>
DW_INLINE void along_row(int64_t width, const Step& step) {
  int64_t j = 0;
  for (; j + kLanes <= width; j += kLanes) step(j, kLanes);
  if (j < width) step(j, width - j);
}

template <typename T>
DW_INLINE vec load_some(const T* p, int64_t count) {
  if (count == kLanes) return load(p);
  vec x{};
  for (int64_t i = 0; i < count; ++i) x[i] = load1(p + i);
  return x;
}

template <typename T>
DW_INLINE void store_some(T* p, vec x, int64_t count) {
  if (count == kLanes) return store(p, x);
  for (int64_t i = 0; i < count; ++i) store1(p + i, x[i]);
}

DW_INLINE vec first_lanes(vec x, int64_t count) {
  for (int64_t i = count; i < kLanes; ++i) x[i] = 0.f;
  return x;
}

DW_INLINE float sum_lanes(vec x) {
  float sum = 0;
  for (int64_t i = 0; i < kLanes; ++i) sum += x[i];
  return sum;
}

// x + dropout(branch) of a row, in fp32, and optionally what dropout multiplies by; return its sum.
template <typename X, typename B>
DW_INLINE float join_row(const Residual& p, const RowDropout& dropout, int64_t row, float* joined, float* factors) {
  const X* x = p.x ? static_cast<const X*>(p.x) + row * p.width : nullptr;
  const B* branch = static_cast<const B*>(p.branch) + row * p.width;
  vec sum{};
  along_row(p.width, [&](int64_t j, int64_t count) {
    const vec factor = dropout.factor(j);
    const vec kept = load_some(branch + j, count) * factor;
    const vec value = x ? load_some(x + j, count) + kept : kept;
    if (factors) store(factors + j, factor);
    store(joined + j, value);
    sum += value;
  });
  return sum_lanes(sum);
}

template <typename X, typename B>
void forward_row(const Residual& p, const RowDropout& dropout, int64_t row, float* joined) {
  const float mean = join_row<X, B>(p, dropout, row, joined, nullptr) / float(p.width);
  X* out = static_cast<X*>(p.out) + row * p.width;
  if (!p.weight) {
    along_row(p.width, [&](int64_t j, int64_t count) { store_some(out + j, load(joined + j), count); });
    return;
  }
  vec squares{};
  along_row(p.width, [&](int64_t j, int64_t count) {
    const vec x = first_lanes(load(joined + j) - mean, count);
    squares += x * x;
  });
  const float inverse = 1 / std::sqrt(sum_lanes(squares) / float(p.width) + float(p.eps));
  p.statistics[2 * row] = mean;
  p.statistics[2 * row + 1] = inverse;
  along_row(p.width, [&](int64_t j, int64_t count) {
    const vec x = (load(joined + j) - mean) * inverse;
    store_some(out + j, x * load_some(p.weight + j, count) + load_some(p.bias + j, count), count);
  });
}

// With y = (joined − mean) / deviation and g = grad ⊙ weight: (g − mean(g) − y mean(g ⊙ y)) / deviation.
template <typename X, typename B>
void backward_row(const Residual& p, const RowDropout& dropout, int64_t row, float* y, float* factors, float* sums) {
  const int64_t padded = round_up(p.width, kLanes);
  join_row<X, B>(p, dropout, row, y, factors);
  const float mean = p.statistics[2 * row], inverse = p.statistics[2 * row + 1];
  const X* grad = static_cast<const X*>(p.grad) + row * p.width;
  vec sum{}, product{};
  along_row(p.width, [&](int64_t j, int64_t count) {
    const vec of_norm = load_some(grad + j, count), g = of_norm * load_some(p.weight + j, count);
    const vec normed = (load(y + j) - mean) * inverse;
    store(y + j, normed);
    sum += g;
    product += g * normed;
    store(sums + j, load(sums + j) + of_norm * normed);
    store(sums + padded + j, load(sums + padded + j) + of_norm);
  });
  const float center = sum_lanes(sum) / float(p.width), slope = sum_lanes(product) / float(p.width);
  X* grad_x = static_cast<X*>(p.grad_x) + row * p.width;
  B* grad_branch = static_cast<B*>(p.grad_branch) + row * p.width;
  along_row(p.width, [&](int64_t j, int64_t count) {
    const vec g = load_some(grad + j, count) * load_some(p.weight + j, count);
    const vec result = (g - center - load(y + j) * slope) * inverse;
    store_some(grad_x + j, result, count);
    store_some(grad_branch + j, result * load(factors + j), count);
  });
}

// Run body(row, dropout, memory) for all rows; `finish(unit, memory)` follows the last row of a unit.
template <typename Body, typename Finish>
bool each_row(const Residual& p, int64_t floats, const Body& body, const Finish& finish) {
  return parallel(ceil_div(p.rows, kRows), p.threads, floats * int64_t(sizeof(float)), [&](int64_t unit, char* bytes) {
    float* memory = reinterpret_cast<float*>(bytes);
    std::fill(memory, memory + floats, 0.f);
    RowDropout dropout(p.dropout, p.seed);
    for (int64_t row = unit * kRows; row < std::min(p.rows, (unit + 1) * kRows); ++row) {
      dropout.seed_row(row);
      body(row, dropout, memory);
    }
    finish(unit, memory);
  });
}

template <typename X, typename B>
int forward(const Residual& p) {
  const auto row = [&](int64_t i, const RowDropout& dropout, float* memory) { forward_row<X, B>(p, dropout, i, memory); };
  return each_row(p, round_up(p.width, kPanel), row, [](int64_t, float*) {}) ? 0 : 1;
}

template <typename X, typename B>
int backward(const Residual& p) {
  const int64_t width = round_up(p.width, kLanes), units = ceil_div(p.rows, kRows);
  Scratch scratch;
  float* partial = reinterpret_cast<float*>(scratch.reserve(units * 2 * width * int64_t(sizeof(float))));
  if (!partial) return 1;
  const auto row = [&](int64_t i, const RowDropout& dropout, float* memory) {
    backward_row<X, B>(p, dropout, i, memory, memory + width, memory + 2 * width);
  };
  const auto keep = [&](int64_t unit, float* memory) {
    std::memcpy(partial + unit * 2 * width, memory + 2 * width, 2 * width * sizeof(float));
  };
  if (!each_row(p, 4 * width, row, keep)) return 1;
  for (int64_t half = 0; half < 2; ++half)
    for (int64_t j = 0; j < p.width; ++j) {
      float sum = 0;
      for (int64_t unit = 0; unit < units; ++unit) sum += partial[(2 * unit + half) * width + j];
      p.grad_norm[half * p.width + j] = sum;
    }
  return 0;
}

}  // namespace
}  // namespace dw

// Both return 0 when done, 1 without memory. A branch in fp32 is not added to x in bf16.
extern "C" __attribute__((visibility("default"))) int dw_residual(const dw::Residual* given) {
  using namespace dw;
  if (given->x_is_bf16) return forward<bfloat16, bfloat16>(*given);
  return given->branch_is_bf16 ? forward<float, bfloat16>(*given) : forward<float, float>(*given);
}

extern "C" __attribute__((visibility("default"))) int dw_residual_backward(const dw::Residual* given) {
  using namespace dw;
  if (given->x_is_bf16) return backward<bfloat16, bfloat16>(*given);
  return given->branch_is_bf16 ? backward<float, bfloat16>(*given) : backward<float, float>(*given);
}
