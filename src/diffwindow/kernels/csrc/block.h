// A block of queries: its panels, the keys that each may see, and the products with a tile of keys.
#pragma once
#include <cmath>
#include <vector>

#include "gemm.h"
#include "pack.h"

namespace dw {

constexpr float kHidden = -__builtin_inff();

// Which keys a query sees. Passed by value: a store of bytes may alias anything behind a pointer.
struct Sight {
  const uint8_t* mask;
  const float* bias;
  int64_t mask_step, bias_step;
  DW_INLINE bool operator()(int64_t key) const {
    return (!mask || mask[key * mask_step]) && (!bias || bias[key * bias_step] != kHidden);
  }
};

// What hides keys from the queries of a head; null if there is none.
struct HeadMask {
  int64_t b, h;
  const uint8_t* mask = nullptr;
  const float* bias = nullptr;

  HeadMask(const Attention& p, int64_t b, int64_t h) : b(b), h(h) {
    if (p.mask.data) mask = p.mask.data + b * p.mask.batch + h * p.mask.head;
    if (p.bias.data) bias = p.bias.data + b * p.bias.batch + h * p.bias.head;
  }
  Sight sight(const Attention& p, int64_t query) const {
    return {mask ? mask + query * p.mask.query : nullptr, bias ? bias + query * p.bias.query : nullptr, p.mask.key,
            p.bias.key};
  }
};

// The keys that any query of a head may see.
struct Head : HeadMask {
  int64_t keys;         // those after the last visible one do not exist
  int64_t first_masked;  // the mask is to be read from this key on
  std::vector<uint8_t> seen;    // by any query, where something is hidden
  std::vector<int64_t> unseen;  // keys before the last visible one that no query sees

  Head(const Attention& p, int64_t b, int64_t h) : HeadMask(p, b, h), keys(p.keys), first_masked(p.keys) {
    if (!p.hides()) return;
    const bool one_row = (!mask || p.mask.query == 0) && (!bias || p.bias.query == 0);
    seen.assign(keys, 0);
    // From the last query on, which sees everything in many masks.
    for (int64_t query = one_row ? std::min<int64_t>(p.queries, 1) : p.queries; query-- > 0;) {
      const int64_t end = p.is_causal && !one_row ? std::min(keys, query + 1) : keys;
      const Sight sees = sight(p, query);
      uint8_t* any = seen.data();
      for (int64_t key = 0; key < end; ++key) any[key] |= sees(key);
      if (!std::memchr(seen.data(), 0, keys)) break;
    }
    while (keys > 0 && !seen[keys - 1]) --keys;
    for (int64_t key = 0; key < keys; ++key)
      if (!seen[key]) unseen.push_back(key);
    // One row for all queries, as padding is: read the mask only where something is hidden.
    first_masked = !one_row ? 0 : unseen.empty() ? keys : unseen[0];
  }
};

// A head's keys or values. Rows that no query sees are zeros, or finite: they are multiplied by weights of 0.
inline Matrix head_matrix(const Attention& p, const Head& head, const Tensor& t, int64_t width, bool in_place,
                          float* copy) {
  const auto finite = [&](int64_t key) {
    const float* row = row_of<float>(t, head.b, head.h, key);
    return std::all_of(row, row + width, [](float x) { return std::isfinite(x); });
  };
  if (in_place && std::all_of(head.unseen.begin(), head.unseen.end(), finite))
    return {row_of<float>(t, head.b, head.h, 0), t.row};
  const Matrix matrix = copy_head(p, t, head.b, head.h, head.keys, width, copy);
  for (int64_t key : head.unseen) std::memset(copy + key * width, 0, sizeof(float) * width);
  return matrix;
}

// Memory for the copy that `head_matrix` may make.
inline float* take_copy(Arena& arena, const Attention& p, int64_t width, bool in_place) {
  return in_place && !p.hides() ? nullptr : arena.floats(p.keys * width);
}

struct Block {
  int64_t query, rows, panels;
  int64_t keys;               // those that any row may see
  int64_t limit[kMaxPanels];  // those that a panel may see
  int64_t first_masked[kMaxPanels];

  Block(const Attention& p, const Head& head, int64_t query, int64_t rows)
      : Block(p, head.keys, head.first_masked, query, rows) {}
  // Queries that may see the first `seen` keys; some are hidden from key `masked` on.
  Block(const Attention& p, int64_t seen, int64_t masked, int64_t query, int64_t rows)
      : query(query), rows(rows), panels(ceil_div(rows, kPanel)) {
    for (int64_t i = 0; i < panels; ++i) {
      const int64_t first = query + i * kPanel;
      limit[i] = p.is_causal ? std::min(seen, std::min(first + kPanel, query + rows)) : seen;
      first_masked[i] = std::min(p.is_causal ? std::min(first, masked) : masked, limit[i]);
    }
    keys = limit[panels - 1];
  }
  int64_t rows_of(int64_t panel) const { return std::min(kPanel, rows - panel * kPanel); }
  int64_t end(int64_t panel, int64_t tile_end) const { return std::min(limit[panel], tile_end); }
  bool whole(int64_t tile_end) const { return limit[0] >= tile_end; }
  uint32_t all() const { return (uint32_t(1) << panels) - 1; }
};

// visible[panel][key][16], -1 or 0, filled where the panel's mask is to be read.
inline void read_mask(const Attention& p, const Head& head, const Block& block, int8_t* visible) {
  for (int64_t panel = 0; panel < block.panels; ++panel) {
    int8_t* out = visible + panel * p.keys * kPanel;
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      const int64_t query = std::min(block.query + panel * kPanel + lane, p.queries - 1);
      const Sight sees = head.sight(p, query);
      const int64_t causal_end = p.is_causal ? query + 1 : block.limit[panel];
      const int64_t end = block.limit[panel];
      for (int64_t key = block.first_masked[panel]; key < end; ++key)
        out[key * kPanel + lane] = key < causal_end && sees(key) ? -1 : 0;
    }
  }
}

// Hide what a panel's mask hides of keys [first, end); `x` starts at key `origin`.
inline void hide(const Attention& p, const Block& block, int64_t panel, const int8_t* visible, int64_t first,
                 int64_t end, int64_t origin, float* x) {
  first = std::max(first, block.first_masked[panel]);
  if (first >= end) return;
  visible += panel * p.keys * kPanel;
  for (int64_t key = first; key < end; ++key) {
    for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
      const ivec seen = __builtin_convertvector(*reinterpret_cast<const bvec*>(visible + key * kPanel + lane), ivec);
      float* at = x + (key - origin) * kPanel + lane;
      store(at, seen ? load(at) : splat(kHidden));
    }
  }
}

// Add a panel's bias of keys [first, end) to scores that start at key `first`; `panel` is memory for as many.
inline void add_bias(const Attention& p, const HeadMask& head, const Block& block, int64_t i, int64_t first, int64_t end,
                     float* panel, float* x) {
  if (!head.bias) return;
  const int64_t query = block.query + i * kPanel, rows = block.rows_of(i), keys = end - first;
  const float* from = head.bias + query * p.bias.query + first * p.bias.key;
  if (p.bias.key == 1)
    to_panel(from, p.bias.query, rows, keys, panel);
  else
    for (int64_t key = 0; key < keys; ++key)
      for (int64_t lane = 0; lane < kPanel; ++lane)
        panel[key * kPanel + lane] = lane < rows ? from[lane * p.bias.query + key * p.bias.key] : 0.f;
  for (int64_t at = 0; at < keys * kPanel; at += kLanes) store(x + at, load(x + at) + load(panel + at));
}

// Panels [key][16] of a tile, or of a whole row of tiles, with `step` floats from one panel to the next.
struct Panels {
  float* data;
  int64_t step;
};

// A bit per panel of a block.
using PanelBits = uint32_t;
static_assert(kMaxPanels < 32);

// Run body(first, count) for each run of neighbouring panels among `some`.
template <typename Body>
DW_INLINE void for_runs(const Block& block, PanelBits some, const Body& body) {
  for (int64_t i = 0, end; i < block.panels; i = end + 1) {
    end = i;
    while (end < block.panels && (some >> end & 1)) ++end;
    if (end > i) body(i, end - i);
  }
}

// scores[key][query] = K Qᵀ for the keys of a tile and some panels.
inline void score_tile(const Block& block, PanelBits some, int64_t first, int64_t last, Matrix k, const float* queries,
                       int64_t width, Panels out) {
  const Left keys{k.data + first * k.stride, k.stride, 0};
  const auto score = [&](int64_t i, int64_t count, int64_t end) {
    gemm<false>({std::max<int64_t>(end - first, 0), count, 1, width}, keys,
                {queries + i * width * kPanel, kPanel, width * kPanel},
                {out.data + i * out.step, kPanel, out.step, false});
  };
  for_runs(block, some, [&](int64_t run, int64_t count) {
    if (block.whole(last)) return score(run, count, last);
    for (int64_t i = run; i < run + count; ++i) score(i, 1, block.end(i, last));
  });
}

// out[width][query] += Vᵀ A over the keys of a tile, for some panels: O from A and V, or dQ from dS and K.
inline void gather_tile(const Block& block, PanelBits some, int64_t first, int64_t last, Matrix v, Panels weights,
                        int64_t width, float* out) {
  const Left values{v.data + first * v.stride, v.stride, 0};
  const auto gather = [&](int64_t i, int64_t count, int64_t end) {
    gemm<true>({width, count, 1, std::max<int64_t>(end - first, 0)}, values,
               {weights.data + i * weights.step, kPanel, weights.step},
               {out + i * width * kPanel, kPanel, width * kPanel, true});
  };
  for_runs(block, some, [&](int64_t run, int64_t count) {
    if (block.whole(last)) return gather(run, count, last);
    for (int64_t i = run; i < run + count; ++i) gather(i, 1, block.end(i, last));
  });
}

// out[key][width] += A rows over some panels of queries: dV from A and dO, or dK from dS and Q. Hidden weights are zeros.
inline void scatter_tile(const Block& block, PanelBits some, int64_t first, int64_t last, Panels weights, const float* rows,
                         int64_t stride, float* out) {
  for_runs(block, some, [&](int64_t i, int64_t count) {
    const Left left{weights.data + i * weights.step, kPanel, weights.step};
    const float* right = rows + i * kPanel * stride;
    if (stride == Narrow::lanes)
      multiply_panels<false, Narrow>({last - first, 1, count, kPanel}, left, {right, stride, 0},
                                     {out + first * stride, stride, 0, true});
    else
      gemm<false>({last - first, stride / kPanel, count, kPanel}, left, {right, stride, kPanel},
                  {out + first * stride, stride, kPanel, true});
  });
}

// Zero what scatter_tile reads of keys that a panel cannot see.
inline void clear_unseen(const Block& block, int64_t first, int64_t last, Panels weights) {
  for (int64_t i = 0; i < block.panels; ++i) {
    const int64_t seen = std::max(block.end(i, last), first);
    std::memset(weights.data + i * weights.step + (seen - first) * kPanel, 0, sizeof(float) * (last - seen) * kPanel);
  }
}

}  // namespace dw
