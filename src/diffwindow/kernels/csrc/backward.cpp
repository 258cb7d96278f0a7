// Backward: two sweeps over the keys of a block of queries. The first recomputes a tile of keys (Eq. 1 to 17) and adds
// the gradients of scores, local scores and values to their queries and keys. The gradients of the pointers (Eq. 7, 8)
// need the total of their row, so the second sweep adds those. Gradients of keys and values are summed over the blocks
// of a head in a fixed order. With D = Σ dO ⊙ O: multiplicative (Eq. 13) dS = A ⊙ dA − P D and dM = P ⊙ dA; additive
// (Eq. 17) dS = A ⊙ (dA − D), dO_local = dS ⊙ M and dM = dS ⊙ o. From dM (Eq. 9, 11): dF_l = dM ⊙ G_r, dG_r = dM ⊙ F_l,
// dF_r = dM ⊙ G_l, dG_l = dM ⊙ F_r, and dφ at a key is ΣdF from it on plus ΣdG up to it (Eq. 5, 10).
#include "block.h"
#include "dropout.h"
#include "parallel.h"

namespace dw {
namespace {

constexpr int kSides = 2;

struct Panel {  // the state of a panel between tiles
  alignas(64) float max[3][kPanel], inverse[3][kPanel];  // of score, left and right: softmax(x) = e^(x − max) · inverse
  alignas(64) float dot[kPanel];              // D = dO · O
  alignas(64) float before[kSides][kPanel];   // F up to the tile
  alignas(64) float scan[kSides][kPanel];     // Σ (dG − dF) up to the tile
  alignas(64) float total[kSides][kPanel];    // Σ φ dφ, short of a constant that cancels
};

// The columns of rows that `scatter_tile` multiplies by: panels, or half of one.
int64_t padded(int64_t width) { return width <= Narrow::lanes ? Narrow::lanes : round_up(width, kPanel); }

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

struct Workspace {
  float *rows[kMaxPairs], *grad_rows;         // [query][width], scaled, zero-padded
  float *queries[kMaxPairs], *grad_panels;    // panels [width][16] of the same
  float* grad_queries[kMaxPairs];             // panels [width][16]
  float* out_panel;
  float* copy[kMaxPairs + 1];
  Panels pointer[kSides], slope[kSides];      // φ, and φ dφ short of the row's total: whole rows
  Panels score, local, grad;                  // a tile
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
};

// x <- e^(x − max) · factor
void exponentiate(float* x, int64_t keys, const float* max, const float* factor) {
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    const vec top = load(max + lane), scale = load(factor + lane);
    for (int64_t k = 0; k < keys; ++k)
      store(x + k * kPanel + lane, exp(load(x + k * kPanel + lane) - top) * scale);
  }
}

// From φ and scores to gradients over a tile: score <- A, grad <- dS, local <- dO_local, slope <- φ dφ. Multiplicative
// scores are P already.
template <bool Additive, bool Segment>
void differentiate(const Grid& grid, int64_t begin, int64_t end, bool exact, const Dropout& dropout, Panel& panel,
                   const PanelTile& x) {
  const float overlap = exact ? 1.f : 0.f;
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    const vec top = load(panel.max[0] + lane), inverse = load(panel.inverse[0] + lane);
    const vec dot = load(panel.dot + lane);
    const vec left_before = load(panel.before[0] + lane), right_before = load(panel.before[1] + lane);
    vec left_here{}, right_here{};
    vec scan_left = load(panel.scan[0] + lane), scan_right = load(panel.scan[1] + lane);
    vec total_left = load(panel.total[0] + lane), total_right = load(panel.total[1] + lane);
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
      const vec g_left = 1.f - f_left + mass_left, g_right = 1.f - f_right + mass_right;
      const vec window = f_left * g_right + f_right * g_left - overlap * (mass_left * mass_right);
      vec grad_window{};
      for (int64_t key = first; key < last; ++key) {
        const int64_t at = (key - begin) * kPanel + lane;
        const vec keep = dropout.active ? dropout.factor(key, lane) : splat(1.f);
        const vec grad = load(x.grad + at) * keep;
        if constexpr (Additive) {
          const vec local = load(x.local + at);
          const vec weight = exp(load(x.score + at) + local * window - top) * inverse;
          const vec grad_score = weight * (grad - dot);
          store(x.score + at, weight * keep);
          store(x.grad + at, grad_score);
          store(x.local + at, grad_score * window);
          grad_window += grad_score * local;
        } else {
          const vec weight = load(x.score + at);
          store(x.score + at, weight * keep * window);
          store(x.grad + at, weight * (grad * window - dot));
          grad_window += grad * weight;
        }
      }
      const vec df_left = grad_window * g_right, df_right = grad_window * g_left;
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
    store(panel.before[0] + lane, left_before + left_here);
    store(panel.before[1] + lane, right_before + right_here);
    store(panel.scan[0] + lane, scan_left);
    store(panel.scan[1] + lane, scan_right);
    store(panel.total[0] + lane, total_left);
    store(panel.total[1] + lane, total_right);
  }
}

// dot += Σ a b over the rows of two panels: the very chain of fused multiply-adds by which `gemm` takes dO · V, so that
// where the two should cancel they do. It is spelled out because compilers tune such a chain into separate steps.
void add_products(int64_t rows, const float* a, const float* b, float* dot) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      const float x = a[i * kPanel + lane], y = b[i * kPanel + lane];
#if defined(FP_FAST_FMAF) || defined(__FP_FAST_FMAF)
      dot[lane] = __builtin_fmaf(x, y, dot[lane]);
#else
      dot[lane] += x * y;
#endif
    }
}

// The softmax's gradient, φ dφ − φ Σ φ dφ.
void center(int64_t keys, const float* total, const float* slope, const float* phi, float* grad) {
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    const vec sum = load(total + lane);
    for (int64_t k = 0; k < keys; ++k) {
      const int64_t at = k * kPanel + lane;
      store(grad + at, load(slope + at) - load(phi + at) * sum);
    }
  }
}

template <bool Additive, bool Segment>
class Backward {
 public:
  Backward(const Problem& p, const Head& head, Workspace& w, Gradients& sums)
      : p_(p), head_(head), grid_(p, head.b), w_(w), sums_(sums), dropout_(p) {
    for (int64_t i = 0; i < p.pairs(); ++i) keys_[i] = matrix(p.pair[i].k, p.pair[i].width, w.copy[i]);
    values_ = matrix(p.v, p.value_width, w.copy[kMaxPairs]);
  }

  void run(const Block& block) {
    bool blind[kMaxPanels * kPanel];
    for (int64_t i = 0; i < block.rows; ++i) blind[i] = p_.row(head_.b, head_.h, block.query + i)[1] == 0.f;
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
    for (int64_t first = 0, last; first < block.keys; first = last) {
      last = grid_.tile_end(first, block.keys);
      sweep_scores(block, first, last);
    }
    for (int64_t first = 0; first < block.keys; first += kTile)
      sweep_pointers(block, first, std::min(first + kTile, block.keys));
    for (int64_t i = 0; i < p_.pairs(); ++i) store_grad_queries(block, i);
  }

 private:
  Matrix matrix(const Tensor& t, int64_t width, float* copy) const {
    return head_matrix(p_, head_, t, width, !needs_copy(p_, t, width), copy);
  }

  void start(const Block& block, int64_t i) {
    Panel& panel = panels_[i];
    std::memset(&panel, 0, sizeof(Panel));
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

  void score(const Block& block, int64_t kind, int64_t first, int64_t last, Panels out) {
    score_tile(block, first, last, keys_[kind], w_.queries[kind], p_.pair[kind].width, out);
  }

  // Add a tile's gradient of scores to the gradients of its queries and keys.
  void send(const Block& block, int64_t kind, int64_t first, int64_t last, Panels grad) {
    const int64_t width = p_.pair[kind].width;
    gather_tile(block, first, last, keys_[kind], grad, width, w_.grad_queries[kind]);
    scatter_tile(block, first, last, grad, w_.rows[kind], padded(width), sums_.keys[kind]);
  }

  static Panels at(Panels x, int64_t key) { return {x.data + key * kPanel, x.step}; }

  void sweep_scores(const Block& block, int64_t first, int64_t last) {
    score(block, kLeft, first, last, at(w_.pointer[0], first));
    score(block, kRight, first, last, at(w_.pointer[1], first));
    score(block, kScore, first, last, w_.score);
    if constexpr (Additive) score(block, kLocal, first, last, w_.local);
    score_tile(block, first, last, values_, w_.grad_panels, p_.value_width, w_.grad);
    for (int64_t i = 0; i < block.panels; ++i) {
      const int64_t end = block.end(i, last);
      if (end <= first) continue;
      const PanelTile x{panel(w_.pointer[0], i), panel(w_.pointer[1], i), panel(w_.slope[0], i), panel(w_.slope[1], i),
                        panel(w_.score, i), panel(w_.local, i), panel(w_.grad, i)};
      add_bias(p_, head_, block, i, first, end, w_.bias, x.score);
      hide(p_, block, i, w_.visible, first, end, 0, x.left);
      hide(p_, block, i, w_.visible, first, end, 0, x.right);
      hide(p_, block, i, w_.visible, first, end, first, x.score);
      exponentiate(x.left + first * kPanel, end - first, panels_[i].max[kLeft], panels_[i].inverse[kLeft]);
      exponentiate(x.right + first * kPanel, end - first, panels_[i].max[kRight], panels_[i].inverse[kRight]);
      if constexpr (!Additive)
        exponentiate(x.score, end - first, panels_[i].max[kScore], panels_[i].inverse[kScore]);
      dropout_.seed_panel(p_, head_.b, head_.h, block.query + i * kPanel);
      differentiate<Additive, Segment>(grid_, first, end, p_.is_exact, dropout_, panels_[i], x);
    }
    if (!block.whole(last))
      for (const Panels& x : {w_.score, w_.local, w_.grad}) clear_unseen(block, first, last, x);
    scatter_tile(block, first, last, w_.score, w_.grad_rows, padded(p_.value_width), sums_.values);
    send(block, kScore, first, last, w_.grad);
    if constexpr (Additive) send(block, kLocal, first, last, w_.local);
  }

  void sweep_pointers(const Block& block, int64_t first, int64_t last) {
    for (int side = 0; side < kSides; ++side) {
      const Panels phi = at(w_.pointer[side], first), slope = at(w_.slope[side], first);
      for (int64_t i = 0; i < block.panels; ++i)
        center(block.end(i, last) - first, panels_[i].total[side], panel(slope, i), panel(phi, i), panel(w_.grad, i));
      if (!block.whole(last)) clear_unseen(block, first, last, w_.grad);
      send(block, kLeft + side, first, last, w_.grad);
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
  Dropout dropout_;
  Matrix keys_[kMaxPairs], values_;
  Panel panels_[kMaxPanels];
};

constexpr int64_t kBlockRows = kMaxPanels * kPanel;

// The number of runs of blocks that a head is divided into. Each run has its own sums, which are added in order, so the
// number must not depend on the threads. It is 1 unless there are few heads with sums small enough to store.
int64_t cuts_of(const Problem& p) {
  constexpr int64_t units = 16, memory = int64_t(32) << 20;
  const int64_t heads = p.batch * p.heads, blocks = ceil_div(p.queries, kBlockRows);
  const int64_t affordable = memory / std::max<int64_t>(1, heads * Gradients::bytes(p));
  return std::max<int64_t>(1, std::min({ceil_div(units, std::max<int64_t>(heads, 1)), blocks, affordable}));
}

template <bool Additive, bool Segment>
void run_blocks(const Problem& p, int64_t head_index, int64_t cut, int64_t cuts, char* memory, Gradients& sums) {
  const Head head(p, head_index / p.heads, head_index % p.heads);
  Workspace workspace(p, memory);
  Backward<Additive, Segment> run(p, head, workspace, sums);
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
    run_blocks<Additive, Segment>(p, unit / cuts, unit % cuts, cuts, memory, sums);
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
  return parallel(p.batch * p.heads, p.threads, each + Workspace(p, nullptr).bytes, [&](int64_t unit, char* memory) {
    Arena arena(memory);
    Gradients sums(p, arena);
    sums.begin(p, unit / p.heads, unit % p.heads);
    run_blocks<Additive, Segment>(p, unit, 0, 1, memory + each, sums);
    sums.finish(p, unit / p.heads, unit % p.heads);
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
