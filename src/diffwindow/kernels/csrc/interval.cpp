// Attention within a hard window of each query, forward and backward: one sweep over the tiles of keys that a block of
// queries reaches. Backward recomputes the weights: with D = Σ dO ⊙ O, dS = A ⊙ (dA − D). Heads of queries that share
// keys add to the same gradients, in a fixed order.
#include "interval.h"
#include "parallel.h"

namespace dw {
namespace {

constexpr int64_t kBlockRows = kMaxPanels * kPanel;

Block block_at(const Interval& p, int64_t index) {
  const int64_t query = index * kBlockRows;
  return Block(p, p.keys, p.keys, query, std::min(kBlockRows, p.queries - query));
}

// One thread's memory for forward.
struct Forward {
  const Interval& p;
  float *natural, *queries;  // a block's queries as rows, and as panels [width][16]
  float* out;                // [panel][width][16]
  const Distances distances;
  TableTile table_keys, table_values;
  IntervalTile tile;
  Dropout dropout;
  Running running[kMaxPanels];

  Forward(const Interval& p, Arena& arena)
      : p(p),
        natural(arena.floats(kBlockRows * p.pair.width)),
        queries(arena.floats(kBlockRows * p.pair.width)),
        out(arena.floats(kBlockRows * p.value_width)),
        distances(p.tables, p.queries, p.keys),
        table_keys(distances, p.tables.keys, p.pair.width, arena),
        table_values(distances, p.tables.values, p.value_width, arena),
        tile(p, arena),
        dropout(p) {}

  void run(const HeadMask& head, const Block& block) {
    load_queries(p, p.pair.q, head.b, head.h, block.query, block.rows, p.pair.width, float(p.pair.scale), nullptr, natural,
                 p.pair.width, queries);
    for (int64_t i = 0; i < block.panels; ++i) running[i].reset();
    std::memset(out, 0, sizeof(float) * block.panels * kPanel * p.value_width);
    table_keys.multiply(block, queries);
    table_values.clear(block);
    const Reach reach(p, block, head);
    reach.for_tiles([&](int64_t first, int64_t last, PanelBits some) {
      tile.score(block, reach, head, some, first, last, queries, table_keys);
      for (int64_t i = 0; i < block.panels; ++i)
        if (some >> i & 1) weigh_panel(head, block, i, first, block.end(i, last));
      gather_tile(block, some, first, last, tile.values, tile.scores, p.value_width, out);
    });
    table_values.finish(block, out);
    for (int64_t i = 0; i < block.panels; ++i) finish(head, block, i);
  }

  void weigh_panel(const HeadMask& head, const Block& block, int64_t i, int64_t first, int64_t end) {
    alignas(64) float rescale[kPanel];
    dropout.seed_panel(p, head.b, head.h, block.query + i * kPanel);
    float* scores = tile.scores.data + i * tile.scores.step;
    weigh<kSoftmax>(Tile{first, end, 0}, end, dropout, running[i], scores, nullptr, rescale);
    rescale_output(rescale, p.value_width, out + i * kPanel * p.value_width);
    table_values.rescale(i, rescale);
    table_values.collect(block, i, first, end, scores);
  }

  void finish(const HeadMask& head, const Block& block, int64_t i) {
    alignas(64) float inverse[kPanel];
    for (int64_t lane = 0; lane < kPanel; ++lane) inverse[lane] = running[i].inverse(lane);
    const int64_t query = block.query + i * kPanel, rows = block.rows_of(i);
    const float* panel = out + i * kPanel * p.value_width;
    store_queries(p, p.out, head.b, head.h, query, rows, p.value_width, panel, inverse);
    for (int64_t lane = 0; lane < rows; ++lane) {
      float* row = p.row(head.b, head.h, query + lane);
      row[0] = running[i].max[lane];
      row[1] = inverse[lane];
    }
    if (p.is_bf16)
      from_panel(panel, inverse, rows, p.value_width, p.row(head.b, head.h, query) + kIntervalStatistics, p.row_width);
  }
};

// Whether forward was that of one query, whose scores are rounded otherwise than those of a tile.
bool is_one_query(const Interval& p) { return p.queries == 1 && p.dropout == 0 && !p.tables.given(); }

bool forward(const Interval& p) {
  if (is_one_query(p)) return attend_one(p);
  Arena counted(nullptr);
  const Forward sizes(p, counted);
  const int64_t blocks = ceil_div(p.queries, kBlockRows);
  return parallel(p.batch * p.heads * blocks, p.threads, counted.used(), [&](int64_t unit, char* memory) {
    Arena arena(memory);
    const int64_t head = unit / blocks;
    // the last blocks of a causal head have the most keys
    Forward(p, arena).run(HeadMask(p, head / p.heads, head % p.heads), block_at(p, blocks - 1 - unit % blocks));
  });
}

// Sums of the gradients of a head of keys and values, fp32, rows zero-padded to `padded` columns.
struct KeyGradients {
  float *keys, *values;
  KeyGradients(const Interval& p, Arena& arena)
      : keys(arena.floats(p.keys * padded(p.pair.width))), values(arena.floats(p.keys * padded(p.value_width))) {}
};

// Sums of the gradients of the tables, of the rows that are used.
struct TableGradients {
  const Interval& p;
  const Distances distances;
  float *keys, *values;

  TableGradients(const Interval& p, Arena& arena)
      : p(p),
        distances(p.tables, p.queries, p.keys),
        keys(arena.floats(p.tables.keys ? distances.rows() * padded(p.pair.width) : 0)),
        values(arena.floats(p.tables.values ? distances.rows() * padded(p.value_width) : 0)) {}

  void begin() const {
    if (p.tables.keys) std::memset(keys, 0, sizeof(float) * distances.rows() * padded(p.pair.width));
    if (p.tables.values) std::memset(values, 0, sizeof(float) * distances.rows() * padded(p.value_width));
  }
  void finish(int64_t slab) const {
    if (p.tables.keys) write(keys, p.pair.width, p.tables.grad_keys, slab);
    if (p.tables.values) write(values, p.value_width, p.tables.grad_values, slab);
  }

 private:
  void write(const float* sums, int64_t width, float* grad, int64_t slab) const {
    float* to = distances.part(grad + slab * p.tables.rows * width, width);
    write_rows(sums, padded(width), distances.rows(), width, to, width);
  }
};

// One thread's memory for backward.
struct Backward {
  const Interval& p;
  float *rows, *queries, *grad_queries;           // of queries: as rows, as panels, and their gradients
  float *grad_rows, *grad_panels, *out_panel;     // of the output's gradient; a panel of the output
  Panels grad;                                    // dA, then dS
  const Distances distances;
  TableTile table_keys, table_values;
  IntervalTile tile;
  Dropout dropout;
  struct {
    alignas(64) float max[kPanel], inverse[kPanel], dot[kPanel];
  } panel[kMaxPanels];

  Backward(const Interval& p, Arena& arena)
      : p(p),
        rows(arena.floats(kBlockRows * padded(p.pair.width))),
        queries(arena.floats(kBlockRows * p.pair.width)),
        grad_queries(arena.floats(kBlockRows * p.pair.width)),
        grad_rows(arena.floats(kBlockRows * padded(p.value_width))),
        grad_panels(arena.floats(kBlockRows * p.value_width)),
        out_panel(arena.floats(kPanel * p.value_width)),
        grad{arena.floats(kMaxPanels * kTile * kPanel), kTile * kPanel},
        distances(p.tables, p.queries, p.keys),
        table_keys(distances, p.tables.keys, p.pair.width, arena),
        table_values(distances, p.tables.values, p.value_width, arena),
        tile(p, arena),
        dropout(p) {}

  void run(const HeadMask& head, const Block& block, const KeyGradients& sums, const TableGradients& table_sums) {
    bool blind[kBlockRows];
    for (int64_t i = 0; i < block.rows; ++i) blind[i] = p.row(head.b, head.h, block.query + i)[1] == 0.f;
    const int64_t width = p.pair.width;
    load_queries(p, p.pair.q, head.b, head.h, block.query, block.rows, width, float(p.pair.scale), blind, rows,
                 padded(width), queries);
    load_queries(p, p.grad_out, head.b, head.h, block.query, block.rows, p.value_width, 1.f, blind, grad_rows,
                 padded(p.value_width), grad_panels);
    std::memset(grad_queries, 0, sizeof(float) * block.panels * kPanel * width);
    for (int64_t i = 0; i < block.panels; ++i) start(head, block, i);
    table_keys.multiply(block, queries);
    table_values.multiply(block, grad_panels);
    table_keys.clear(block);
    table_values.clear(block);
    const Reach reach(p, block, head);
    if (is_one_query(p)) sum_again(head, block, reach);
    reach.for_tiles([&](int64_t first, int64_t last, PanelBits some) {
      tile.score(block, reach, head, some, first, last, queries, table_keys);
      score_tile(block, some, first, last, tile.values, grad_panels, p.value_width, grad);
      for (int64_t i = 0; i < block.panels; ++i)
        if (some >> i & 1) differentiate(head, block, i, first, block.end(i, last));
      if (!block.whole(last))
        for (const Panels& x : {tile.scores, grad}) clear_unseen(block, first, last, x);
      scatter_tile(block, some, first, last, tile.scores, grad_rows, padded(p.value_width), sums.values);
      gather_tile(block, some, first, last, tile.keys, grad, width, grad_queries);
      scatter_tile(block, some, first, last, grad, rows, padded(width), sums.keys);
    });
    table_keys.finish(block, grad_queries);
    table_keys.differentiate(block, rows, table_sums.keys);
    table_values.finish(block, nullptr);
    table_values.differentiate(block, grad_rows, table_sums.values);
    alignas(64) float scale[kPanel];
    std::fill(scale, scale + kPanel, float(p.pair.scale));
    for (int64_t i = 0; i < block.panels; ++i)
      store_queries(p, p.grad_q, head.b, head.h, block.query + i * kPanel, block.rows_of(i), width,
                    grad_queries + i * kPanel * width, scale);
  }

  // Take the softmax's maximum and sum from the scores that backward makes: roundings of large ones differ by more than 1,
  // and e^x of a score above its maximum would have no bound.
  void sum_again(const HeadMask& head, const Block& block, const Reach& reach) {
    Running running;
    running.reset();
    alignas(64) float rescale[kPanel];
    reach.for_tiles([&](int64_t first, int64_t last, PanelBits some) {
      tile.score(block, reach, head, some, first, last, queries, table_keys);
      const int64_t end = block.end(0, last);
      weigh<kSumOnly>(Tile{first, end, 0}, end, dropout, running, tile.scores.data, nullptr, rescale);
    });
    panel[0].max[0] = running.max[0];
    panel[0].inverse[0] = running.inverse(0);
  }

  void differentiate(const HeadMask& head, const Block& block, int64_t i, int64_t first, int64_t end) {
    float *score = tile.scores.data + i * tile.scores.step, *slope = grad.data + i * grad.step;
    table_values.spread(block, i, first, end, slope);
    dropout.seed_panel(p, head.b, head.h, block.query + i * kPanel);
    softmax_gradient(first, end, dropout, panel[i].max, panel[i].inverse, panel[i].dot, score, slope);
    table_keys.collect(block, i, first, end, slope);
    table_values.collect(block, i, first, end, score);
  }

  void start(const HeadMask& head, const Block& block, int64_t i) {
    std::memset(&panel[i], 0, sizeof(panel[i]));
    const int64_t query = block.query + i * kPanel, width = p.value_width, count = block.rows_of(i);
    const float* row = p.row(head.b, head.h, query);
    for (int64_t lane = 0; lane < count; ++lane) {
      panel[i].max[lane] = row[lane * p.row_width];
      panel[i].inverse[lane] = row[lane * p.row_width + 1];
    }
    if (p.is_bf16)
      to_panel(row + kIntervalStatistics, p.row_width, count, width, out_panel);
    else
      to_panel(row_of<float>(p.out, head.b, head.h, query), p.out.row, count, width, out_panel);
    add_products(width, out_panel, grad_panels + i * kPanel * width, panel[i].dot);
  }
};

// The number of parts that the blocks of a head of keys are divided into. Each has its own sums, which are added in order, so
// the number must not depend on the threads.
int64_t parts_of(int64_t groups, int64_t blocks, int64_t bytes) {
  constexpr int64_t units = 16, memory = int64_t(32) << 20;
  const int64_t affordable = memory / std::max<int64_t>(1, groups * bytes);
  return std::max<int64_t>(1, std::min({ceil_div(units, std::max<int64_t>(groups, 1)), blocks, affordable}));
}

template <typename T>
void write_sums(const Tensor& t, int64_t b, int64_t h, Range keys, const float* sums, int64_t width) {
  write_rows(sums + keys.first * padded(width), padded(width), keys.last - keys.first, width, row_of<T>(t, b, h, keys.first),
             t.row);
}

void write_keys(const Interval& p, int64_t group, Range keys, const KeyGradients& sums) {
  const int64_t kv_heads = p.heads / p.shared;
  const auto write = p.is_bf16 ? write_sums<bfloat16> : write_sums<float>;
  write(p.grad_k, group / kv_heads, group % kv_heads, keys, sums.keys, p.pair.width);
  write(p.grad_v, group / kv_heads, group % kv_heads, keys, sums.values, p.value_width);
}

// Add up the parts of the keys' gradients, and write them.
bool add_parts(const Interval& p, int64_t groups, int64_t parts, char* kept, int64_t bytes) {
  constexpr int64_t rows = 512;
  const int64_t pieces = ceil_div(p.keys, rows);
  return parallel(groups * pieces, p.threads, 64, [&](int64_t unit, char*) {
    const int64_t group = unit / pieces, first = unit % pieces * rows;
    const Range keys{first, std::min(first + rows, p.keys)};
    const auto part = [&](int64_t i) {
      Arena arena(kept + (group * parts + i) * bytes);
      return KeyGradients(p, arena);
    };
    const KeyGradients total = part(0);
    const auto add = [&](const float* from, float* to, int64_t width) {
      for (int64_t i = keys.first * padded(width); i < keys.last * padded(width); ++i) to[i] += from[i];
    };
    for (int64_t i = 1; i < parts; ++i) {
      add(part(i).keys, total.keys, p.pair.width);
      add(part(i).values, total.values, p.value_width);
    }
    write_keys(p, group, keys, total);
  });
}

bool backward(const Interval& p) {
  const int64_t kv_heads = p.heads / std::max<int64_t>(p.shared, 1), groups = p.batch * kv_heads;
  const int64_t blocks = ceil_div(p.queries, kBlockRows), work = p.shared * blocks;
  Arena counted(nullptr), counted_sums(nullptr);
  const Backward sizes(p, counted);
  const TableGradients table_sizes(p, counted);
  const KeyGradients sum_sizes(p, counted_sums);
  const int64_t bytes = counted_sums.used(), parts = parts_of(groups, work, bytes), units = groups * parts;
  // A head in one part is summed in its thread's memory, which stays in the cache.
  const bool keeps = parts > 1;
  char* kept = keeps ? static_cast<char*>(std::aligned_alloc(64, std::max<int64_t>(64, units * bytes))) : nullptr;
  if (keeps && !kept) return false;
  // Units that add to the same slab of the tables' gradients run one after another.
  const int64_t slabs = p.tables.given() ? std::min(p.tables.slabs, units) : units;
  bool fits = parallel(slabs, p.threads, counted.used() + bytes, [&](int64_t slab, char* memory) {
    Arena arena(memory);
    Backward run(p, arena);
    const TableGradients table_sums(p, arena);
    char* own = arena.take<char>(bytes);
    table_sums.begin();
    for (int64_t unit = slab; unit < units; unit += slabs) {
      Arena sums_arena(keeps ? kept + unit * bytes : own);
      const KeyGradients sums(p, sums_arena);
      std::memset(sums.keys, 0, bytes);
      const int64_t group = unit / parts;
      for (int64_t i = unit % parts; i < work; i += parts) {
        const int64_t h = group % kv_heads * p.shared + i / blocks;
        run.run(HeadMask(p, group / kv_heads, h), block_at(p, i % blocks), sums, table_sums);
      }
      if (!keeps) write_keys(p, group, {0, p.keys}, sums);
    }
    table_sums.finish(slab);
  });
  fits = fits && (!keeps || add_parts(p, groups, parts, kept, bytes));
  std::free(kept);
  return fits;
}

}  // namespace
}  // namespace dw

extern "C" __attribute__((visibility("default"))) int dw_interval_forward(const dw::Interval* p) { return dw::forward(*p) ? 0 : 1; }

extern "C" __attribute__((visibility("default"))) int dw_interval_backward(const dw::Interval* p) { return dw::backward(*p) ? 0 : 1; }
