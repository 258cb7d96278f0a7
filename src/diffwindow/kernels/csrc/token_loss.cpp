// Cross-entropy over a vocabulary: logits, softmax, loss and both gradients, a block of tokens at a time. Tokens lie side by
// side in panels, so that sums over the vocabulary are vertical. A block's logits are kept in tiles of the vocabulary; the
// product that makes a tile, its exponentials, and the product that makes the gradient of its weights follow each other while
// it is in the cache.
#include <cmath>

#include "gemm.h"
#include "pack.h"
#include "parallel.h"

namespace dw {

// Eight bytes per field, in the order of kernels/token_loss.py.
struct TokenLoss {
  const float *hidden, *weight;
  const int64_t* labels;
  float *nll, *mean_nll;             // per token: of its label, and the mean over the vocabulary
  float *grad_hidden, *grad_weight;  // of the sum over tokens; dense; null where not wanted
  int64_t tokens, width, vocabulary, hidden_stride, weight_stride;
  double smoothing;
  int64_t threads;
};

namespace {

constexpr int64_t kWords = 120;   // words per tile: whole groups of the product's rows, and no power of two
constexpr int64_t kInputs = 256;  // inputs of which panels fit the L2 cache
constexpr int64_t kGroup = 4;     // panels per unit of the gradient of the hidden states
constexpr int64_t kOutputs = 128;  // its width per unit
constexpr int64_t kBlockFloats = 1 << 15;  // of the hidden states of a block
constexpr int64_t kMinPanels = 8, kMaxPanels = 32;

struct Block {
  const TokenLoss& p;
  int64_t first, tokens, panels;   // of this block
  int64_t capacity;                // panels that the memory holds
  int64_t tiles, padded_width;
  float *rows, *columns;           // the hidden states as [token × padded width], and as panels [width × 16]
  float* logits;                   // [tile × panel × kWords × 16]
  float *largest, *sums, *totals;  // [tile × token]: maximum, Σ e^(logit − maximum), Σ logit
  int64_t bytes;

  Block(const TokenLoss& problem, char* memory) : p(problem) {
    capacity = std::min(std::max(kBlockFloats / p.width / kPanel, kMinPanels), kMaxPanels);
    capacity = std::min(capacity, ceil_div(p.tokens, kPanel));
    tiles = ceil_div(p.vocabulary, kWords);
    padded_width = round_up(p.width, kPanel);
    Arena arena(memory);
    const int64_t count = capacity * kPanel;
    rows = arena.floats(count * padded_width);
    columns = arena.floats(count * p.width);
    logits = arena.floats(tiles * kWords * count);
    largest = arena.floats(tiles * count);
    sums = arena.floats(tiles * count);
    totals = arena.floats(tiles * count);
    bytes = arena.used();
  }
  int64_t words(int64_t tile) const { return std::min(kWords, p.vocabulary - tile * kWords); }
  float* panel(int64_t tile, int64_t index) const { return logits + (tile * capacity + index) * kWords * kPanel; }
  int64_t statistic(int64_t tile, int64_t index) const { return (tile * capacity + index) * kPanel; }

  void begin(int64_t from) {
    first = from;
    tokens = std::min(capacity * kPanel, p.tokens - first);
    panels = ceil_div(tokens, kPanel);
    copy_rows(p.hidden + first * p.hidden_stride, p.hidden_stride, tokens, p.width, rows, padded_width, 1.f);
    std::memset(rows + tokens * padded_width, 0, sizeof(float) * (panels * kPanel - tokens) * padded_width);
    for (int64_t i = 0; i < panels; ++i)
      to_panel(rows + i * kPanel * padded_width, padded_width, kPanel, p.width, columns + i * p.width * kPanel);
  }
  // The tokens whose label is in a tile: call visit(token, word of the tile).
  template <typename Visit>
  void visit_labels(int64_t tile, const Visit& visit) const {
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t word = p.labels[first + i] - tile * kWords;
      if (word >= 0 && word < words(tile)) visit(i, word);
    }
  }
};

// The logits of a tile, replaced by e^(logit − maximum).
void make_tile(const Block& b, int64_t tile) {
  const TokenLoss& p = b.p;
  const int64_t count = b.words(tile);
  for (int64_t j = 0; j < p.width; j += kInputs)
    gemm<false>({count, b.panels, 1, std::min(kInputs, p.width - j)},
                {p.weight + tile * kWords * p.weight_stride + j, p.weight_stride, 0},
                {b.columns + j * kPanel, kPanel, p.width * kPanel},
                {b.panel(tile, 0), kPanel, kWords * kPanel, j > 0});
  b.visit_labels(tile, [&](int64_t i, int64_t word) {
    p.nll[b.first + i] = -b.panel(tile, i / kPanel)[word * kPanel + i % kPanel];
  });
  for (int64_t i = 0; i < b.panels; ++i)
    for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
      float* x = b.panel(tile, i) + lane;
      vec largest = load(x), total{}, sum{};
      for (int64_t word = 0; word < count; ++word) {
        const vec logit = load(x + word * kPanel);
        largest = larger(largest, logit);
        total += logit;
      }
      for (int64_t word = 0; word < count; ++word) {
        const vec e = exp(load(x + word * kPanel) - largest);
        sum += e;
        store(x + word * kPanel, e);
      }
      const int64_t at = b.statistic(tile, i) + lane;
      store(b.largest + at, largest);
      store(b.sums + at, sum);
      store(b.totals + at, total);
    }
}

// The logarithm of each token's sum, its losses, and in the place of `largest` the factors that make probabilities.
void finish_rows(const Block& b, int64_t i) {
  const TokenLoss& p = b.p;
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    vec largest = load(b.largest + b.statistic(0, i) + lane), sum{}, total{};
    for (int64_t tile = 1; tile < b.tiles; ++tile)
      largest = larger(largest, load(b.largest + b.statistic(tile, i) + lane));
    for (int64_t tile = 0; tile < b.tiles; ++tile) {
      const int64_t at = b.statistic(tile, i) + lane;
      sum += load(b.sums + at) * exp(load(b.largest + at) - largest);
      total += load(b.totals + at);
    }
    vec log_z = largest;
    for (int64_t j = 0; j < kLanes; ++j) log_z[j] += std::log(sum[j]);
    for (int64_t j = 0; j < kLanes; ++j) {
      const int64_t token = i * kPanel + lane + j;
      if (token >= b.tokens) break;
      p.nll[b.first + token] += log_z[j];
      p.mean_nll[b.first + token] = log_z[j] - total[j] / float(p.vocabulary);
    }
    for (int64_t tile = 0; tile < b.tiles; ++tile) {
      const int64_t at = b.statistic(tile, i) + lane;
      // one rounding less than a difference to log_z
      store(b.largest + at, exp(load(b.largest + at) - largest) / sum);
    }
  }
}

// The gradients of a tile's logits in their place, p − (1 − ε) onehot − ε/v, and that of its rows of the weight.
void differentiate_tile(const Block& b, int64_t tile, float* memory) {
  const TokenLoss& p = b.p;
  const int64_t count = b.words(tile);
  const float even = float(p.smoothing / double(p.vocabulary));
  for (int64_t i = 0; i < b.panels; ++i)
    for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
      float* x = b.panel(tile, i) + lane;
      const vec factor = load(b.largest + b.statistic(tile, i) + lane);
      for (int64_t word = 0; word < count; ++word) store(x + word * kPanel, load(x + word * kPanel) * factor - even);
    }
  b.visit_labels(tile, [&](int64_t i, int64_t word) {
    b.panel(tile, i / kPanel)[word * kPanel + i % kPanel] -= float(1 - p.smoothing);
  });
  if (!p.grad_weight) return;
  const bool add = b.first > 0, in_place = b.padded_width == p.width;
  float* grad = p.grad_weight + tile * kWords * p.width;
  const Result result = in_place ? Result{grad, p.width, kPanel, add} : Result{memory, b.padded_width, kPanel, false};
  gemm<false>({count, b.padded_width / kPanel, b.panels, kPanel}, {b.panel(tile, 0), kPanel, kWords * kPanel},
              {b.rows, b.padded_width, kPanel}, result);
  for (int64_t i = 0; !in_place && i < count; ++i)
    for (int64_t j = 0; j < p.width; ++j) {
      float& to = grad[i * p.width + j];
      to = memory[i * b.padded_width + j] + (add ? to : 0.f);
    }
}

// The gradient of some columns of some panels of the hidden states.
void differentiate_hidden(const Block& b, int64_t panel, int64_t column, float* memory) {
  const TokenLoss& p = b.p;
  const int64_t panels = std::min(kGroup, b.panels - panel), columns = std::min(kOutputs, p.width - column);
  for (int64_t tile = 0; tile < b.tiles; ++tile)
    gemm<true>({columns, panels, 1, b.words(tile)}, {p.weight + tile * kWords * p.weight_stride + column, p.weight_stride, 0},
               {b.panel(tile, panel), kPanel, kWords * kPanel}, {memory, kPanel, columns * kPanel, tile > 0});
  alignas(64) float ones[kPanel];
  std::fill(ones, ones + kPanel, 1.f);
  for (int64_t i = 0; i < panels; ++i) {
    const int64_t token = (panel + i) * kPanel;
    from_panel(memory + i * columns * kPanel, ones, std::min(kPanel, b.tokens - token), columns,
               p.grad_hidden + (b.first + token) * p.width + column, p.width);
  }
}

bool run_block(const Block& b) {
  const TokenLoss& p = b.p;
  bool fits = parallel(b.tiles, p.threads, 64, [&](int64_t tile, char*) { make_tile(b, tile); });
  for (int64_t i = 0; i < b.panels; ++i) finish_rows(b, i);
  if (!p.grad_hidden && !p.grad_weight) return fits;
  fits &= parallel(b.tiles, p.threads, int64_t(sizeof(float)) * kWords * b.padded_width,
                   [&](int64_t tile, char* memory) { differentiate_tile(b, tile, reinterpret_cast<float*>(memory)); });
  if (!p.grad_hidden) return fits;
  const int64_t pieces = ceil_div(p.width, kOutputs);
  return fits & parallel(ceil_div(b.panels, kGroup) * pieces, p.threads, int64_t(sizeof(float)) * kGroup * kOutputs * kPanel,
                         [&](int64_t unit, char* memory) {
                           differentiate_hidden(b, unit / pieces * kGroup, unit % pieces * kOutputs,
                                                reinterpret_cast<float*>(memory));
                         });
}

}  // namespace
}  // namespace dw

// Return 0 when done, 1 without memory.
extern "C" __attribute__((visibility("default"))) int dw_token_loss(const dw::TokenLoss* given) {
  using namespace dw;
  const TokenLoss p = *given;
  Scratch scratch;
  char* memory = scratch.reserve(Block(p, nullptr).bytes);
  if (!memory) return 1;
  Block block(p, memory);
  for (int64_t first = 0; first < p.tokens; first += block.capacity * kPanel) {
    block.begin(first);
    if (!run_block(block)) return 1;
  }
  return 0;
}
