// The arguments of a call: the structures that kernels/cpu.py packs, and the geometry that follows from them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "vec.h"

namespace dw {

struct Tensor {  // [batch head row width], strides in elements, the last one 1
  void* data;
  int64_t batch, head, row;
};
struct Mask {  // bool [batch head query key], any strides; true where a query may look
  const uint8_t* data;
  int64_t batch, head, query, key;
};
struct Bias {  // fp32 [batch head query key], any strides; added to the scores, and -inf hides
  const float* data;
  int64_t batch, head, query, key;
};
struct BiasGrad {  // fp32 [slab batch head query key], zeros at first; a stride is 0 where the bias broadcasts
  float* data;
  int64_t slabs, slab, batch, head, query, key;
};
struct Pair {  // queries and keys whose product is a kind of score
  Tensor q, k;
  int64_t width;
  double scale;
};

template <int N>
struct ViewOf {  // any strides; null if not given
  void* data;
  int64_t size[N], stride[N];
};
using View = ViewOf<4>;  // [batch head row width]

// Let a view, if given, be read as one of sizes `full`; false if it does not broadcast to them.
template <int N>
bool broadcast(ViewOf<N>& x, const int64_t (&full)[N]) {
  for (int i = 0; x.data && i < N; ++i) {
    if (x.size[i] == 1) x.stride[i] = 0;
    else if (x.size[i] != full[i]) return false;
  }
  return true;
}

constexpr int64_t kTile = 64;  // keys whose scores stay in L1
typedef uint32_t word __attribute__((may_alias));

constexpr int64_t kStatistics = 6;  // maximum and inverse sum of the score's, the left's and the right's softmax

enum { kScore, kLeft, kRight, kLocal, kMaxPairs };  // the order of Problem::pair

// What every attention of many queries has. Eight bytes per field, in the order of `attention_fields` in kernels/cpu.py.
struct Attention {
  int64_t is_bf16, is_causal, batch, heads, queries, keys, value_width, threads;
  uint64_t seed;
  double dropout;
  Mask mask;
  Bias bias;
  Tensor v, out;
  float* rows;  // what backward needs of each query
  int64_t row_width;

  bool hides() const { return mask.data || bias.data; }
  float* row(int64_t b, int64_t h, int64_t query) const {
    return rows + ((b * heads + h) * queries + query) * row_width;
  }
};

// A learned window, in the order of `_problem`. A row has kStatistics, for bf16 the output in fp32, for windows that are cut a
// bit per tile.
struct Problem : Attention {
  int64_t is_additive, is_exact, is_normalized, segment_size, sinks;
  double threshold;  // the window is 0 where it is below the threshold; a threshold of 0 is none
  const int64_t* segment_origin;
  Pair pair[kMaxPairs];
  // Backward only.
  Tensor grad_out;
  Tensor grad_q[kMaxPairs], grad_k[kMaxPairs], grad_v;
  BiasGrad grad_bias;

  int64_t pairs() const { return is_additive ? 4 : 3; }
  // How many heads of how many sequences add their gradient to one place of that of the bias.
  int64_t sharing() const {
    return grad_bias.data ? std::max<int64_t>(1, (grad_bias.batch ? 1 : batch) * (grad_bias.head ? 1 : heads)) : 1;
  }
  // The index, over all sequences, of a head that adds to the same place as the others of its group.
  int64_t head_sharing(int64_t group, int64_t member) const {
    return grad_bias.head ? member * heads + group : group * sharing() + member;
  }
  // A tile of whole segments may be little more than half full.
  int64_t max_tiles() const { return keys / (kTile / 2) + 3; }
  int64_t tile_words() const { return threshold > 0 ? (max_tiles() + 31) / 32 : 0; }
  word* tile_bits(int64_t b, int64_t h, int64_t query) const {
    return reinterpret_cast<word*>(row(b, h, query) + kStatistics + (is_bf16 ? value_width : 0));
  }
};

constexpr int64_t kMaxPanels = 4;   // panels of queries that share a tile of keys

DW_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
DW_INLINE int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// The first `count` keys of a sequence that starts at `origin`, where M = 1 whatever the pointers say.
struct Sinks {
  int64_t begin, end;

  Sinks(int64_t origin, int64_t count, int64_t keys)
      : begin(std::clamp<int64_t>(origin, 0, keys)), end(std::min(begin + count, keys)) {}
  DW_INLINE bool operator()(int64_t key) const { return begin <= key && key < end; }
  bool meet(int64_t first, int64_t last) const { return std::max(first, begin) < std::min(last, end); }
  // Set M of keys [first, last) to 1 at the sinks; each key has `width` values.
  void show(int64_t first, int64_t last, int64_t width, float* window) const {
    if (meet(first, last))
      std::fill(window + (std::max(first, begin) - first) * width, window + (std::min(last, end) - first) * width, 1.f);
  }
};

// Where segments end, and tiles of keys that hold whole segments. A tile ends where the sinks do, so that a window which
// reaches nothing else there computes little more than them.
struct Grid {
  int64_t size, offset, tile_keys;
  Sinks sinks;

  Grid(const Problem& p, int64_t b)
      : size(p.segment_size), sinks(p.segment_origin ? p.segment_origin[b] : 0, p.sinks, p.keys) {
    const int64_t origin = p.segment_origin ? p.segment_origin[b] : 0;
    offset = ((origin % size) + size) % size;
    tile_keys = capacity(p);
  }
  static int64_t capacity(const Problem& p) {
    return std::min(std::max(kTile, p.segment_size), std::max<int64_t>(p.keys, 1));
  }
  int64_t segment_end(int64_t key) const {
    return key < offset ? offset : key + size - (key - offset) % size;
  }
  int64_t tile_end(int64_t key, int64_t limit) const {
    if (sinks.meet(key, limit)) limit = std::min(limit, segment_end(sinks.end - 1));
    if (size == 1) return std::min(key + kTile, limit);
    int64_t end = segment_end(key);
    if (end - key < tile_keys) end += (tile_keys - (end - key)) / size * size;
    return std::min(end, limit);
  }
};

template <typename T>
DW_INLINE T* row_of(const Tensor& t, int64_t b, int64_t h, int64_t row) {
  return static_cast<T*>(t.data) + b * t.batch + h * t.head + row * t.row;
}

// Aligned memory in pieces; with no base it only counts.
class Arena {
 public:
  explicit Arena(char* base) : base_(base) {}
  template <typename T>
  T* take(int64_t count) {
    char* piece = base_ ? base_ + used_ : nullptr;
    used_ += round_up(count * int64_t(sizeof(T)), 64);
    return reinterpret_cast<T*>(piece);
  }
  float* floats(int64_t count) { return take<float>(count); }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

}  // namespace dw
