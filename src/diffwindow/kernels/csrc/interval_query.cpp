// One query per head within a hard window, as in a step of decoding. The keys lie along the lanes. They are cut into chunks,
// which threads share: each gives the maximum, the sum and the output of its own softmax, and then these are put together.
// Only keys that a query sees are read, and heads that share keys find them in the cache.
#include <cmath>

#include "dots.h"
#include "interval.h"
#include "parallel.h"

namespace dw {
namespace {

constexpr int64_t kChunk = 512;  // keys and values of which fit the L2 cache
constexpr int64_t kBlock = 8;    // keys whose scores are one vector

// The keys [first, last) of a chunk that a query sees; `slot` is where their scores start, which fill whole blocks.
struct Run {
  int64_t first, last, slot;
};

// The longest runs of visible keys.
class Runs {
 public:
  Runs(const Interval& p, int64_t b, int64_t h, Run* runs) : p_(p), head_(p, b, h), runs_(runs) {}

  void add(Range keys) {
    if (keys.empty()) return;
    if (!p_.hides()) return append(keys);
    const Sight sees = head_.sight(p_, 0);
    for (int64_t key = keys.first, first; key < keys.last;) {
      while (key < keys.last && !sees(key)) ++key;
      for (first = key; key < keys.last && sees(key);) ++key;
      if (first < key) append({first, key});
    }
  }
  int64_t count() const { return count_; }
  int64_t slots() const { return slots_; }

 private:
  void append(Range keys) {
    runs_[count_++] = {keys.first, keys.last, slots_};
    slots_ += round_up(keys.last - keys.first, kBlock);
  }
  const Interval& p_;
  const HeadMask head_;
  Run* runs_;
  int64_t count_ = 0, slots_ = 0;
};

// out += Σ weight · value over neighbouring keys, for N vectors of columns.
template <int N, typename T>
DW_INLINE void add_values(const T* value, int64_t stride, int64_t width, int64_t keys, const float* weight, float* out) {
  for (; width >= 8 * N; width -= 8 * N, value += 8 * N, out += 8 * N) {
    vec8 sum[N];
    for (int j = 0; j < N; ++j) sum[j] = load8(out + 8 * j);
    for (int64_t key = 0; key < keys; ++key)
      for (int j = 0; j < N; ++j) {
        sum[j] += weight[key] * load8(value + key * stride + 8 * j);
        if (j % 2 == 0) prefetch(value + key * stride + 8 * j, kBlock * stride);
      }
    for (int j = 0; j < N; ++j) store8(out + 8 * j, sum[j]);
  }
  if constexpr (N > 1) return add_values<N / 2>(value, stride, width, keys, weight, out);
  for (int64_t j = 0; j < width; ++j)
    for (int64_t key = 0; key < keys; ++key) out[j] += weight[key] * load1(value + key * stride + j);
}

// What a chunk gives for one query: the maximum and the sum of its softmax, then the sum of the weighted values.
struct Partial {
  float max, sum;
  float out[1];
  static int64_t bytes(const Interval& p) { return round_up(int64_t(sizeof(float)) * (2 + p.value_width), 64); }
};

// One thread's memory.
struct Workspace {
  float *query, *weights;
  Run* runs;
  Workspace(const Interval& p, Arena& arena)
      : query(arena.floats(p.pair.width)),
        // at worst every other key is seen and has a block of its own
        weights(arena.floats(kBlock * kChunk + kPanel)),
        runs(arena.take<Run>(kChunk + 2)) {}
};

template <typename T>
void attend_chunk(const Interval& p, int64_t b, int64_t h, Range chunk, const Workspace& w, Partial& partial) {
  const auto within = [&](Range x) { return Range{std::max(x.first, chunk.first), std::min(x.last, chunk.last)}; };
  Range window = window_of(p, b, h, 0), sinks = sinks_of(p, b);
  if (p.is_causal) sinks.last = std::min<int64_t>(sinks.last, 1);
  if (window.empty()) window = {sinks.last, sinks.last};
  Runs runs(p, b, h, w.runs);
  runs.add(within({sinks.first, std::min(sinks.last, window.first)}));
  runs.add(within(window));
  runs.add(within({std::max(sinks.first, window.last), sinks.last}));
  partial.max = kLowest;
  partial.sum = 0;
  std::fill(partial.out, partial.out + p.value_width, 0.f);
  if (runs.count() == 0) return;

  const T* q = row_of<T>(p.pair.q, b, h, 0);
  for (int64_t j = 0; j < p.pair.width; ++j) w.query[j] = load1(q + j) * float(p.pair.scale);
  const int64_t kv = h / p.shared, stride = p.pair.k.row, padded = round_up(runs.slots(), kPanel);
  for (const Run* run = w.runs; run < w.runs + runs.count(); ++run)
    for (int64_t key = run->first; key < run->last; key += kBlock) {
      const int64_t rows = std::min(kBlock, run->last - key);
      vec8 x = dot_rows(w.query, row_of<T>(p.pair.k, b, kv, key), stride, rows, p.pair.width, kBlock * stride);
      if (const float* bias = HeadMask(p, b, h).bias)
        for (int64_t i = 0; i < rows; ++i) x[i] += bias[(key + i) * p.bias.key];
      for (int64_t i = rows; i < kBlock; ++i) x[i] = kHidden;
      store8(w.weights + run->slot + key - run->first, x);
    }
  std::fill(w.weights + runs.slots(), w.weights + padded, kHidden);
  vec top = splat(kLowest), sum{};
  for (int64_t i = 0; i < padded; i += kLanes) top = larger(top, load(w.weights + i));
  for (int64_t i = 0; i < kLanes; ++i) partial.max = std::max(partial.max, top[i]);
  for (int64_t i = 0; i < padded; i += kLanes) {
    const vec e = exp(load(w.weights + i) - partial.max);
    sum += e;
    store(w.weights + i, e);
  }
  for (int64_t i = 0; i < kLanes; ++i) partial.sum += sum[i];
  for (const Run* run = w.runs; run < w.runs + runs.count(); ++run)
    add_values<8>(row_of<T>(p.v, b, kv, run->first), p.v.row, p.value_width, run->last - run->first, w.weights + run->slot,
                  partial.out);
}

// Put the chunks of a head together.
template <typename T>
void merge(const Interval& p, int64_t b, int64_t h, int64_t chunks, const char* partials, float* out) {
  const auto partial = [&](int64_t i) -> const Partial& {
    return *reinterpret_cast<const Partial*>(partials + i * Partial::bytes(p));
  };
  float max = kLowest, sum = 0;
  for (int64_t i = 0; i < chunks; ++i) max = std::max(max, partial(i).max);
  std::fill(out, out + p.value_width, 0.f);
  for (int64_t i = 0; i < chunks; ++i) {
    if (partial(i).sum == 0) continue;
    const float factor = std::exp(partial(i).max - max);
    sum += partial(i).sum * factor;
    for (int64_t j = 0; j < p.value_width; ++j) out[j] += partial(i).out[j] * factor;
  }
  // a row that sees nothing has a sum of 0, and NaN must stay NaN
  const float inverse = sum == 0 ? 0.f : 1.f / sum;
  T* to = row_of<T>(p.out, b, h, 0);
  for (int64_t j = 0; j < p.value_width; ++j) store1(to + j, out[j] *= inverse);
  if (!p.rows) return;
  float* row = p.row(b, h, 0);
  row[0] = max;
  row[1] = inverse;
  if (p.is_bf16) std::copy(out, out + p.value_width, row + kIntervalStatistics);
}

// Threads take a few microseconds to start; small problems have one.
int64_t threads_for(const Interval& p) {
  constexpr int64_t products_per_thread = 1 << 16;
  int64_t inside = p.batch * p.heads * std::min(p.sinks, p.keys);
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads; ++h) {
      const Range window = window_of(p, b, h, 0);
      inside += window.last - window.first;
    }
  return std::max<int64_t>(1, std::min(p.threads, inside * (p.pair.width + p.value_width) / products_per_thread));
}

template <typename T>
bool attend(const Interval& p) {
  const int64_t kv_heads = p.heads / std::max<int64_t>(p.shared, 1), chunks = ceil_div(std::max<int64_t>(p.keys, 1), kChunk);
  const int64_t heads = p.batch * p.heads, threads = threads_for(p), bytes = Partial::bytes(p);
  char* partials = static_cast<char*>(std::aligned_alloc(64, std::max<int64_t>(64, heads * chunks * bytes)));
  if (!partials) return false;
  Arena counted(nullptr);
  const Workspace sizes(p, counted);
  bool fits = parallel(p.batch * kv_heads * chunks, threads, counted.used(), [&](int64_t unit, char* memory) {
    Arena arena(memory);
    const Workspace workspace(p, arena);
    const int64_t group = unit / chunks, index = unit % chunks, first = index * kChunk;
    for (int64_t i = group * p.shared; i < (group + 1) * p.shared; ++i)
      attend_chunk<T>(p, i / p.heads, i % p.heads, {first, std::min(first + kChunk, p.keys)}, workspace,
                      *reinterpret_cast<Partial*>(partials + (i * chunks + index) * bytes));
  });
  fits = fits && parallel(heads, heads * chunks * p.value_width < (1 << 18) ? 1 : threads, 4 * p.value_width + 64,
                          [&](int64_t i, char* memory) {
                            merge<T>(p, i / p.heads, i % p.heads, chunks, partials + i * chunks * bytes,
                                     reinterpret_cast<float*>(memory));
                          });
  std::free(partials);
  return fits;
}

}  // namespace

bool attend_one(const Interval& p) { return p.is_bf16 ? attend<bfloat16>(p) : attend<float>(p); }

// A call whose shapes have not been checked. Eight bytes per field, in the order of `attend_one` in kernels/interval.py.
struct IntervalQuery {
  int64_t is_bf16, is_causal, sinks, has_scale, threads;
  double scale;
  const int64_t* origin;
  int64_t num_origins, origin_stride;
  void* out;  // [batch head width], dense
  ViewOf<3> start, end;
  View mask, bias, q, k, v;
};

namespace {

// Describe the call; false if the shapes do not agree or rows are not dense.
bool describe(IntervalQuery& x, Interval& p) {
  const int64_t batch = x.q.size[0], heads = x.q.size[1], kv_heads = x.k.size[1], keys = x.k.size[2];
  const int64_t width = x.q.size[3], value_width = x.v.size[3];
  const auto agrees = [&](const View& view, int64_t heads, int64_t rows, int64_t width) {
    return view.data && view.size[0] == batch && view.size[1] == heads && view.size[2] == rows && view.size[3] == width &&
           (width < 2 || view.stride[3] == 1);
  };
  if (!agrees(x.q, heads, 1, width) || !agrees(x.k, kv_heads, keys, width) || !agrees(x.v, kv_heads, keys, value_width))
    return false;
  if (kv_heads == 0 || heads % kv_heads) return false;
  if (!broadcast(x.start, {batch, heads, 1}) || !broadcast(x.end, {batch, heads, 1})) return false;
  if (!broadcast(x.mask, {batch, heads, 1, keys}) || !broadcast(x.bias, {batch, heads, 1, keys})) return false;
  if (x.origin && (x.num_origins != batch || (batch > 1 && x.origin_stride != 1))) return false;
  const auto tensor = [](const View& view) { return Tensor{view.data, view.stride[0], view.stride[1], view.stride[2]}; };
  const auto positions = [](const ViewOf<3>& view) {
    return Positions{static_cast<const int64_t*>(view.data), view.stride[0], view.stride[1], 0};
  };
  p.is_bf16 = x.is_bf16;
  p.is_causal = x.is_causal;
  p.batch = batch;
  p.heads = heads;
  p.queries = 1;
  p.keys = keys;
  p.value_width = value_width;
  p.threads = x.threads;
  p.mask = {static_cast<const uint8_t*>(x.mask.data), x.mask.stride[0], x.mask.stride[1], 0, x.mask.stride[3]};
  p.bias = {static_cast<const float*>(x.bias.data), x.bias.stride[0], x.bias.stride[1], 0, x.bias.stride[3]};
  p.v = tensor(x.v);
  p.out = {x.out, heads * value_width, value_width, 0};
  p.shared = heads / kv_heads;
  p.sinks = x.sinks;
  p.origin = x.origin;
  p.start = positions(x.start);
  p.end = positions(x.end);
  p.pair = {tensor(x.q), tensor(x.k), width, x.has_scale ? x.scale : 1 / std::sqrt(double(std::max<int64_t>(width, 1)))};
  return true;
}

}  // namespace
}  // namespace dw

// Return 0 when done, 1 without memory, 2 if the arguments are not the plain case that this serves.
extern "C" __attribute__((visibility("default"))) int dw_interval_query(const dw::IntervalQuery* given) {
  dw::IntervalQuery query = *given;
  dw::Interval p{};
  if (!dw::describe(query, p)) return 2;
  return dw::attend_one(p) ? 0 : 1;
}
