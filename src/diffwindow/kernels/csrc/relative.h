// Relative positions (Shaw et al. 2018): tables with a row for each distance from −size to size, beyond which distances are
// clipped; queries are the last of the keys. A score is q · (k + a), an output Σ A (v + b). What a panel of queries has for
// each distance is a tile of its own, [distance][16], with the same products as a tile of keys.
//
// The sixteen queries see a key at sixteen distances, which lie on a diagonal of [distance][16]. Sheared, they lie side by
// side: row u has in each lane what belongs to row u − lane, clamped. Shearing moves lane i by i rows: for each bit of i,
// the lanes that have it move by as many rows.
#pragma once
#include "block.h"
#include "softmax.h"

namespace dw {

struct Tables {  // in the order of kernels/interval.py: rows of fp32, dense; null if not given
  const float *keys, *values;
  int64_t rows;  // odd
  // Backward only: [slab row width], zeros at first.
  float *grad_keys, *grad_values;
  int64_t slabs;

  bool given() const { return keys || values; }
};

class Distances {
 public:
  // The distances of some queries, the last of as many keys; rows beyond the furthest key are left out.
  Distances(const Tables& tables, int64_t queries, int64_t keys)
      : size_(std::min((tables.rows - 1) / 2, std::max<int64_t>(keys - 1, 0))),
        first_((tables.rows - 1) / 2 - size_),
        place_(keys - queries) {}

  int64_t rows() const { return 2 * size_ + 1; }
  int64_t sheared() const { return rows() + kPanel - 1; }
  // The part of a table that is used.
  template <typename T>
  T* part(T* table, int64_t width) const { return table + first_ * width; }

  void shear(float* x) const {
    for (int64_t u = rows(); u < sheared(); ++u) std::memcpy(x + u * kPanel, x + 2 * size_ * kPanel, sizeof(float) * kPanel);
    for (int32_t shift = 1; shift < kPanel; shift *= 2)
      for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
        const ivec moves = lanes_with(shift, lane);
        for (int64_t u = sheared() - 1; u > 0; --u) {
          float* at = x + u * kPanel + lane;
          store(at, moves ? load(x + std::max<int64_t>(u - shift, 0) * kPanel + lane) : load(at));
        }
      }
  }

  // The transposed map: add what belongs to one distance. Rows beyond `rows` are left with whatever they had.
  void unshear(float* x) const {
    for (int32_t shift = kPanel / 2; shift > 0; shift /= 2)
      for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
        const ivec moves = lanes_with(shift, lane);
        vec sum = load(x + lane);
        for (int64_t u = 1; u <= shift; ++u) sum += moves ? load(x + u * kPanel + lane) : vec{};
        store(x + lane, sum);
        for (int64_t u = 1; u < sheared(); ++u) {
          float* at = x + u * kPanel + lane;
          const vec moved = u + shift < sheared() ? load(at + shift * kPanel) : vec{};
          store(at, moves ? moved : load(at));
        }
      }
    float* last = x + 2 * size_ * kPanel;
    for (int64_t u = 1; u < kPanel; ++u)
      for (int64_t lane = 0; lane < kPanel; lane += kLanes) store(last + lane, load(last + lane) + load(last + u * kPanel + lane));
  }

  // Add to keys [first, end), with which `x` starts, what the panel of queries from `query` on has for their distances.
  void spread(const float* sheared, int64_t query, int64_t first, int64_t end, float* x) const {
    for (int64_t key = first; key < end; ++key, x += kPanel) {
      const float* from = sheared + row(query, key) * kPanel;
      for (int64_t lane = 0; lane < kPanel; lane += kLanes) store(x + lane, load(x + lane) + load(from + lane));
    }
  }
  // Add the keys to their distances.
  void collect(const float* x, int64_t query, int64_t first, int64_t end, float* sheared) const {
    for (int64_t key = first; key < end; ++key, x += kPanel) {
      float* to = sheared + row(query, key) * kPanel;
      for (int64_t lane = 0; lane < kPanel; lane += kLanes) store(to + lane, load(to + lane) + load(x + lane));
    }
  }

 private:
  int64_t row(int64_t query, int64_t key) const {
    return std::clamp<int64_t>(key - query - place_ + size_, 0, sheared() - 1);
  }
  static ivec lanes_with(int32_t bit, int64_t first) {
    ivec lanes;
    for (int64_t i = 0; i < kLanes; ++i) lanes[i] = int32_t(first + i) & bit;
    return lanes != 0;
  }

  int64_t size_, first_, place_;
};

// One table for a block of queries: the products of its rows with the queries, which are spread over the keys, and what
// keys add up to by distance.
class TableTile {
 public:
  TableTile(const Distances& distances, const float* table, int64_t width, Arena& arena)
      : distances_(distances), table_{table ? distances.part(table, width) : nullptr, width} {
    const int64_t floats = distances.sheared() * kPanel;
    products_ = {arena.floats(table ? kMaxPanels * floats : 0), floats};
    sums_ = {arena.floats(table ? kMaxPanels * floats : 0), floats};
  }

  bool given() const { return table_.data; }

  // Begin a block with queries, or gradients of the output, as panels.
  void multiply(const Block& block, const float* panels) {
    if (!given()) return;
    score_tile(whole(block), block.all(), 0, distances_.rows(), table_, panels, table_.stride, products_);
    for (int64_t i = 0; i < block.panels; ++i) distances_.shear(products_.data + i * products_.step);
  }
  void clear(const Block& block) {
    if (given()) std::memset(sums_.data, 0, sizeof(float) * block.panels * sums_.step);
  }

  void spread(const Block& block, int64_t i, int64_t first, int64_t end, float* x) const {
    if (given()) distances_.spread(products_.data + i * products_.step, block.query + i * kPanel, first, end, x);
  }
  void collect(const Block& block, int64_t i, int64_t first, int64_t end, const float* x) {
    if (given()) distances_.collect(x, block.query + i * kPanel, first, end, sums_.data + i * sums_.step);
  }
  void rescale(int64_t i, const float* factor) {
    if (given()) rescale_output(factor, distances_.sheared(), sums_.data + i * sums_.step);
  }

  // Order the sums by distance when all keys are collected, and add their products with the table to out[width][16].
  void finish(const Block& block, float* out) {
    if (!given()) return;
    for (int64_t i = 0; i < block.panels; ++i) distances_.unshear(sums_.data + i * sums_.step);
    if (out) gather_tile(whole(block), block.all(), 0, distances_.rows(), table_, sums_, table_.stride, out);
  }
  // After that: add the gradient of the table from the rows that the sums are weights of.
  void differentiate(const Block& block, const float* rows, float* grad) const {
    const int64_t columns = padded(table_.stride);
    if (given()) scatter_tile(whole(block), block.all(), 0, distances_.rows(), sums_, rows, columns, grad);
  }

 private:
  // All panels have all distances.
  Block whole(Block block) const {
    std::fill(block.limit, block.limit + block.panels, distances_.rows());
    return block;
  }

  const Distances& distances_;
  const Matrix table_;
  Panels products_, sums_;
};

}  // namespace dw
