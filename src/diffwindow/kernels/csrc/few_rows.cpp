// A linear layer for few rows, as in a step of decoding: y = x Wᵀ + b. W is read once, where it lies. A library that packs
// W first, as pays for many rows, takes longer to copy it than to multiply.
#include "dots.h"
#include "gemm.h"
#include "pack.h"
#include "parallel.h"

namespace dw {

// Eight bytes per field, in the order of kernels/few_rows.py.
struct FewRows {
  const float *x, *weight, *bias;  // the bias may be null
  float* y;
  int64_t rows, inputs, outputs, weight_stride, threads;
};

namespace {

constexpr int64_t kOutputs = 48;  // outputs per unit of work: whole groups of the product's rows
constexpr int64_t kInputs = 256;  // inputs of which a panel fits the L1 cache

// A row of outputs: dot products, which wait for memory only.
void multiply_row(const FewRows& p, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; i += 8) {
    const int64_t stride = p.weight_stride, rows = std::min<int64_t>(8, last - i);
    const vec8 y = dot_rows(p.x, p.weight + i * stride, stride, rows, p.inputs, 8 * stride);
    for (int64_t j = 0; j < rows; ++j) p.y[i + j] = y[j] + (p.bias ? p.bias[i + j] : 0.f);
  }
}

// The same for rows that are the columns of `panels`.
void multiply_rows(const FewRows& p, int64_t first, int64_t last, const float* panels, float* tile) {
  const int64_t count = ceil_div(p.rows, kPanel), outputs = last - first;
  for (int64_t panel = 0; panel < count; ++panel)
    for (int64_t i = 0; i < outputs; ++i) {
      float* row = tile + (panel * kOutputs + i) * kPanel;
      std::fill(row, row + kPanel, p.bias ? p.bias[first + i] : 0.f);
    }
  for (int64_t j = 0; j < p.inputs; j += kInputs)
    gemm<false>({outputs, count, 1, std::min(kInputs, p.inputs - j)},
                {p.weight + first * p.weight_stride + j, p.weight_stride, 0},
                {panels + j * kPanel, kPanel, p.inputs * kPanel}, {tile, kPanel, kOutputs * kPanel, true});
  alignas(64) float ones[kPanel];
  std::fill(ones, ones + kPanel, 1.f);
  for (int64_t i = 0; i < count; ++i)
    from_panel(tile + i * kOutputs * kPanel, ones, std::min(kPanel, p.rows - i * kPanel), outputs,
               p.y + i * kPanel * p.outputs + first, p.outputs);
}

struct Workspace {
  float *panels, *tile;
  int64_t bytes;
  Workspace(const FewRows& p, char* memory) {
    Arena arena(memory);
    const int64_t count = ceil_div(p.rows, kPanel);
    panels = arena.floats(count * p.inputs * kPanel);
    tile = arena.floats(count * kOutputs * kPanel);
    bytes = arena.used();
  }
};

}  // namespace
}  // namespace dw

// Return 0 when done, 1 without memory.
extern "C" __attribute__((visibility("default"))) int dw_few_rows(const dw::FewRows* given) {
  using namespace dw;
  const FewRows p = *given;
  const int64_t units = ceil_div(p.outputs, kOutputs), bytes = Workspace(p, nullptr).bytes;
  std::atomic<int64_t> next{0};
  std::atomic<bool> fits{true};
  // Not `parallel`: each thread makes panels of its own once, for all its units.
  run_team(std::min(p.threads, units), [&] {
    char* memory = thread_scratch().reserve(bytes);
    if (!memory) {
      fits = false;
      return;
    }
    const Workspace w(p, memory);
    for (int64_t i = 0; p.rows > 1 && i < p.rows; i += kPanel)
      to_panel(p.x + i * p.inputs, p.inputs, std::min(kPanel, p.rows - i), p.inputs, w.panels + i * p.inputs);
    for (int64_t unit; (unit = next++) < units;) {
      const int64_t first = unit * kOutputs, last = std::min(first + kOutputs, p.outputs);
      if (p.rows == 1)
        multiply_row(p, first, last);
      else
        multiply_rows(p, first, last, w.panels, w.tile);
    }
    thread_scratch().trim();
  });
  return fits ? 0 : 1;
}
