// Forward: two sweeps over the keys of a block of queries. The first computes the pointers φ (Eq. 7, 8): boundary scores,
// their maxima and sums. The second computes the prefix sums F and G (Eq. 5, 10), the window M (Eq. 9, 11), the attention
// weights (Eq. 13, or Eq. 14 to 17) and the output. Only the pointers' rows are kept between the sweeps.
#include "block.h"
#include "dropout.h"
#include "parallel.h"

namespace dw {
namespace {

constexpr float kLowest = -__FLT_MAX__;  // stands for "nothing seen yet": finite, so that differences are

struct Running {  // softmax statistics of sixteen rows
  alignas(64) float max[kPanel], sum[kPanel];
  void reset() {
    std::fill(max, max + kPanel, kLowest);
    std::fill(sum, sum + kPanel, 0.f);
  }
  // What the sums are to be multiplied by. A row that sees nothing has none, and NaN must stay NaN.
  float inverse(int64_t lane) const { return sum[lane] == 0 ? 0.f : 1.f / sum[lane]; }
};

struct Panel {  // the state of a panel between tiles
  Running score, pointer[2];
  alignas(64) float before[2][kPanel];  // F up to the tile
};

struct Workspace {
  float* natural;             // one kind of queries as rows
  float* queries[kMaxPairs];  // panels [width][16]
  float* copy[kMaxPairs + 1];
  Panels pointer[2];  // e^(score − running maximum), whole rows
  Panels score, local;  // a tile
  float* tile_max;      // [tile][panel][2][16]: the maximum that a tile's pointers were taken from
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
    // A tile of whole segments may be little more than half full.
    tile_max = arena.floats((p.keys / (kTile / 2) + 3) * kMaxPanels * 2 * kPanel);
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
void point(float* x, int64_t keys, Running& run, float* tile_max) {
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
  }
}

struct Tile {
  int64_t first, last, index;
};

// Build the window M over a tile (Eq. 9, 11). Additive: the scores become s + o ⊙ M (Eq. 17). Multiplicative: M is stored
// where the local scores would be.
template <bool Additive, bool Segment>
void build_window(const Grid& grid, Tile tile, int64_t end, bool exact, Panel& panel, const float* tile_max,
                  const float* left, const float* right, float* score, float* local) {
  const float overlap = exact ? 1.f : 0.f;
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    vec factor[2];
    for (int side = 0; side < 2; ++side) {
      const Running& run = panel.pointer[side];
      const vec sum = load(run.sum + lane);
      factor[side] = exp(load(tile_max + side * kPanel + lane) - load(run.max + lane)) / (sum > 0 ? sum : splat(1.f));
    }
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
      const vec g_left = 1.f - f_left + mass_left, g_right = 1.f - f_right + mass_right;
      const vec window = f_left * g_right + f_right * g_left - overlap * (mass_left * mass_right);
      for (int64_t key = first; key < last; ++key) {
        const int64_t at = (key - tile.first) * kPanel + lane;
        if constexpr (Additive)
          store(score + at, load(score + at) + load(local + at) * window);
        else
          store(local + at, window);
      }
    }
    store(panel.before[0] + lane, left_before + left_here);
    store(panel.before[1] + lane, right_before + right_here);
  }
}

// Turn a tile's scores into weights over the running maximum (Eq. 13, 17); earlier output must be multiplied by `rescale`.
template <bool Additive>
void weigh(Tile tile, int64_t end, const Dropout& dropout, Running& run, float* score, const float* window, float* rescale) {
  const int64_t keys = end - tile.first;
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    const vec before = load(run.max + lane);
    vec top = before;
    for (int64_t k = 0; k < keys; ++k) top = larger(top, load(score + k * kPanel + lane));
    vec sum{};
    for (int64_t k = 0; k < keys; ++k) {
      const int64_t at = k * kPanel + lane;
      vec weight = exp(load(score + at) - top);
      sum += weight;
      if (dropout.active) weight *= dropout.factor(tile.first + k, lane);
      if constexpr (!Additive) weight *= load(window + at);
      store(score + at, weight);
    }
    const vec factor = exp(before - top);
    store(rescale + lane, factor);
    store(run.sum + lane, load(run.sum + lane) * factor + sum);
    store(run.max + lane, top);
  }
}

void rescale_output(const float* rescale, int64_t width, float* out) {
  bool unchanged = true;
  for (int64_t lane = 0; lane < kPanel; ++lane) unchanged &= rescale[lane] == 1.f;
  if (unchanged) return;
  for (int64_t j = 0; j < width; ++j)
    for (int64_t lane = 0; lane < kPanel; lane += kLanes)
      store(out + j * kPanel + lane, load(out + j * kPanel + lane) * load(rescale + lane));
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
    panel.score.reset();
    for (int side = 0; side < 2; ++side) {
      panel.pointer[side].reset();
      std::fill(panel.before[side], panel.before[side] + kPanel, 0.f);
    }
  }

  void mask(const Block& block, int64_t i, Tile tile, float* x) {
    hide(p_, block, i, w_.visible, tile.first, block.end(i, tile.last), tile.first, x);
  }

  float* tile_max(Tile tile, int64_t i) { return w_.tile_max + (tile.index * kMaxPanels + i) * 2 * kPanel; }

  void sweep_pointers(const Block& block, Tile tile) {
    for (int side = 0; side < 2; ++side) {
      const int64_t kind = kLeft + side, width = p_.pair[kind].width, offset = tile.first * kPanel;
      const Panels out{w_.pointer[side].data + offset, w_.pointer[side].step};
      score_tile(block, tile.first, tile.last, keys_[kind], w_.queries[kind], width, out);
      for (int64_t i = 0; i < block.panels; ++i) {
        const int64_t keys = block.end(i, tile.last) - tile.first;
        if (keys <= 0) continue;
        mask(block, i, tile, out.data + i * out.step);
        point(out.data + i * out.step, keys, panels_[i].pointer[side], tile_max(tile, i) + side * kPanel);
      }
    }
  }

  void sweep_weights(const Block& block, Tile tile) {
    score_tile(block, tile.first, tile.last, keys_[kScore], w_.queries[kScore], p_.pair[kScore].width, w_.score);
    if constexpr (Additive)
      score_tile(block, tile.first, tile.last, keys_[kLocal], w_.queries[kLocal], p_.pair[kLocal].width, w_.local);
    for (int64_t i = 0; i < block.panels; ++i) {
      const int64_t end = block.end(i, tile.last);
      if (end <= tile.first) continue;
      float *score = w_.score.data + i * w_.score.step, *local = w_.local.data + i * w_.local.step;
      add_bias(p_, head_, block, i, tile.first, end, w_.bias, score);
      build_window<Additive, Segment>(grid_, tile, end, p_.is_exact, panels_[i], tile_max(tile, i),
                                      w_.pointer[0].data + i * w_.pointer[0].step,
                                      w_.pointer[1].data + i * w_.pointer[1].step, score, local);
      mask(block, i, tile, score);
      alignas(64) float rescale[kPanel];
      dropout_.seed_panel(p_, head_.b, head_.h, block.query + i * kPanel);
      weigh<Additive>(tile, end, dropout_, panels_[i].score, score, local, rescale);
      if (tile.first > 0) rescale_output(rescale, p_.value_width, w_.out + i * kPanel * p_.value_width);
    }
    gather_tile(block, tile.first, tile.last, values_, w_.score, p_.value_width, w_.out);
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
