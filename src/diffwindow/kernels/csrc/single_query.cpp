// Window attention of one query per head, as in a step of decoding. Here the keys lie along the lanes. A row of scores
// is short enough to stay in the cache, so softmax, prefix sums and window are whole passes over it, and each key and
// value is read once, or not at all where the window is zero.
#include <cmath>

#include "dots.h"
#include "parallel.h"

namespace dw {
// Eight bytes per field, in the order of kernels/single_query.py.
struct SingleQuery {
  int64_t is_bf16, is_causal, is_exact, is_normalized, segment_size, sinks, has_scale, threads;
  double scale, tolerance;
  const int64_t* segment_origin;
  int64_t num_origins, origin_stride;
  void* out;  // [batch head width], dense
  View mask, bias;
  View q[kMaxPairs], k[kMaxPairs], v;  // in the order of Problem::pair

  int64_t batch() const { return q[0].size[0]; }
  int64_t heads() const { return q[0].size[1]; }
  int64_t keys() const { return k[0].size[2]; }
  int64_t seen() const { return is_causal ? std::min<int64_t>(keys(), 1) : keys(); }
  int64_t origin(int64_t b) const { return segment_origin ? segment_origin[b * origin_stride] : 0; }
  int64_t value_width() const { return v.size[3]; }
  int64_t width(int64_t pair) const { return q[pair].size[3]; }
  bool is_additive() const { return q[kLocal].data; }
  int64_t pairs() const { return is_additive() ? 4 : 3; }
};

namespace {

constexpr float kHidden = -__builtin_inff();
constexpr float kLowest = -__FLT_MAX__;  // stands for "nothing seen yet": finite, so that differences are
constexpr int64_t kBlock = 8;            // keys whose scores are one vector
constexpr int64_t kPad = 16;             // rows of scores are padded to whole vectors of any width

typedef int32_t ivec8 __attribute__((vector_size(32), aligned(4), may_alias));

DW_INLINE ivec8 load_mask(const int32_t* p) { return *reinterpret_cast<const ivec8*>(p); }
DW_INLINE vec8 splat8(float x) { return x - vec8{}; }

// Blocks of keys of which all, some or none count.
enum State : uint8_t { kNone, kAll, kSome };

DW_INLINE State state_of(ivec8 chosen) {
  int32_t any = 0, all = -1;
  for (int i = 0; i < 8; ++i) any |= chosen[i], all &= chosen[i];
  return all ? kAll : any ? kSome : kNone;
}

// e^(x − max) in place, 0 where x is hidden; multiplied by `window` unless that is null. Return the sum of the exponentials.
float exponentials(float* x, int64_t padded, const float* window) {
  vec top = splat(kLowest);
  for (int64_t i = 0; i < padded; i += kLanes) top = larger(top, load(x + i));
  float highest = top[0];
  for (int64_t i = 1; i < kLanes; ++i) highest = std::max(highest, top[i]);
  vec sum{};
  for (int64_t i = 0; i < padded; i += kLanes) {
    const vec e = exp(load(x + i) - highest);
    sum += e;
    store(x + i, window ? e * load(window + i) : e);
  }
  float total = 0;
  for (int64_t i = 0; i < kLanes; ++i) total += sum[i];
  return total;
}

// What to multiply by to normalise. A row that sees nothing has a sum of 0, and NaN must stay NaN.
DW_INLINE float inverse(float sum) { return sum == 0 ? 0.f : 1.f / sum; }

DW_INLINE vec8 prefix_sums(vec8 x) {
  const vec8 zero{};
  x += __builtin_shufflevector(zero, x, 0, 8, 9, 10, 11, 12, 13, 14);
  x += __builtin_shufflevector(zero, x, 0, 0, 8, 9, 10, 11, 12, 13);
  return x + __builtin_shufflevector(zero, x, 0, 0, 0, 0, 8, 9, 10, 11);
}

DW_INLINE vec8 suffix_sums(vec8 x) {
  const vec8 zero{};
  x += __builtin_shufflevector(x, zero, 1, 2, 3, 4, 5, 6, 7, 8);
  x += __builtin_shufflevector(x, zero, 2, 3, 4, 5, 6, 7, 8, 8);
  return x + __builtin_shufflevector(x, zero, 4, 5, 6, 7, 8, 8, 8, 8);
}

// The window M = F_l G_r + F_r G_l over a row (Eq. 9), from pointers that are still to be multiplied by `factor` as pairs.
void build_window(const float* left, const float* right, int64_t padded, float overlap, float factor, float* f_left,
                  float* f_right, float* window) {
  vec8 before_left{}, before_right{};
  for (int64_t i = 0; i < padded; i += 8) {
    const vec8 l = prefix_sums(load8(left + i)) + before_left, r = prefix_sums(load8(right + i)) + before_right;
    store8(f_left + i, l);
    store8(f_right + i, r);
    before_left = splat8(l[7]);
    before_right = splat8(r[7]);
  }
  vec8 after_left{}, after_right{};
  for (int64_t i = padded - 8; i >= 0; i -= 8) {
    const vec8 left_here = load8(left + i), right_here = load8(right + i);
    const vec8 l = suffix_sums(left_here) + after_left, r = suffix_sums(right_here) + after_right;
    store8(window + i, (load8(f_left + i) * r + load8(f_right + i) * l - overlap * (left_here * right_here)) * factor);
    after_left = splat8(l[0]);
    after_right = splat8(r[0]);
  }
}

struct Segments {
  int64_t size, offset;  // the first whole segment starts at the offset
  int64_t start(int64_t key) const { return key < offset ? 0 : key - (key - offset) % size; }
  int64_t end(int64_t key) const { return key < offset ? offset : start(key) + size; }
};

// The same by segments (Eq. 10, 11). The segments' masses take the place of the pointers.
void build_segment_window(const Segments& grid, int64_t keys, float* left, float* right, float overlap, float factor,
                          float* f_left, float* f_right, float* window) {
  int64_t segments = 0;
  float sum_left = 0, sum_right = 0;
  for (int64_t first = 0, last; first < keys; first = last, ++segments) {
    last = std::min(grid.end(first), keys);
    float mass_left = 0, mass_right = 0;
    for (int64_t key = first; key < last; ++key) mass_left += left[key], mass_right += right[key];
    left[segments] = mass_left;
    right[segments] = mass_right;
    f_left[segments] = sum_left += mass_left;
    f_right[segments] = sum_right += mass_right;
  }
  float g_left = 0, g_right = 0;
  for (int64_t last = keys, first; last > 0; last = first) {
    --segments;
    first = grid.start(last - 1);
    g_left += left[segments];
    g_right += right[segments];
    const float m = f_left[segments] * g_right + f_right[segments] * g_left - overlap * (left[segments] * right[segments]);
    std::fill(window + first, window + last, m * factor);
  }
}

// out += Σ weight · value over the keys of a block that count, for N vectors of columns.
template <int N, typename T>
DW_INLINE void gather(const T* value, int64_t stride, int64_t width, int64_t first, int64_t last, const State* states,
                      const int32_t* visible, const float* weight, int64_t ahead, float* out) {
  for (; width >= 8 * N; width -= 8 * N, value += 8 * N, out += 8 * N) {
    vec8 sum[N];
    for (int j = 0; j < N; ++j) sum[j] = load8(out + 8 * j);
    const auto add = [&](int64_t key) __attribute__((always_inline)) {
      const T* row = value + key * stride;
      for (int j = 0; j < N; ++j) sum[j] += weight[key] * load8(row + 8 * j);
      for (int j = 0; j < N; j += 2) prefetch(row + 8 * j, ahead);
    };
    for (int64_t key = first; key < last; key += kBlock) {
      const State state = states[key / kBlock];
      for (int64_t i = 0; state == kAll && i < kBlock; ++i) add(key + i);
      for (int64_t i = 0; state == kSome && i < kBlock; ++i)
        if (visible[key + i]) add(key + i);
    }
    for (int j = 0; j < N; ++j) store8(out + 8 * j, sum[j]);
  }
  if constexpr (N > 1) return gather<N / 2>(value, stride, width, first, last, states, visible, weight, ahead, out);
  for (int64_t j = 0; j < width; ++j)
    for (int64_t key = first; key < last; ++key)
      if (visible[key]) out[j] += weight[key] * load1(value + key * stride + j);
}

// The heads of a sentence that are worked on together need this memory.
struct Workspace {
  float* queries;    // [head][query_width], scaled
  int32_t* visible;  // [head][key]: −1 or 0
  State* states;     // [head][block of keys]
  float *left, *right, *window;  // [head][key]; the scores take the place of the left pointers
  float *f_left, *f_right;       // [key]
  float* factor;                 // [head]: what the output is to be multiplied by
  float* out;                    // [head][out_width]
  int64_t padded, query_width, out_width, bytes;

  Workspace(const SingleQuery& p, int64_t heads, char* memory) : padded(round_up(p.seen(), kPad)), query_width(0) {
    Arena arena(memory);
    for (int64_t i = 0; i < p.pairs(); ++i) query_width += p.width(i);
    out_width = p.value_width();
    queries = arena.floats(heads * query_width);
    visible = arena.take<int32_t>(heads * padded);
    states = arena.take<State>(heads * padded / kBlock);
    for (float** row : {&left, &right, &window}) *row = arena.floats(heads * padded);
    for (float** row : {&f_left, &f_right}) *row = arena.floats(padded);
    factor = arena.floats(heads);
    out = arena.floats(heads * out_width);
    bytes = arena.used();
  }
};

// Attention of the heads [first, first + heads) of sentence b.
template <typename T>
class Heads {
 public:
  Heads(const SingleQuery& p, int64_t b, int64_t first, int64_t heads, const Workspace& w)
      : p_(p), b_(b), first_(first), heads_(heads), keys_(p.seen()), padded_(w.padded), w_(w) {}

  void run() {
    for (int64_t h = 0; h < heads_; ++h) {
      load_queries(h);
      read_mask(h);
    }
    for_blocks([&](int64_t h, int64_t key, ivec8 visible) {
      store8(w_.left + h * padded_ + key, visible ? score(kLeft, h, key) : splat8(kHidden));
      store8(w_.right + h * padded_ + key, visible ? score(kRight, h, key) : splat8(kHidden));
    });
    for (int64_t h = 0; h < heads_; ++h) build_window(h);
    for_blocks([&](int64_t h, int64_t key, ivec8 visible) {
      vec8 x = score(kScore, h, key) + bias(h, key);
      if (p_.is_additive()) x += local_score(h, key);
      store8(w_.left + h * padded_ + key, visible ? x : splat8(kHidden));
    });
    for (int64_t h = 0; h < heads_; ++h) weigh(h);
    sum_values();
    for (int64_t h = 0; h < heads_; ++h) write(h);
  }

 private:
  const T* row(const View& x, int64_t h, int64_t key) const {
    return static_cast<const T*>(x.data) + b_ * x.stride[0] + (first_ + h) * x.stride[1] + key * x.stride[2];
  }
  template <typename Item>
  const Item* row_of(const View& x, int64_t h) const {
    return x.data ? static_cast<const Item*>(x.data) + b_ * x.stride[0] + (first_ + h) * x.stride[1] : nullptr;
  }

  void load_queries(int64_t h) {
    float* to = w_.queries + h * w_.query_width;
    for (int64_t i = 0; i < p_.pairs(); ++i) {
      const int64_t width = p_.width(i);
      const float scale = p_.has_scale ? float(p_.scale) : 1.f / std::sqrt(float(std::max<int64_t>(width, 1)));
      const T* from = row(p_.q[i], h, 0);
      for (int64_t j = 0; j < width; ++j) *to++ = load1(from + j) * scale;
    }
  }

  void read_mask(int64_t h) {
    int32_t* visible = w_.visible + h * padded_;
    std::fill(visible, visible + keys_, -1);
    std::fill(visible + keys_, visible + padded_, 0);
    const int64_t mask_step = p_.mask.stride[3], bias_step = p_.bias.stride[3];
    if (const uint8_t* mask = row_of<uint8_t>(p_.mask, h))
      for (int64_t key = 0; key < keys_; ++key) visible[key] = -int32_t(mask[key * mask_step] != 0);
    if (const float* bias = row_of<float>(p_.bias, h))
      for (int64_t key = 0; key < keys_; ++key) visible[key] &= -int32_t(bias[key * bias_step] != kHidden);
    set_states(h);
  }

  void set_states(int64_t h) {
    for (int64_t key = 0; key < padded_; key += kBlock)
      w_.states[(h * padded_ + key) / kBlock] = state_of(load_mask(w_.visible + h * padded_ + key));
  }

  // From now on only what lies in the window counts.
  void hide_outside(int64_t h) {
    const float* window = w_.window + h * padded_;
    int32_t* visible = w_.visible + h * padded_;
    for (int64_t key = 0; key < padded_; ++key) visible[key] &= -int32_t(window[key] != 0);
    set_states(h);
  }

  // Run body(head, key, visible) for each block of keys, from `key` on, of which some are visible.
  template <typename Body>
  void for_blocks(const Body& body) {
    for (int64_t key = 0; key < padded_; key += kBlock)
      for (int64_t h = 0; h < heads_; ++h) {
        const int64_t place = h * padded_ + key;
        if (w_.states[place / kBlock] != kNone) body(h, key, load_mask(w_.visible + place));
        else store8(w_.left + place, splat8(kHidden)), store8(w_.right + place, splat8(kHidden));
      }
  }

  DW_INLINE vec8 score(int64_t pair, int64_t h, int64_t key) const {
    const float* query = w_.queries + h * w_.query_width;
    for (int64_t i = 0; i < pair; ++i) query += p_.width(i);
    const int64_t stride = p_.k[pair].stride[2];
    return dot_rows(query, row(p_.k[pair], h, key), stride, keys_ - key, p_.width(pair), ahead(key + kBlock, stride));
  }

  // o ⊙ M (Eq. 15). With a tolerance, M = 0 means that the key is not to be read; without, NaN must not get lost.
  DW_INLINE vec8 local_score(int64_t h, int64_t key) const {
    const vec8 window = load8(w_.window + h * padded_ + key);
    if (p_.tolerance == 0) return score(kLocal, h, key) * window;
    const ivec8 inside = window != 0;
    if (state_of(inside) == kNone) return vec8{};
    return inside ? score(kLocal, h, key) * window : vec8{};
  }

  // How far the next rows are, or 0 without any. A head on its own is followed by the next one.
  int64_t ahead(int64_t next, int64_t stride) const { return next < keys_ || heads_ == 1 ? kBlock * stride : 0; }

  vec8 bias(int64_t h, int64_t key) const {
    vec8 x{};
    if (const float* row = row_of<float>(p_.bias, h))
      for (int64_t i = 0; i < std::min(kBlock, keys_ - key); ++i) x[i] = row[(key + i) * p_.bias.stride[3]];
    return x;
  }

  void build_window(int64_t h) {
    float *left = w_.left + h * padded_, *right = w_.right + h * padded_, *window = w_.window + h * padded_;
    const float total_left = exponentials(left, padded_, nullptr), total_right = exponentials(right, padded_, nullptr);
    const float factor = inverse(total_left) * inverse(total_right), overlap = p_.is_exact ? 1.f : 0.f;
    if (p_.segment_size == 1) {
      dw::build_window(left, right, padded_, overlap, factor, w_.f_left, w_.f_right, window);
    } else {
      const int64_t size = p_.segment_size, origin = p_.origin(b_);
      build_segment_window({size, ((origin % size) + size) % size}, keys_, left, right, overlap, factor, w_.f_left,
                           w_.f_right, window);
      std::fill(window + keys_, window + padded_, 0.f);
    }
    if (p_.tolerance > 0)
      for (int64_t key = 0; key < padded_; ++key) window[key] = window[key] < float(p_.tolerance) ? 0.f : window[key];
    Sinks(p_.origin(b_), p_.sinks, keys_).show(0, keys_, 1, window);
    if (p_.is_normalized) hide_outside(h);
  }

  void weigh(int64_t h) {
    float* weights = w_.left + h * padded_;
    const float* window = w_.window + h * padded_;
    float sum = exponentials(weights, padded_, p_.is_additive() ? nullptr : window);
    if (p_.is_normalized) {
      sum = 0;
      for (int64_t key = 0; key < padded_; ++key) sum += weights[key];
    }
    w_.factor[h] = inverse(sum);
    if (!p_.is_additive() && p_.tolerance > 0 && !p_.is_normalized) hide_outside(h);
  }

  void sum_values() {
    std::fill(w_.out, w_.out + heads_ * w_.out_width, 0.f);
    // Heads that lie side by side take turns, so that their rows are read together.
    const int64_t step = heads_ == 1 ? padded_ : 4 * kBlock;
    for (int64_t first = 0; first < padded_; first += step)
      for (int64_t h = 0; h < heads_; ++h) {
        const int64_t at = h * padded_, last = std::min(first + step, padded_), stride = p_.v.stride[2];
        gather<8>(row(p_.v, h, 0), stride, w_.out_width, first, last, w_.states + at / kBlock, w_.visible + at,
                  w_.left + at, ahead(last, stride), w_.out + h * w_.out_width);
      }
  }

  void write(int64_t h) {
    const float* from = w_.out + h * w_.out_width;
    T* to = static_cast<T*>(p_.out) + (b_ * p_.heads() + first_ + h) * w_.out_width;
    for (int64_t j = 0; j < w_.out_width; ++j) store1(to + j, from[j] * w_.factor[h]);
  }

  const SingleQuery& p_;
  const int64_t b_, first_, heads_, keys_, padded_;
  const Workspace& w_;
};

// Whether the tensors agree in their shapes, which the caller has not checked, and their rows are dense.
bool fits(SingleQuery& p) {
  const int64_t lead[4] = {p.batch(), p.heads(), 1, p.keys()};
  const auto agrees = [&](const View& x, int64_t rows, int64_t width) {
    return x.data && x.size[0] == lead[0] && x.size[1] == lead[1] && x.size[2] == rows && x.size[3] == width &&
           (width < 2 || x.stride[3] == 1);
  };
  for (int64_t i = 0; i < p.pairs(); ++i)
    if (!agrees(p.q[i], 1, p.width(i)) || !agrees(p.k[i], p.keys(), p.width(i))) return false;
  if (!agrees(p.v, p.keys(), p.value_width())) return false;
  if (!broadcast(p.mask, lead) || !broadcast(p.bias, lead)) return false;
  return p.segment_size >= 1 && (!p.segment_origin || p.num_origins == p.batch());
}

// Heads that lie side by side in a row of keys, as in a decoder's cache, are worked on together while their rows of
// scores fit the cache; others each on their own.
int64_t heads_together(const SingleQuery& p, int64_t threads) {
  if (p.v.stride[1] >= p.v.stride[2]) return 1;
  constexpr int64_t cache = 1 << 18;
  const int64_t fit = cache / (3 * 4 * round_up(p.seen(), kPad) + 1), share = ceil_div(p.batch() * p.heads(), threads);
  return std::max<int64_t>(1, std::min({p.heads(), fit, share}));
}

template <typename T>
bool attend(const SingleQuery& p) {
  int64_t width = p.value_width();
  for (int64_t i = 0; i < p.pairs(); ++i) width += p.width(i);
  // Threads take a few microseconds to start; small problems have one.
  constexpr int64_t products_per_thread = 1 << 16;
  const int64_t products = p.batch() * p.heads() * p.seen() * width;
  const int64_t threads = std::max<int64_t>(1, std::min(p.threads, products / products_per_thread));
  const int64_t together = heads_together(p, threads), groups = ceil_div(p.heads(), together);
  const int64_t bytes = Workspace(p, together, nullptr).bytes;
  return parallel(p.batch() * groups, threads, bytes, [&](int64_t unit, char* memory) {
    const int64_t first = unit % groups * together;
    const Workspace workspace(p, together, memory);
    Heads<T>(p, unit / groups, first, std::min(together, p.heads() - first), workspace).run();
  });
}

}  // namespace
}  // namespace dw

// Return 0 when done, 1 without memory, 2 if the arguments are not the plain case that this serves.
extern "C" __attribute__((visibility("default"))) int dw_single_query(const dw::SingleQuery* given) {
  dw::SingleQuery p = *given;
  if (!dw::fits(p)) return 2;
  return (p.is_bf16 ? dw::attend<dw::bfloat16>(p) : dw::attend<float>(p)) ? 0 : 1;
}
