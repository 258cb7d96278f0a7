// Backward: two sweeps over the keys of a block of queries. The first recomputes a tile of keys (Eq. 1 to 17) and adds
// the gradients of scores, local scores and values to their queries and keys. The gradients of the pointers (Eq. 7, 8)
// need the total of their row, so the second sweep adds those. Gradients of keys and values are summed over the blocks
// of a head in a fixed order. With D = Σ dO ⊙ O: multiplicative (Eq. 13) dS = A ⊙ dA − P D and dM = P ⊙ dA; additive
// (Eq. 17) dS = A ⊙ (dA − D), dO_local = dS ⊙ M and dM = dS ⊙ o. From dM (Eq. 9, 11): dF_l = dM ⊙ G_r, dG_r = dM ⊙ F_l,
// dF_r = dM ⊙ G_l, dG_l = dM ⊙ F_r, and dφ at a key is ΣdF from it on plus ΣdG up to it (Eq. 5, 10).
#include "block.h"
#include "dropout.h"
#include "parallel.h"
#include "reach.h"
#include "softmax.h"

namespace dw {
namespace {

constexpr int kSides = 2;

struct Panel {  // the state of a panel between tiles
  alignas(64) float max[3][kPanel], inverse[3][kPanel];  // of score, left and right: softmax(x) = e^(x − max) · inverse
  alignas(64) float dot[kPanel];              // D = dO · O
  alignas(64) float before[kSides][kPanel];   // F up to the tile
  alignas(64) float scan[kSides][kPanel];     // Σ (dG − dF) up to the tile
  alignas(64) float total[kSides][kPanel];    // Σ φ dφ, short of a constant that cancels
  alignas(64) float sunk[kPanel];             // Σ A (dA − D) over the sinks of a normalised window
};

struct Gradients {  // sums for a head's keys and values, fp32, rows zero-padded to `padded` columns
  float* keys[kMaxPairs] = {};
  float* values;

  Gradients(const Problem& p, Arena& arena) {
    for (int64_t i = 0; i < p.pairs(); ++i) keys[i] = arena.floats(p.keys * padded(p.pair[i].width));
    values = arena.floats(p.keys * padded(p.value_width));
  }
  static int64_t bytes(const Problem& p) {
    Arena arena(nullptr);
    Gradients(p, arena);
    return arena.used();
  }
  // Sum in the result itself where it has the right layout, else in scratch memory; either way from zero.
  void begin(const Problem& p, int64_t b, int64_t h) {
    for (int64_t i = 0; i < p.pairs(); ++i) begin(p, p.grad_k[i], b, h, p.pair[i].width, keys[i]);
    begin(p, p.grad_v, b, h, p.value_width, values);
  }
  void finish(const Problem& p, int64_t b, int64_t h) const {
    for (int64_t i = 0; i < p.pairs(); ++i) finish(p, p.grad_k[i], b, h, p.pair[i].width, keys[i]);
    finish(p, p.grad_v, b, h, p.value_width, values);
  }

 private:
  static void begin(const Problem& p, const Tensor& t, int64_t b, int64_t h, int64_t width, float*& sum) {
    if (!p.is_bf16 && t.row == width && width == padded(width)) sum = row_of<float>(t, b, h, 0);
    std::memset(sum, 0, sizeof(float) * p.keys * padded(width));
  }
  static void finish(const Problem& p, const Tensor& t, int64_t b, int64_t h, int64_t width, const float* sum) {
    if (p.is_bf16)
      write_rows(sum, padded(width), p.keys, width, row_of<bfloat16>(t, b, h, 0), t.row);
    else if (sum != row_of<float>(t, b, h, 0))
      write_rows(sum, padded(width), p.keys, width, row_of<float>(t, b, h, 0), t.row);
  }
};

struct TilePointers {  // what later sweeps need to know of a tile's pointers
  PanelBits inside;  // the panels whose windows reach the tile: φ dφ was stored there
  PanelBits some;    // the panels with something in the tile, be it the window or a pointer
  // Per panel: sums of φ in the tile and after it; Σ dF in it; and what dφ has in common over its keys.
  alignas(64) float mass[kMaxPanels][kSides][kPanel], after[kMaxPanels][kSides][kPanel];
  alignas(64) float grad_f[kMaxPanels][kSides][kPanel], slope[kMaxPanels][kSides][kPanel];
};

struct Workspace {
  float *rows[kMaxPairs], *grad_rows;         // [query][width], scaled, zero-padded
  float *queries[kMaxPairs], *grad_panels;    // panels [width][16] of the same
  float* grad_queries[kMaxPairs];             // panels [width][16]
  float* out_panel;
  float* copy[kMaxPairs + 1];
  Panels pointer[kSides], slope[kSides];      // φ, and φ dφ short of the row's total: whole rows
  Panels score, local, grad;                  // a tile
  float* suffix[kSides];                      // a panel of a tile
  TilePointers* tile;                         // [tile]
  float* bias;                                // a panel of a tile
  int8_t* visible;
  int64_t bytes;

  Workspace(const Problem& p, char* memory) {
    Arena arena(memory);
    const int64_t queries_in_block = kMaxPanels * kPanel;
    for (int64_t i = 0; i < p.pairs(); ++i) {
      const int64_t width = p.pair[i].width;
      rows[i] = arena.floats(queries_in_block * padded(width));
      queries[i] = arena.floats(queries_in_block * width);
      grad_queries[i] = arena.floats(queries_in_block * width);
      copy[i] = take_copy(arena, p, width, !needs_copy(p, p.pair[i].k, width));
    }
    grad_rows = arena.floats(queries_in_block * padded(p.value_width));
    grad_panels = arena.floats(queries_in_block * p.value_width);
    out_panel = arena.floats(kPanel * p.value_width);
    copy[kMaxPairs] = take_copy(arena, p, p.value_width, !needs_copy(p, p.v, p.value_width));
    for (int side = 0; side < kSides; ++side) {
      pointer[side] = take_panels(arena, p.keys);
      slope[side] = take_panels(arena, p.keys);
    }
    for (Panels* x : {&score, &local, &grad}) *x = take_panels(arena, Grid::capacity(p));
    for (float*& x : suffix) x = arena.floats(p.is_normalized ? Grid::capacity(p) * kPanel : 0);
    tile = arena.take<TilePointers>(p.max_tiles());
    bias = arena.floats(p.bias.data ? Grid::capacity(p) * kPanel : 0);
    visible = arena.take<int8_t>(p.hides() || p.is_causal ? kMaxPanels * kPanel * p.keys : 0);
    bytes = arena.used();
  }
  static Panels take_panels(Arena& arena, int64_t keys) {
    return {arena.floats(kMaxPanels * keys * kPanel), keys * kPanel};
  }
};

struct PanelTile {  // a tile's data of one panel; the pointers' start at key 0, the rest at the tile's first key
  float *left, *right, *slope_left, *slope_right;
  float *score, *local, *grad;
  Suffix suffix;
  float (*grad_f)[kPanel];  // Σ dF over the tile
};

// x <- e^(x − max) · factor
void exponentiate(float* x, int64_t keys, const float* max, const float* factor) {
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    const vec top = load(max + lane), scale = load(factor + lane);
    for (int64_t k = 0; k < keys; ++k) {
      // What a normalised window leaves out may exceed the maximum.
      const vec below = load(x + k * kPanel + lane) - top;
      store(x + k * kPanel + lane, exp(below > 0 ? vec{} : below) * scale);
    }
  }
}

// The pointers φ of a tile from their scores, and their sums.
void point(float* x, int64_t keys, const float* max, const float* inverse, float* mass) {
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    const vec top = load(max + lane), scale = load(inverse + lane);
    vec sum{};
    for (int64_t k = 0; k < keys; ++k) {
      const vec phi = exp(load(x + k * kPanel + lane) - top) * scale;
      store(x + k * kPanel + lane, phi);
      sum += phi;
    }
    store(mass + lane, sum);
  }
}

// Gradients of scores over a tile that the window does not reach: score <- P, grad <- dS. Multiplicative: dS = −P D.
template <bool Additive>
void differentiate_outside(int64_t begin, int64_t end, const Dropout& dropout, const Panel& panel, const PanelTile& x) {
  if constexpr (Additive)
    return softmax_gradient(begin, end, dropout, panel.max[0], panel.inverse[0], panel.dot, x.score, x.grad);
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    const vec top = load(panel.max[0] + lane), inverse = load(panel.inverse[0] + lane), dot = load(panel.dot + lane);
    for (int64_t at = lane; at < (end - begin) * kPanel; at += kPanel)
      store(x.grad + at, -(exp(load(x.score + at) - top) * inverse) * dot);
  }
}

// From φ and scores to gradients over a tile: score <- A, grad <- dS, local <- dO_local, slope <- φ dφ. Multiplicative
// scores are P already. Normalised, P is e^(s − max) over the sum of all A, and dS = A ⊙ (dA − D), dM = P ⊙ (dA − D).
// Sinks have M = 1 and dM = 0.
template <Kind kind, bool Segment, bool Cut>
void differentiate(const Problem& p, const Grid& grid, int64_t begin, int64_t end, const Dropout& dropout, Panel& panel,
                   const PanelTile& x) {
  const float overlap = p.is_exact ? 1.f : 0.f, threshold = float(p.threshold);
  if constexpr (kind == kNormalized) {
    x.suffix.sum(0, x.left + begin * kPanel, end - begin);
    x.suffix.sum(1, x.right + begin * kPanel, end - begin);
  }
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    const vec top = load(panel.max[0] + lane), inverse = load(panel.inverse[0] + lane);
    const vec dot = load(panel.dot + lane);
    const vec left_before = load(panel.before[0] + lane), right_before = load(panel.before[1] + lane);
    vec left_here{}, right_here{};
    vec scan_left = load(panel.scan[0] + lane), scan_right = load(panel.scan[1] + lane);
    vec total_left = load(panel.total[0] + lane), total_right = load(panel.total[1] + lane), sunk = load(panel.sunk + lane);
    for (int64_t first = begin, last; first < end; first = last) {
      last = Segment ? std::min(grid.segment_end(first), end) : first + 1;
      vec mass_left{}, mass_right{};
      for (int64_t key = first; key < last; ++key) {
        mass_left += load(x.left + key * kPanel + lane);
        mass_right += load(x.right + key * kPanel + lane);
      }
      left_here += mass_left;
      right_here += mass_right;
      const vec f_left = left_before + left_here, f_right = right_before + right_here;
      vec g_left = 1.f - f_left + mass_left, g_right = 1.f - f_right + mass_right;
      if constexpr (kind == kNormalized) {
        g_left = x.suffix(0, first - begin, lane, splat(1.f));
        g_right = x.suffix(1, first - begin, lane, splat(1.f));
      }
      vec window = f_left * g_right + f_right * g_left - overlap * (mass_left * mass_right);
      const ivec cut = window < threshold;
      if constexpr (Cut) window = cut ? vec{} : window;
      vec grad_window{};
      for (int64_t key = first; key < last; ++key) {
        const int64_t at = (key - begin) * kPanel + lane;
        const vec keep = dropout.active ? dropout.factor(key, lane) : splat(1.f);
        const vec grad = load(x.grad + at) * keep;
        if constexpr (kind == kAdditive) {
          const vec local = load(x.local + at);
          const vec weight = exp(load(x.score + at) + local * window - top) * inverse;
          const vec grad_score = weight * (grad - dot);
          store(x.score + at, weight * keep);
          store(x.grad + at, grad_score);
          store(x.local + at, grad_score * window);
          grad_window += grad_score * local;
        } else if constexpr (kind == kMultiplicative) {
          const bool is_sink = grid.sinks(key);
          const vec weight = load(x.score + at), m = is_sink ? splat(1.f) : window;
          store(x.score + at, weight * keep * m);
          store(x.grad + at, weight * (grad * m - dot));
          if (!is_sink) grad_window += grad * weight;
        } else {
          const bool is_sink = grid.sinks(key);
          const vec share = load(x.score + at), inside = cut ? vec{} : share;
          const vec weight = is_sink ? share : inside, m = is_sink ? splat(1.f) : window;
          const vec grad_score = weight * (grad - dot);
          store(x.score + at, weight * keep * m);
          store(x.grad + at, grad_score * m);
          if (is_sink)
            sunk += grad_score;
          else
            grad_window += grad_score;
        }
      }
      if constexpr (Cut) grad_window = cut ? vec{} : grad_window;
      vec df_left = grad_window * g_right, df_right = grad_window * g_left;
      if constexpr (kind == kNormalized) {
        x.suffix.replace(first - begin, last - begin, lane, df_left, df_right);
        df_left = df_right = vec{};
      }
      scan_left += grad_window * f_right - df_left;
      scan_right += grad_window * f_left - df_right;
      const vec overlapping = overlap * grad_window;
      const vec slope_left = scan_left + df_left - overlapping * mass_right;
      const vec slope_right = scan_right + df_right - overlapping * mass_left;
      total_left += mass_left * slope_left;
      total_right += mass_right * slope_right;
      for (int64_t key = first; key < last; ++key) {
        const int64_t at = key * kPanel + lane;
        store(x.slope_left + at, load(x.left + at) * slope_left);
        store(x.slope_right + at, load(x.right + at) * slope_right);
      }
    }
    if constexpr (kind == kNormalized) {
      store(x.grad_f[0] + lane, x.suffix.add_products(0, end - begin, lane, x.left + begin * kPanel, x.slope_left + begin * kPanel));
      store(x.grad_f[1] + lane, x.suffix.add_products(1, end - begin, lane, x.right + begin * kPanel, x.slope_right + begin * kPanel));
    }
    store(panel.before[0] + lane, left_before + left_here);
    store(panel.before[1] + lane, right_before + right_here);
    store(panel.scan[0] + lane, scan_left);
    store(panel.scan[1] + lane, scan_right);
    store(panel.total[0] + lane, total_left);
    store(panel.total[1] + lane, total_right);
    store(panel.sunk + lane, sunk);
  }
}

// The softmax's gradient, φ (dφ − Σ φ dφ): `common` has all of it that keys of the tile share, and `slope` is φ times the rest,
// or null if there is none.
void center(int64_t keys, const float* common, const float* slope, const float* phi, float* grad) {
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    const vec factor = load(common + lane);
    for (int64_t k = 0; k < keys; ++k) {
      const int64_t at = k * kPanel + lane;
      const vec shared = load(phi + at) * factor;
      store(grad + at, slope ? load(slope + at) + shared : shared);
    }
  }
}

template <bool Additive, bool Segment>
class Backward {
 public:
  Backward(const Problem& p, const Head& head, Workspace& w, Gradients& sums, float* grad_bias)
      : p_(p), head_(head), grid_(p, head.b), w_(w), sums_(sums), grad_bias_(grad_bias), dropout_(p) {
    for (int64_t i = 0; i < p.pairs(); ++i) keys_[i] = matrix(p.pair[i].k, p.pair[i].width, w.copy[i]);
    values_ = matrix(p.v, p.value_width, w.copy[kMaxPairs]);
  }

  void run(const Block& block) {
    bool blind[kMaxPanels * kPanel];
    for (int64_t i = 0; i < block.rows; ++i) blind[i] = p_.row(head_.b, head_.h, block.query + i)[2 * kLeft + 1] == 0.f;
    for (int64_t i = 0; i < p_.pairs(); ++i) {
      const Pair& pair = p_.pair[i];
      load_queries(p_, pair.q, head_.b, head_.h, block.query, block.rows, pair.width, float(pair.scale), blind,
                   w_.rows[i], padded(pair.width), w_.queries[i]);
      std::memset(w_.grad_queries[i], 0, sizeof(float) * block.panels * kPanel * pair.width);
    }
    load_queries(p_, p_.grad_out, head_.b, head_.h, block.query, block.rows, p_.value_width, 1.f, blind, w_.grad_rows,
                 padded(p_.value_width), w_.grad_panels);
    if (w_.visible) read_mask(p_, head_, block, w_.visible);
    for (int64_t i = 0; i < block.panels; ++i) start(block, i);
    if (p_.is_normalized) {
      for_tiles(block, [&](int64_t first, int64_t last, TilePointers& tile) { point_tile(block, first, last, tile); });
      sum_after(block);
    }
    for_tiles(block, [&](int64_t first, int64_t last, TilePointers& tile) {
      if (!p_.is_normalized) point_tile(block, first, last, tile);
      reach(block, first, last, tile);
      sweep_scores(block, first, last, tile);
    });
    finish_slopes(block);
    for_tiles(block, [&](int64_t first, int64_t last, const TilePointers& tile) {
      sweep_pointers(block, first, last, tile);
    });
    for (int64_t i = 0; i < p_.pairs(); ++i) store_grad_queries(block, i);
  }

 private:
  Matrix matrix(const Tensor& t, int64_t width, float* copy) const {
    return head_matrix(p_, head_, t, width, !needs_copy(p_, t, width), copy);
  }

  void start(const Block& block, int64_t i) {
    Panel& panel = panels_[i];
    std::memset(&panel, 0, sizeof(Panel));
    num_tiles_[i] = 0;
    const int64_t query = block.query + i * kPanel, width = p_.value_width;
    const float* row = p_.row(head_.b, head_.h, query);
    for (int64_t lane = 0; lane < block.rows_of(i); ++lane)
      for (int kind = 0; kind < 3; ++kind) {
        panel.max[kind][lane] = row[lane * p_.row_width + 2 * kind];
        panel.inverse[kind][lane] = row[lane * p_.row_width + 2 * kind + 1];
      }
    if (p_.is_bf16)
      to_panel(row + kStatistics, p_.row_width, block.rows_of(i), width, w_.out_panel);
    else
      to_panel(row_of<float>(p_.out, head_.b, head_.h, query), p_.out.row, block.rows_of(i), width, w_.out_panel);
    add_products(width, w_.out_panel, w_.grad_panels + i * kPanel * width, panel.dot);
  }

  template <typename Body>
  void for_tiles(const Block& block, const Body& body) {
    TilePointers* tile = w_.tile;
    for (int64_t first = 0, last; first < block.keys; first = last) {
      last = grid_.tile_end(first, block.keys);
      body(first, last, *tile++);
    }
  }

  void score(const Block& block, PanelBits some, int64_t kind, int64_t first, int64_t last, Panels out) {
    score_tile(block, some, first, last, keys_[kind], w_.queries[kind], p_.pair[kind].width, out);
  }

  // Add a tile's gradient of scores to the gradients of its queries and keys.
  void send(const Block& block, PanelBits some, int64_t kind, int64_t first, int64_t last, Panels grad) {
    const int64_t width = p_.pair[kind].width;
    gather_tile(block, some, first, last, keys_[kind], grad, width, w_.grad_queries[kind]);
    scatter_tile(block, some, first, last, grad, w_.rows[kind], padded(width), sums_.keys[kind]);
  }

  // Add a tile's gradient of scores, which is that of the bias, to the places that it broadcasts from.
  void send_bias(const Block& block, PanelBits some, int64_t first, int64_t last) {
    const int64_t query_step = p_.grad_bias.query, key_step = p_.grad_bias.key;
    for (int64_t i = 0; i < block.panels; ++i) {
      const int64_t keys = block.end(i, last) - first, rows = block.rows_of(i);
      if (keys <= 0 || !(some >> i & 1)) continue;
      const float* grad = panel(w_.grad, i);
      float* to = grad_bias_ + (block.query + i * kPanel) * query_step + first * key_step;
      if (query_step && key_step == 1) {
        add_panel(grad, rows, keys, to, query_step);
        continue;
      }
      for (int64_t key = 0; key < keys; ++key)
        for (int64_t lane = 0; lane < rows; ++lane) to[lane * query_step + key * key_step] += grad[key * kPanel + lane];
    }
  }

  static Panels at(Panels x, int64_t key) { return {x.data + key * kPanel, x.step}; }

  // The panels with a row for which forward found something in a tile, be it the window or a pointer.
  PanelBits needed(const Block& block, int64_t index) const {
    if (!is_cut(p_)) return block.all();
    PanelBits some = 0;
    for (int64_t row = 0; row < block.rows; ++row) {
      const word* bits = p_.tile_bits(head_.b, head_.h, block.query + row);
      some |= (bits[index / 32] >> index % 32 & 1) << row / kPanel;
    }
    return some;
  }

  // Compute the pointers φ of a tile and their sums.
  void point_tile(const Block& block, int64_t first, int64_t last, TilePointers& tile) {
    const int64_t index = &tile - w_.tile;
    tile.some = needed(block, index);
    for (int side = 0; side < kSides; ++side) {
      score(block, tile.some, kLeft + side, first, last, at(w_.pointer[side], first));
      for (int64_t i = 0; i < block.panels; ++i) {
        const int64_t end = block.end(i, last), kind = kLeft + side;
        float *row = panel(w_.pointer[side], i), *mass = tile.mass[i][side];
        if (end > first) num_tiles_[i] = index + 1;
        if (end <= first || !(tile.some >> i & 1)) {
          std::memset(mass, 0, sizeof(float) * kPanel);
          continue;
        }
        hide(p_, block, i, w_.visible, first, end, 0, row);
        point(row + first * kPanel, end - first, panels_[i].max[kind], panels_[i].inverse[kind], mass);
      }
    }
  }

  // Add up the pointers after each tile.
  void sum_after(const Block& block) {
    for (int64_t i = 0; i < block.panels; ++i)
      for (int side = 0; side < kSides; ++side)
        for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
          vec after{};
          for (int64_t index = num_tiles_[i]; index-- > 0;) {
            store(w_.tile[index].after[i][side] + lane, after);
            after += load(w_.tile[index].mass[i][side] + lane);
          }
        }
  }

  // Add what only the whole row tells to dφ. It ends in − Σ φ dφ, short of Σ dF which cancels. Normalised, M can be small
  // and dM large, and so can Σ dF be against the dφ it would cancel from; there the sums of dF after each tile are added, and
  // Σ φ dφ = Σ M dM = −Σ A (dA − D) over the sinks, for over all keys that is 0.
  void finish_slopes(const Block& block) {
    for (int64_t i = 0; i < block.panels; ++i)
      for (int side = 0; side < kSides; ++side)
        for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
          vec rest = p_.is_normalized ? load(panels_[i].sunk + lane) : -load(panels_[i].total[side] + lane);
          for (int64_t index = num_tiles_[i]; index-- > 0;) {
            TilePointers& tile = w_.tile[index];
            store(tile.slope[i][side] + lane, load(tile.slope[i][side] + lane) + rest);
            if (p_.is_normalized) rest += load(tile.grad_f[i][side] + lane);
          }
        }
  }

  // Find the panels whose windows may reach a tile. The others pass it: dφ is the same for all its keys.
  void reach(const Block& block, int64_t first, int64_t last, TilePointers& tile) {
    tile.inside = 0;
    for (int64_t i = 0; i < block.panels; ++i) {
      if (block.end(i, last) <= first) continue;
      Panel& x = panels_[i];
      const auto is_reached = [&] { return reaches(float(p_.threshold), block.rows_of(i), x.before, tile.mass[i]); };
      if (!is_cut(p_) || grid_.sinks.meet(first, last) || ((tile.some >> i & 1) && is_reached())) {
        tile.inside |= PanelBits(1) << i;
        std::memset(tile.slope[i], 0, sizeof(tile.slope[i]));
        continue;
      }
      std::memcpy(tile.slope[i], x.scan, sizeof(x.scan));
      std::memset(tile.grad_f[i], 0, sizeof(tile.grad_f[i]));
      for (int side = 0; side < kSides; ++side)
        for (int64_t lane = 0; lane < kPanel; ++lane) {
          const float mass = tile.mass[i][side][lane];
          x.total[side][lane] += mass * x.scan[side][lane];
          x.before[side][lane] += mass;
        }
    }
  }

  auto differentiator() const {
    if (p_.is_normalized) return differentiate<kNormalized, Segment, true>;
    constexpr Kind kind = Additive ? kAdditive : kMultiplicative;
    return is_cut(p_) ? differentiate<kind, Segment, true> : differentiate<kind, Segment, false>;
  }

  void sweep_scores(const Block& block, int64_t first, int64_t last, TilePointers& tile) {
    // Outside of the window, multiplicative scores have gradients, values and their weights none; normalised, neither.
    const PanelBits inside = tile.inside, scored = p_.is_normalized ? inside : block.all();
    const PanelBits weighed = Additive ? block.all() : inside;
    score(block, scored, kScore, first, last, w_.score);
    if constexpr (Additive) score(block, inside, kLocal, first, last, w_.local);
    score_tile(block, weighed, first, last, values_, w_.grad_panels, p_.value_width, w_.grad);
    for (int64_t i = 0; i < block.panels; ++i) {
      const int64_t end = block.end(i, last);
      if (end <= first || !(scored >> i & 1)) continue;
      const PanelTile x{panel(w_.pointer[0], i), panel(w_.pointer[1], i), panel(w_.slope[0], i), panel(w_.slope[1], i),
                        panel(w_.score, i), panel(w_.local, i), panel(w_.grad, i),
                        {{w_.suffix[0], w_.suffix[1]}, tile.after[i]}, tile.grad_f[i]};
      add_bias(p_, head_, block, i, first, end, w_.bias, x.score);
      hide(p_, block, i, w_.visible, first, end, first, x.score);
      dropout_.seed_panel(p_, head_.b, head_.h, block.query + i * kPanel);
      if (!(inside >> i & 1)) {
        differentiate_outside<Additive>(first, end, dropout_, panels_[i], x);
        continue;
      }
      if constexpr (!Additive)
        exponentiate(x.score, end - first, panels_[i].max[kScore], panels_[i].inverse[kScore]);
      differentiator()(p_, grid_, first, end, dropout_, panels_[i], x);
    }
    if (grad_bias_) send_bias(block, scored, first, last);
    if (!block.whole(last))
      for (const Panels& x : {w_.score, w_.local, w_.grad}) clear_unseen(block, first, last, x);
    scatter_tile(block, weighed, first, last, w_.score, w_.grad_rows, padded(p_.value_width), sums_.values);
    send(block, scored, kScore, first, last, w_.grad);
    if constexpr (Additive) send(block, inside, kLocal, first, last, w_.local);
  }

  void sweep_pointers(const Block& block, int64_t first, int64_t last, const TilePointers& tile) {
    for (int side = 0; side < kSides; ++side) {
      const Panels phi = at(w_.pointer[side], first), slope = at(w_.slope[side], first);
      for (int64_t i = 0; i < block.panels; ++i) {
        const int64_t keys = block.end(i, last) - first;
        if (!(tile.some >> i & 1)) continue;
        center(keys, tile.slope[i][side], tile.inside >> i & 1 ? panel(slope, i) : nullptr, panel(phi, i), panel(w_.grad, i));
      }
      if (!block.whole(last)) clear_unseen(block, first, last, w_.grad);
      send(block, tile.some, kLeft + side, first, last, w_.grad);
    }
  }

  static float* panel(Panels x, int64_t i) { return x.data + i * x.step; }

  void store_grad_queries(const Block& block, int64_t kind) {
    const Pair& pair = p_.pair[kind];
    alignas(64) float factor[kPanel];
    std::fill(factor, factor + kPanel, float(pair.scale));
    for (int64_t i = 0; i < block.panels; ++i)
      store_queries(p_, p_.grad_q[kind], head_.b, head_.h, block.query + i * kPanel, block.rows_of(i), pair.width,
                    w_.grad_queries[kind] + i * kPanel * pair.width, factor);
  }

  const Problem& p_;
  const Head& head_;
  const Grid grid_;
  Workspace& w_;
  Gradients& sums_;
  float* const grad_bias_;  // of the head, or null
  Dropout dropout_;
  Matrix keys_[kMaxPairs], values_;
  Panel panels_[kMaxPanels];
  int64_t num_tiles_[kMaxPanels];  // those with keys that a panel may see
};

constexpr int64_t kBlockRows = kMaxPanels * kPanel;

// The number of runs of blocks that a head is divided into. Each run has its own sums, which are added in order, so the
// number must not depend on the threads. It is 1 unless there are few heads with sums small enough to store.
int64_t cuts_of(const Problem& p) {
  // runs of one head would add to the same place of the bias
  if (p.grad_bias.data && (p.sharing() > 1 || !p.grad_bias.query)) return 1;
  constexpr int64_t units = 16, memory = int64_t(32) << 20;
  const int64_t heads = p.batch * p.heads, blocks = ceil_div(p.queries, kBlockRows);
  const int64_t affordable = memory / std::max<int64_t>(1, heads * Gradients::bytes(p));
  return std::max<int64_t>(1, std::min({ceil_div(units, std::max<int64_t>(heads, 1)), blocks, affordable}));
}

template <bool Additive, bool Segment>
void run_blocks(const Problem& p, int64_t head_index, int64_t slab, int64_t cut, int64_t cuts, char* memory,
                Gradients& sums) {
  const Head head(p, head_index / p.heads, head_index % p.heads);
  Workspace workspace(p, memory);
  const BiasGrad& bias = p.grad_bias;
  float* grad_bias = bias.data ? bias.data + slab * bias.slab + head.b * bias.batch + head.h * bias.head : nullptr;
  Backward<Additive, Segment> run(p, head, workspace, sums, grad_bias);
  const int64_t blocks = ceil_div(p.queries, kBlockRows);
  for (int64_t i = cut; i < blocks; i += cuts)
    run.run(Block(p, head, i * kBlockRows, std::min(kBlockRows, p.queries - i * kBlockRows)));
}

template <bool Additive, bool Segment>
bool backward_cut(const Problem& p, int64_t cuts) {
  const int64_t heads = p.batch * p.heads, each = Gradients::bytes(p);
  char* kept = static_cast<char*>(std::aligned_alloc(64, std::max<int64_t>(64, heads * cuts * each)));
  if (!kept) return false;
  const auto sums_of = [&](int64_t unit) {
    std::memset(kept + unit * each, 0, each);
    Arena arena(kept + unit * each);
    return Gradients(p, arena);
  };
  bool fits = parallel(heads * cuts, p.threads, Workspace(p, nullptr).bytes, [&](int64_t unit, char* memory) {
    Gradients sums = sums_of(unit);
    run_blocks<Additive, Segment>(p, unit / cuts, 0, unit % cuts, cuts, memory, sums);
  });
  fits = fits && parallel(heads, p.threads, 64, [&](int64_t unit, char*) {
    float* first = reinterpret_cast<float*>(kept + unit * cuts * each);
    const int64_t count = each / int64_t(sizeof(float));
    for (int64_t cut = 1; cut < cuts; ++cut)
      for (int64_t i = 0; i < count; ++i) first[i] += first[cut * count + i];
    Arena arena(reinterpret_cast<char*>(first));
    Gradients(p, arena).finish(p, unit / p.heads, unit % p.heads);
  });
  std::free(kept);
  return fits;
}

template <bool Additive, bool Segment>
bool backward(const Problem& p) {
  const int64_t cuts = cuts_of(p), each = Gradients::bytes(p);
  if (cuts > 1) return backward_cut<Additive, Segment>(p, cuts);
  // Heads that share a place of the bias's gradient are dealt out to its slabs, and those of a slab run one after another.
  const int64_t sharing = p.sharing(), slabs = sharing > 1 ? p.grad_bias.slabs : 1;
  const int64_t units = p.batch * p.heads / sharing * slabs;
  return parallel(units, p.threads, each + Workspace(p, nullptr).bytes, [&](int64_t unit, char* memory) {
    for (int64_t member = unit % slabs; member < sharing; member += slabs) {
      const int64_t head = p.head_sharing(unit / slabs, member), b = head / p.heads, h = head % p.heads;
      Arena arena(memory);
      Gradients sums(p, arena);
      sums.begin(p, b, h);
      run_blocks<Additive, Segment>(p, head, unit % slabs, 0, 1, memory + each, sums);
      sums.finish(p, b, h);
    }
  });
}

}  // namespace
}  // namespace dw

extern "C" __attribute__((visibility("default"))) int dw_backward(const dw::Problem* p) {
  using namespace dw;
  const bool segment = p->segment_size > 1;
  const auto run = p->is_additive ? (segment ? backward<true, true> : backward<true, false>)
                                  : (segment ? backward<false, true> : backward<false, false>);
  return run(*p) ? 0 : 1;
}
