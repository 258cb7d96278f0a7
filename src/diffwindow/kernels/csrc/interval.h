// Attention within a hard window of each query: its arguments, which keys a block of queries reaches, and their scores.
#pragma once
#include "block.h"
#include "relative.h"
#include "softmax.h"

namespace dw {

struct Positions {  // [batch head query], any strides
  const int64_t* data;
  int64_t batch, head, query;
};

// In the order of kernels/interval.py. A row has the maximum and the inverse sum of its softmax, for bf16 the output in fp32.
struct Interval : Attention {
  int64_t shared;  // heads of queries per head of keys and values
  int64_t sinks;
  const int64_t* origin;  // [batch]: the key from which sinks count; null for 0
  Positions start, end;  // without them, the window has all keys
  Pair pair;
  Tables tables;
  // Backward only.
  Tensor grad_out, grad_q, grad_k, grad_v;
};

constexpr int64_t kIntervalStatistics = 2;

struct Range {  // keys [first, last)
  int64_t first, last;
  Range operator&(Range other) const { return {std::max(first, other.first), std::min(last, other.last)}; }
  bool empty() const { return first >= last; }
  bool meets(int64_t begin, int64_t end) const { return !(*this & Range{begin, end}).empty(); }
  bool covers(int64_t begin, int64_t end) const { return first <= begin && end <= last; }
};

// The keys of a query's window, clamped to those that there are; [0, 0) if there are none.
inline Range window_of(const Interval& p, int64_t b, int64_t h, int64_t query) {
  const auto at = [&](const Positions& x, int64_t otherwise) {
    return x.data ? x.data[b * x.batch + h * x.head + query * x.query] : otherwise;
  };
  const int64_t limit = p.is_causal ? std::min(p.keys, query + 1) : p.keys;
  const Range window{std::max<int64_t>(at(p.start, 0), 0), std::min(at(p.end, limit - 1), limit - 1) + 1};
  return window.empty() ? Range{0, 0} : window;
}

// The first keys, which all queries of a sentence see; a causal one those up to itself.
inline Range sinks_of(const Interval& p, int64_t b) {
  const int64_t first = p.origin ? std::min(std::max<int64_t>(p.origin[b], 0), p.keys) : 0;
  return {first, first + std::min(p.sinks, p.keys - first)};
}

// All keys but those at both ends that a mask hides from all queries, as it does padding.
inline Range unpadded(const Interval& p, const HeadMask& head) {
  Range keys{0, p.keys};
  if (!head.mask || p.mask.query != 0) return keys;
  while (!keys.empty() && !head.mask[(keys.last - 1) * p.mask.key]) --keys.last;
  while (!keys.empty() && !head.mask[keys.first * p.mask.key]) ++keys.first;
  return keys;
}

// Which keys the queries of a block see.
class Reach {
 public:
  Reach(const Interval& p, const Block& block, const HeadMask& head)
      : block_(block), keys_(unpadded(p, head)), sinks_(sinks_of(p, head.b) & keys_) {
    for (int64_t i = 0; i < block.panels; ++i) {
      hull_[i] = {p.keys, 0};
      core_[i] = {0, p.keys};
      for (int64_t lane = 0; lane < kPanel; ++lane) {
        // lanes without a query repeat the last one
        const int64_t query = std::min(block.query + i * kPanel + lane, p.queries - 1);
        const Range window = window_of(p, head.b, head.h, query) & keys_;
        start_[i][lane] = int32_t(window.first);
        stop_[i][lane] = int32_t(window.last);
        sink_stop_[i][lane] = int32_t(p.is_causal ? std::min(sinks_.last, query + 1) : sinks_.last);
        core_[i] = {std::max(core_[i].first, window.first), std::min(core_[i].last, window.last)};
        if (!window.empty()) hull_[i] = {std::min(hull_[i].first, window.first), std::max(hull_[i].last, window.last)};
      }
    }
  }

  // Run body(first, last, panels) for each tile of keys that some panels reach.
  template <typename Body>
  void for_tiles(const Body& body) const {
    Range window{INT64_MAX, 0};
    for (int64_t i = 0; i < block_.panels; ++i)
      window = {std::min(window.first, hull_[i].first), std::max(window.last, hull_[i].last)};
    const Range sinks = sinks_ & Range{0, block_.keys};
    if (sinks.empty() || window.empty() || sinks.last < window.first || window.last < sinks.first) {
      const bool sinks_first = sinks.first < window.first;
      tile_range(sinks_first ? sinks : window, body);
      return tile_range(sinks_first ? window : sinks, body);
    }
    tile_range({std::min(sinks.first, window.first), std::max(sinks.last, window.last)}, body);
  }

  // Whether all queries of a panel see all of keys [first, last).
  bool all(int64_t i, int64_t first, int64_t last) const {
    return core_[i].covers(first, last) || Range{sinks_.first, sink_stop_[i][0]}.covers(first, last);
  }

  // Hide what a panel does not see of keys [first, last), with which `x` starts.
  void hide(int64_t i, int64_t first, int64_t last, float* x) const {
    for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
      const ivec start = load_ints(start_[i] + lane), stop = load_ints(stop_[i] + lane);
      const ivec sink_stop = load_ints(sink_stop_[i] + lane);
      const int32_t sink_start = int32_t(sinks_.first);
      for (int32_t key = int32_t(first); key < last; ++key) {
        float* at = x + (key - first) * kPanel + lane;
        const ivec seen = ((start <= key) & (stop > key)) | ((sink_stop > key) & -int32_t(key >= sink_start));
        store(at, seen ? load(at) : splat(kHidden));
      }
    }
  }

 private:
  static ivec load_ints(const int32_t* x) { return *reinterpret_cast<const ivec*>(x); }

  template <typename Body>
  void tile_range(Range range, const Body& body) const {
    for (int64_t first = range.first, last; first < range.last; first = last) {
      last = std::min(first + kTile, range.last);
      PanelBits some = 0;
      for (int64_t i = 0; i < block_.panels; ++i)
        if (block_.end(i, last) > first && (hull_[i].meets(first, last) || sinks_.meets(first, last)))
          some |= PanelBits(1) << i;
      if (some) body(first, last, some);
    }
  }

  const Block& block_;
  const Range keys_, sinks_;
  Range hull_[kMaxPanels], core_[kMaxPanels];  // what any and what every query of a panel has in its window
  alignas(64) int32_t start_[kMaxPanels][kPanel], stop_[kMaxPanels][kPanel], sink_stop_[kMaxPanels][kPanel];
};

// A tile's keys, values and scores, for forward and backward.
class IntervalTile {
 public:
  Panels scores;

  IntervalTile(const Interval& p, Arena& arena) : p_(p) {
    scores = {arena.floats(kMaxPanels * kTile * kPanel), kTile * kPanel};
    bias_ = arena.floats(p.bias.data ? kTile * kPanel : 0);
    visible_ = arena.take<int8_t>(p.mask.data ? kTile * kPanel : 0);
    key_copy_ = arena.floats(kTile * p.pair.width);
    value_copy_ = arena.floats(kTile * p.value_width);
  }

  // Read keys [first, last) and their values, and score them for some panels; what a query does not see is -inf.
  void score(const Block& block, const Reach& reach, const HeadMask& head, PanelBits some, int64_t first, int64_t last,
             const float* queries, const TableTile& distances) {
    first_ = first;
    last_ = last;
    const int64_t h = head.h / p_.shared;
    keys = read(p_.pair.k, head.b, h, p_.pair.width, key_copy_);
    values = read(p_.v, head.b, h, p_.value_width, value_copy_);
    score_tile(block, some, first, last, keys, queries, p_.pair.width, scores);
    bool hides = false;
    for (int64_t i = 0; i < block.panels; ++i)
      if (some >> i & 1) {
        distances.spread(block, i, first, block.end(i, last), scores.data + i * scores.step);
        hides |= hide(block, reach, head, i, block.end(i, last));
      }
    if (hides && !(is_finite(keys, p_.pair.width) && is_finite(values, p_.value_width))) zero_unseen(block, some);
  }

  Matrix keys, values;

 private:
  // Rows far apart and bf16 are copied; row `first_` of the result is the tile's first.
  Matrix read(const Tensor& t, int64_t b, int64_t h, int64_t width, float* copy) const {
    if (!needs_copy(p_, t, width)) return {row_of<float>(t, b, h, 0), t.row};
    const Tensor rows{p_.is_bf16 ? static_cast<void*>(row_of<bfloat16>(t, b, h, first_)) : row_of<float>(t, b, h, first_), 0, 0,
                      t.row};
    copy_head(p_, rows, 0, 0, last_ - first_, width, copy);
    return {copy - first_ * width, width};
  }

  // Return whether anything is hidden from a panel.
  bool hide(const Block& block, const Reach& reach, const HeadMask& head, int64_t i, int64_t end) {
    float* x = scores.data + i * scores.step;
    const int64_t rows = block.rows_of(i);
    // Lanes without a query: their scores of 0 · NaN would reach gradients.
    for (int64_t key = 0; rows < kPanel && key < end - first_; ++key)
      std::fill(x + key * kPanel + rows, x + (key + 1) * kPanel, kHidden);
    add_bias(p_, head, block, i, first_, end, bias_, x);
    bool hides = head.bias;
    for (int64_t at = 0; head.bias && at < (end - first_) * kPanel; at += kLanes)
      store(x + at, load(bias_ + at) == kHidden ? splat(kHidden) : load(x + at));
    if (head.mask && read_mask(block, head, i, end)) {
      hides = true;
      for (int64_t at = 0; at < (end - first_) * kPanel; at += kLanes) {
        const ivec seen = __builtin_convertvector(*reinterpret_cast<const bvec*>(visible_ + at), ivec);
        store(x + at, seen ? load(x + at) : splat(kHidden));
      }
    }
    if (reach.all(i, first_, end)) return hides;
    reach.hide(i, first_, end, x);
    return true;
  }

  // Fill visible_[key][16], -1 or 0. Return whether the mask hides anything; if not, it is not filled.
  bool read_mask(const Block& block, const HeadMask& head, int64_t i, int64_t end) const {
    const Mask& mask = p_.mask;
    const int64_t keys = end - first_, rows = mask.query == 0 ? 1 : block.rows_of(i);
    const uint8_t* from = head.mask + (block.query + i * kPanel) * mask.query + first_ * mask.key;
    bool all = mask.key == 1;
    for (int64_t row = 0; all && row < rows; ++row) all = !std::memchr(from + row * mask.query, 0, keys);
    if (all) return false;
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      const uint8_t* row = from + std::min(lane, rows - 1) * mask.query;
      for (int64_t key = 0; key < keys; ++key) visible_[key * kPanel + lane] = -int8_t(row[key * mask.key] != 0);
    }
    return true;
  }

  bool is_finite(Matrix x, int64_t width) const {
    vec8 sum{};
    float rest = 0;
    for (int64_t key = first_; key < last_; ++key) {
      const float* row = x.data + key * x.stride;
      int64_t j = 0;
      for (; j + 8 <= width; j += 8) sum += load8(row + j) * 0.f;
      for (; j < width; ++j) rest += row[j] * 0.f;
    }
    for (int i = 0; i < 8; ++i) rest += sum[i];
    return rest == 0;
  }

  // Keys that no query of the block sees may hold anything, and their weight of 0 times NaN would be NaN.
  void zero_unseen(const Block& block, PanelBits some) {
    for (Matrix* x : {&keys, &values}) {
      const int64_t width = x == &keys ? p_.pair.width : p_.value_width;
      float* copy = x == &keys ? key_copy_ : value_copy_;
      if (x->data != copy - first_ * width)
        copy_rows(x->data + first_ * x->stride, x->stride, last_ - first_, width, copy, width, 1.f);
      *x = {copy - first_ * width, width};
      for (int64_t key = first_; key < last_; ++key)
        if (!is_seen(block, some, key)) std::memset(copy + (key - first_) * width, 0, sizeof(float) * width);
    }
  }

  bool is_seen(const Block& block, PanelBits some, int64_t key) const {
    for (int64_t i = 0; i < block.panels; ++i) {
      const float* x = scores.data + i * scores.step + (key - first_) * kPanel;
      const bool scored = (some >> i & 1) && key < block.end(i, last_);
      if (scored && std::any_of(x, x + block.rows_of(i), [](float score) { return score != kHidden; })) return true;
    }
    return false;
  }

  const Interval& p_;
  int64_t first_, last_;
  float *bias_, *key_copy_, *value_copy_;
  int8_t* visible_;
};

// Attention of one query per head, which reads only the keys inside; false when memory ran out.
bool attend_one(const Interval& p);

}  // namespace dw
