// A linear layer in training: y = x Wᵀ + b, optionally the positive part of it, and all gradients. Sums of bias and
// choices of sign are made while a block of rows is in the cache; widths are multiples of a panel.
#include "gemm.h"
#include "pack.h"
#include "parallel.h"

namespace dw {

// Eight bytes per field, in the order of kernels/dense.py. Matrices are dense.
struct Dense {
  const float *x, *weight, *bias;          // [rows × inputs], [outputs × inputs], [outputs] or null
  float* y;                                // [rows × outputs]
  const float* grad;                       // of y
  float *grad_x, *grad_weight, *grad_bias;  // null where not wanted
  int64_t rows, inputs, outputs, relu, threads;
};

namespace {

constexpr int64_t kRows = 48;     // rows per unit of work: whole groups of the product's rows
constexpr int64_t kInner = 256;   // inner elements per product, of which panels fit the L2 cache
constexpr int64_t kChunk = 480;   // rows between which gradients of the weight are summed
constexpr int64_t kColumns = 64;  // columns of the gradient of the weight per unit: what the product takes at a time

void forward_rows(const Dense& p, const float* panels, int64_t first, int64_t count) {
  float* y = p.y + first * p.outputs;
  for (int64_t i = 0; p.bias && i < count; ++i) std::memcpy(y + i * p.outputs, p.bias, sizeof(float) * p.outputs);
  for (int64_t j = 0; j < p.inputs; j += kInner)
    gemm<false>({count, p.outputs / kPanel, 1, std::min(kInner, p.inputs - j)}, {p.x + first * p.inputs + j, p.inputs, 0},
                {panels + j * kPanel, kPanel, p.inputs * kPanel}, {y, p.outputs, kPanel, p.bias || j > 0});
  // NaN stays
  for (int64_t i = 0; p.relu && i < count * p.outputs; i += kLanes) store(y + i, load(y + i) < vec{} ? vec{} : load(y + i));
}

// The gradient of the sum before its positive part, for rows of a chunk.
void choose_rows(const Dense& p, int64_t first, int64_t count, float* chosen) {
  const float *y = p.y + first * p.outputs, *grad = p.grad + first * p.outputs;
  for (int64_t i = 0; i < count * p.outputs; i += kLanes) store(chosen + i, load(y + i) <= vec{} ? vec{} : load(grad + i));
}

void grad_rows(const Dense& p, const float* grad, int64_t first, int64_t count) {
  for (int64_t j = 0; j < p.outputs; j += kInner)
    gemm<false>({count, p.inputs / kPanel, 1, std::min(kInner, p.outputs - j)}, {grad + j, p.outputs, 0},
                {p.weight + j * p.inputs, p.inputs, kPanel}, {p.grad_x + first * p.inputs, p.inputs, kPanel, j > 0});
}

// The gradient of some rows and columns of the weight from a chunk of rows; with the first columns, that of the bias.
void grad_weights(const Dense& p, const float* grad, int64_t first, int64_t count, int64_t output, int64_t column) {
  const int64_t outputs = std::min(kRows, p.outputs - output), columns = std::min(kColumns, p.inputs - column);
  if (p.grad_weight)
    gemm<true>({outputs, columns / kPanel, 1, count}, {grad + output, p.outputs, 0},
               {p.x + first * p.inputs + column, p.inputs, kPanel},
               {p.grad_weight + output * p.inputs + column, p.inputs, kPanel, first > 0});
  for (int64_t i = 0; p.grad_bias && column == 0 && i < outputs; i += kLanes) {
    vec sum{};
    for (int64_t row = 0; row < count; ++row) sum += load(grad + row * p.outputs + output + i);
    float* to = p.grad_bias + output + i;
    store(to, first > 0 ? load(to) + sum : sum);
  }
}

}  // namespace
}  // namespace dw

// Both return 0 when done, 1 without memory.
extern "C" __attribute__((visibility("default"))) int dw_dense(const dw::Dense* given) {
  using namespace dw;
  const Dense p = *given;
  Scratch scratch;
  float* panels = reinterpret_cast<float*>(scratch.reserve(p.inputs * p.outputs * int64_t(sizeof(float))));
  if (!panels) return 1;
  bool fits = parallel(p.outputs / kPanel, p.threads, 64, [&](int64_t i, char*) {
    to_panel(p.weight + i * kPanel * p.inputs, p.inputs, kPanel, p.inputs, panels + i * kPanel * p.inputs);
  });
  fits &= parallel(ceil_div(p.rows, kRows), p.threads, 64, [&](int64_t unit, char*) {
    forward_rows(p, panels, unit * kRows, std::min(kRows, p.rows - unit * kRows));
  });
  return fits ? 0 : 1;
}

extern "C" __attribute__((visibility("default"))) int dw_dense_backward(const dw::Dense* given) {
  using namespace dw;
  const Dense p = *given;
  Scratch scratch;
  float* chosen = nullptr;
  if (p.relu && !(chosen = reinterpret_cast<float*>(scratch.reserve(kChunk * p.outputs * int64_t(sizeof(float)))))) return 1;
  bool fits = true;
  for (int64_t first = 0; first < p.rows; first += kChunk) {
    const int64_t count = std::min(kChunk, p.rows - first);
    const float* grad = chosen ? chosen : p.grad + first * p.outputs;
    fits &= parallel(ceil_div(count, kRows), p.threads, 64, [&](int64_t unit, char*) {
      const int64_t row = unit * kRows, rows = std::min(kRows, count - row);
      if (chosen) choose_rows(p, first + row, rows, chosen + row * p.outputs);
      if (p.grad_x) grad_rows(p, grad + row * p.outputs, first + row, rows);
    });
    const int64_t pieces = ceil_div(p.inputs, kColumns);
    fits &= parallel(ceil_div(p.outputs, kRows) * pieces, p.threads, 64, [&](int64_t unit, char*) {
      grad_weights(p, grad, first, count, unit / pieces * kRows, unit % pieces * kColumns);
    });
  }
  return fits ? 0 : 1;
}
