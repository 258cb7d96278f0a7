// Forward: two sweeps over the keys of a block of queries. The first computes the pointers φ (Eq. 7, 8): boundary scores,
// their maxima and sums. The second computes the prefix sums F and G (Eq. 5, 10), the window M (Eq. 9, 11), the attention
// weights (Eq. 13, or Eq. 14 to 17) and the output. Only the pointers' rows are kept between the sweeps.
#include "block.h"
#include "dropout.h"
#include "parallel.h"
#include "reach.h"
#include "softmax.h"

namespace dw {
namespace {

struct Panel {  // the state of a panel between tiles
  Running score, pointer[2];
  alignas(64) float before[2][kPanel];  // F up to the tile
  int64_t tiles;                        // those with keys that it may see
};

struct TilePointers {  // of a tile's pointers: the maximum that they were taken from, their sum, and that of those after them
  alignas(64) float max[2][kPanel], sum[2][kPanel], after[2][kPanel];
};

struct Workspace {
  float* natural;             // one kind of queries as rows
  float* queries[kMaxPairs];  // panels [width][16]
  float* copy[kMaxPairs + 1];
  Panels pointer[2];  // e^(score − running maximum), whole rows
  Panels score, local;  // a tile
  TilePointers* tile;   // [tile][panel]
  float* suffix[2];     // a panel of a tile
  float* out;           // [panel][width][16]
  float* bias;          // a panel of a tile
  int8_t* visible;
  int64_t bytes;

  Workspace(const Problem& p, char* memory) {
    Arena arena(memory);
    int64_t widest = 0;
    for (int64_t i = 0; i < p.pairs(); ++i) widest = std::max(widest, p.pair[i].width);
    natural = arena.floats(kMaxPanels * kPanel * widest);
    for (int64_t i = 0; i < p.pairs(); ++i) {
      queries[i] = arena.floats(kMaxPanels * kPanel * p.pair[i].width);
      copy[i] = keys_in_place(p, i) ? nullptr : arena.floats(p.keys * p.pair[i].width);
    }
    copy[kMaxPairs] = take_copy(arena, p, p.value_width, !needs_copy(p, p.v, p.value_width));
    for (Panels& x : pointer) x = take_panels(arena, p.keys);
    score = take_panels(arena, Grid::capacity(p));
    local = take_panels(arena, Grid::capacity(p));
    tile = arena.take<TilePointers>(p.max_tiles() * kMaxPanels);
    for (float*& x : suffix) x = arena.floats(p.is_normalized ? Grid::capacity(p) * kPanel : 0);
    out = arena.floats(kMaxPanels * kPanel * p.value_width);
    bias = arena.floats(p.bias.data ? Grid::capacity(p) * kPanel : 0);
    visible = arena.take<int8_t>(p.hides() || p.is_causal ? kMaxPanels * kPanel * p.keys : 0);
    bytes = arena.used();
  }
  // Keys that a single block of queries meets are read once, so a copy of far-apart rows would not pay.
  static bool keys_in_place(const Problem& p, int64_t i) {
    const bool once = !p.is_bf16 && p.queries <= kMaxPanels * kPanel;
    return once || !needs_copy(p, p.pair[i].k, p.pair[i].width);
  }
  static Panels take_panels(Arena& arena, int64_t keys) {
    return {arena.floats(kMaxPanels * keys * kPanel), keys * kPanel};
  }
};

// The unnormalised pointers of a tile (Eq. 7, 8): e^(score − running maximum). Keeps the maximum and adds to the sum.
void point(float* x, int64_t keys, Running& run, float* tile_max, float* tile_sum) {
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    const vec before = load(run.max + lane);
    vec top = before;
    for (int64_t k = 0; k < keys; ++k) top = larger(top, load(x + k * kPanel + lane));
    vec sum{};
    for (int64_t k = 0; k < keys; ++k) {
      const vec e = exp(load(x + k * kPanel + lane) - top);
      store(x + k * kPanel + lane, e);
      sum += e;
    }
    store(run.sum + lane, load(run.sum + lane) * exp(before - top) + sum);
    store(run.max + lane, top);
    store(tile_max + lane, top);
    store(tile_sum + lane, sum);
  }
}

// What a tile's pointers are to be multiplied by: e^(their maximum − the row's) over the row's sum.
DW_INLINE vec pointer_factor(const TilePointers& tile, const Running& run, int side, int64_t lane) {
  const vec sum = load(run.sum + lane);
  return exp(load(tile.max[side] + lane) - load(run.max + lane)) / (sum > 0 ? sum : splat(1.f));
}

// Build the window M over a tile (Eq. 9, 11), 0 where it is below the threshold. Additive: the scores become s + o ⊙ M
// (Eq. 17). Multiplicative: M is stored where the local scores would be.
template <Kind kind, bool Segment, bool Cut>
void build_window(const Problem& p, const Grid& grid, Tile tile, int64_t end, Panel& panel,
                  const TilePointers& tile_pointers, Suffix suffix, const float* left, const float* right, float* score,
                  float* local) {
  const float overlap = p.is_exact ? 1.f : 0.f, threshold = float(p.threshold);
  if constexpr (kind == kNormalized) {
    suffix.sum(0, left + tile.first * kPanel, end - tile.first);
    suffix.sum(1, right + tile.first * kPanel, end - tile.first);
  }
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    vec factor[2];
    for (int side = 0; side < 2; ++side) factor[side] = pointer_factor(tile_pointers, panel.pointer[side], side, lane);
    const vec left_before = load(panel.before[0] + lane), right_before = load(panel.before[1] + lane);
    vec left_here{}, right_here{};
    for (int64_t first = tile.first, last; first < end; first = last) {
      last = Segment ? std::min(grid.segment_end(first), end) : first + 1;
      vec mass_left{}, mass_right{};
      for (int64_t key = first; key < last; ++key) {
        mass_left += load(left + key * kPanel + lane);
        mass_right += load(right + key * kPanel + lane);
      }
      mass_left *= factor[0];
      mass_right *= factor[1];
      left_here += mass_left;
      right_here += mass_right;
      const vec f_left = left_before + left_here, f_right = right_before + right_here;
      vec g_left = 1.f - f_left + mass_left, g_right = 1.f - f_right + mass_right;
      if constexpr (kind == kNormalized) {
        g_left = suffix(0, first - tile.first, lane, factor[0]);
        g_right = suffix(1, first - tile.first, lane, factor[1]);
      }
      vec window = f_left * g_right + f_right * g_left - overlap * (mass_left * mass_right);
      if constexpr (Cut) window = window < threshold ? vec{} : window;
      for (int64_t key = first; key < last; ++key) {
        const int64_t at = (key - tile.first) * kPanel + lane;
        if constexpr (kind == kAdditive)
          store(score + at, load(score + at) + load(local + at) * window);
        else
          store(local + at, window);
      }
    }
    store(panel.before[0] + lane, left_before + left_here);
    store(panel.before[1] + lane, right_before + right_here);
  }
}

template <bool Additive, bool Segment>
class Forward {
 public:
  Forward(const Problem& p, const Head& head, Workspace& w) : p_(p), head_(head), grid_(p, head.b), w_(w), dropout_(p) {
    for (int64_t i = 0; i < p.pairs(); ++i) {
      // Scores of hidden keys are overwritten, so that it does not matter what their rows hold.
      const Tensor& k = p.pair[i].k;
      keys_[i] = w.copy[i] ? copy_head(p, k, head.b, head.h, head.keys, p.pair[i].width, w.copy[i])
                           : Matrix{row_of<float>(k, head.b, head.h, 0), k.row};
    }
    values_ = head_matrix(p, head, p.v, p.value_width, !needs_copy(p, p.v, p.value_width), w.copy[kMaxPairs]);
  }

  void run(const Block& block) {
    for (int64_t i = 0; i < p_.pairs(); ++i) {
      const Pair& pair = p_.pair[i];
      load_queries(p_, pair.q, head_.b, head_.h, block.query, block.rows, pair.width, float(pair.scale), nullptr,
                   w_.natural, pair.width, w_.queries[i]);
    }
    if (w_.visible) read_mask(p_, head_, block, w_.visible);
    for (int64_t i = 0; i < block.panels; ++i) start(panels_[i]);
    std::memset(w_.out, 0, sizeof(float) * block.panels * kPanel * p_.value_width);
    for_tiles(block, [&](Tile tile) { sweep_pointers(block, tile); });
    if (is_cut(p_)) normalize_sums(block);
    for (int64_t i = 0; i < block.rows; ++i)
      std::memset(p_.tile_bits(head_.b, head_.h, block.query + i), 0, sizeof(word) * p_.tile_words());
    for_tiles(block, [&](Tile tile) { sweep_weights(block, tile); });
    for (int64_t i = 0; i < block.panels; ++i) finish(block, i, panels_[i]);
  }

 private:
  template <typename Body>
  void for_tiles(const Block& block, const Body& body) {
    for (int64_t first = 0, last, index = 0; first < block.keys; first = last, ++index) {
      last = grid_.tile_end(first, block.keys);
      body(Tile{first, last, index});
    }
  }

  static void start(Panel& panel) {
    panel.tiles = 0;
    panel.score.reset();
    for (int side = 0; side < 2; ++side) {
      panel.pointer[side].reset();
      std::fill(panel.before[side], panel.before[side] + kPanel, 0.f);
    }
  }

  void mask(const Block& block, int64_t i, Tile tile, float* x) {
    hide(p_, block, i, w_.visible, tile.first, block.end(i, tile.last), tile.first, x);
  }

  TilePointers& pointers(Tile tile, int64_t i) { return w_.tile[tile.index * kMaxPanels + i]; }

  void score(const Block& block, PanelBits some, int64_t kind, Tile tile, Panels out) {
    score_tile(block, some, tile.first, tile.last, keys_[kind], w_.queries[kind], p_.pair[kind].width, out);
  }

  void sweep_pointers(const Block& block, Tile tile) {
    for (int side = 0; side < 2; ++side) {
      const Panels out{w_.pointer[side].data + tile.first * kPanel, w_.pointer[side].step};
      score(block, block.all(), kLeft + side, tile, out);
      for (int64_t i = 0; i < block.panels; ++i) {
        const int64_t keys = block.end(i, tile.last) - tile.first;
        if (keys <= 0) continue;
        panels_[i].tiles = tile.index + 1;
        mask(block, i, tile, out.data + i * out.step);
        point(out.data + i * out.step, keys, panels_[i].pointer[side], pointers(tile, i).max[side],
              pointers(tile, i).sum[side]);
      }
    }
  }

  // Turn the sums of each tile's pointers into masses of φ, and add up those after it.
  void normalize_sums(const Block& block) {
    for (int64_t i = 0; i < block.panels; ++i)
      for (int side = 0; side < 2; ++side)
        for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
          vec after{};
          for (int64_t index = panels_[i].tiles; index-- > 0;) {
            TilePointers& tile = w_.tile[index * kMaxPanels + i];
            const vec mass = load(tile.sum[side] + lane) * pointer_factor(tile, panels_[i].pointer[side], side, lane);
            store(tile.sum[side] + lane, mass);
            store(tile.after[side] + lane, after);
            after += mass;
          }
        }
  }

  // The panels whose windows may reach into a tile. The others pass it: their F grows by what is in it. Backward needs the
  // tile for rows whose window or pointers have something in it.
  PanelBits reached(const Block& block, Tile tile) {
    if (!is_cut(p_)) return block.all();
    PanelBits some = 0;
    for (int64_t i = 0; i < block.panels; ++i) {
      if (block.end(i, tile.last) <= tile.first) continue;
      auto& before = panels_[i].before;
      const auto& mass = pointers(tile, i).sum;
      const bool inside = grid_.sinks.meet(tile.first, tile.last) ||
                          reaches(float(p_.threshold), block.rows_of(i), before, mass);
      for (int64_t lane = 0; lane < block.rows_of(i); ++lane) {
        const bool needed = inside || !(mass[0][lane] < kNegligible && mass[1][lane] < kNegligible);
        word* bits = p_.tile_bits(head_.b, head_.h, block.query + i * kPanel + lane);
        bits[tile.index / 32] |= word(needed) << tile.index % 32;
      }
      if (inside)
        some |= PanelBits(1) << i;
      else
        for (int side = 0; side < 2; ++side)
          for (int64_t lane = 0; lane < kPanel; ++lane) before[side][lane] += mass[side][lane];
    }
    return some;
  }

  auto window_builder() const {
    if (p_.is_normalized) return build_window<kNormalized, Segment, true>;
    constexpr Kind kind = Additive ? kAdditive : kMultiplicative;
    return is_cut(p_) ? build_window<kind, Segment, true> : build_window<kind, Segment, false>;
  }

  void sweep_weights(const Block& block, Tile tile) {
    const PanelBits inside = reached(block, tile), scored = p_.is_normalized ? inside : block.all();
    score(block, scored, kScore, tile, w_.score);
    if constexpr (Additive) score(block, inside, kLocal, tile, w_.local);
    for (int64_t i = 0; i < block.panels; ++i) {
      const int64_t end = block.end(i, tile.last);
      if (end <= tile.first || !(scored >> i & 1)) continue;
      const bool is_inside = inside >> i & 1;
      float *score = w_.score.data + i * w_.score.step, *local = w_.local.data + i * w_.local.step;
      add_bias(p_, head_, block, i, tile.first, end, w_.bias, score);
      if (is_inside)
        window_builder()(p_, grid_, tile, end, panels_[i], pointers(tile, i),
                         {{w_.suffix[0], w_.suffix[1]}, pointers(tile, i).after},
                         w_.pointer[0].data + i * w_.pointer[0].step, w_.pointer[1].data + i * w_.pointer[1].step, score,
                         local);
      if (!Additive && is_inside) grid_.sinks.show(tile.first, end, kPanel, local);
      mask(block, i, tile, score);
      alignas(64) float rescale[kPanel];
      dropout_.seed_panel(p_, head_.b, head_.h, block.query + i * kPanel);
      const auto run = Additive            ? weigh<kSoftmax>
                       : p_.is_normalized ? weigh<kDivided>
                       : is_inside        ? weigh<kWindowed>
                                          : weigh<kSumOnly>;
      run(tile, end, dropout_, panels_[i].score, score, local, rescale);
      if (tile.first > 0) rescale_output(rescale, p_.value_width, w_.out + i * kPanel * p_.value_width);
    }
    gather_tile(block, Additive ? block.all() : inside, tile.first, tile.last, values_, w_.score, p_.value_width, w_.out);
  }

  void finish(const Block& block, int64_t i, Panel& panel) {
    alignas(64) float inverse[kPanel];
    for (int64_t lane = 0; lane < kPanel; ++lane) inverse[lane] = panel.score.inverse(lane);
    const int64_t query = block.query + i * kPanel, rows = block.rows_of(i);
    const float* out = w_.out + i * kPanel * p_.value_width;
    store_queries(p_, p_.out, head_.b, head_.h, query, rows, p_.value_width, out, inverse);
    for (int64_t lane = 0; lane < rows; ++lane) {
      float* row = p_.row(head_.b, head_.h, query + lane);
      for (const Running* run : {&panel.score, &panel.pointer[0], &panel.pointer[1]}) {
        *row++ = run->max[lane];
        *row++ = run->inverse(lane);
      }
    }
    if (p_.is_bf16)
      from_panel(out, inverse, rows, p_.value_width, p_.row(head_.b, head_.h, query) + kStatistics, p_.row_width);
  }

  const Problem& p_;
  const Head& head_;
  const Grid grid_;
  Workspace& w_;
  Matrix keys_[kMaxPairs], values_;
  Dropout dropout_;
  Panel panels_[kMaxPanels];
};

template <bool Additive, bool Segment>
bool forward(const Problem& p) {
  const int64_t heads = p.batch * p.heads, block_rows = kMaxPanels * kPanel;
  const int64_t blocks = ceil_div(p.queries, block_rows);
  // Whole heads share their copied keys; few heads are cut up, so that every thread has some.
  const int64_t cuts = heads >= 2 * p.threads ? 1 : std::min(blocks, 2 * p.threads);
  const int64_t bytes = Workspace(p, nullptr).bytes;
  return parallel(heads * cuts, p.threads, bytes, [&](int64_t unit, char* memory) {
    const Head head(p, unit / cuts / p.heads, unit / cuts % p.heads);
    Workspace workspace(p, memory);
    Forward<Additive, Segment> run(p, head, workspace);
    for (int64_t i = unit % cuts; i < blocks; i += cuts)
      run.run(Block(p, head, i * block_rows, std::min(block_rows, p.queries - i * block_rows)));
  });
}

}  // namespace
}  // namespace dw

extern "C" __attribute__((visibility("default"))) int dw_forward(const dw::Problem* p) {
  using namespace dw;
  const bool segment = p->segment_size > 1;
  const auto run = p->is_additive ? (segment ? forward<true, true> : forward<true, false>)
                                  : (segment ? forward<false, true> : forward<false, false>);
  return run(*p) ? 0 : 1;
}
