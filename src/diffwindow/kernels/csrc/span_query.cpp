// The fitted window of one query per head, as in a step of decoding: its place among the keys, by the mask, and its span, the
// likeliest of some lengths. In torch this is two dozen small operators, which take longer than attention to a thousand keys.
#include <cmath>

#include "parallel.h"
#include "problem.h"

namespace dw {

// Eight bytes per field, in the order of kernels/span_query.py.
struct SpanQuery {
  int64_t is_bf16, units, sinks, block, choices, hidden, keys;
  // [unit choice], [unit choice], [unit feature choice], [feature hidden], [hidden], [unit hidden choice]; all but the first may
  // be null
  const float *bias, *position, *weight, *hidden_weight, *hidden_bias, *out;
  int64_t *start, *end, *origin;  // [batch head], [batch], [batch] with a mask
  View mask, q;
  ViewOf<3> cos, sin;  // what queries were rotated by; null if they were not
  int64_t heads() const { return q.size[1]; }
  int64_t width() const { return q.size[3]; }
};

namespace {

bool is_served(SpanQuery& p) {
  const int64_t batch = p.q.size[0], turned = p.cos.data ? p.cos.size[2] : 0;
  if (p.q.size[2] != 1 || p.units < 1 || p.heads() % p.units || (p.width() > 1 && p.q.stride[3] != 1)) return false;
  if (!broadcast(p.mask, {batch, 1, 1, p.keys}) || (p.mask.data && p.keys > 1 && p.mask.stride[3] != 1)) return false;
  if (turned % 2 || turned > p.width() || !broadcast(p.cos, {batch, 1, turned}) || !broadcast(p.sin, {batch, 1, turned}))
    return false;
  return turned < 2 || (p.cos.stride[2] == 1 && p.sin.stride[2] == 1);
}

// Where the query of a sequence and its first real key are; return whether a window of all keys between them is what the mask
// says.
bool place(const SpanQuery& p, int64_t b) {
  p.end[b] = p.keys - 1;
  if (!p.mask.data) return true;
  const uint8_t* mask = static_cast<const uint8_t*>(p.mask.data) + b * p.mask.stride[0];
  const void* first = std::memchr(mask, 1, p.keys);
  p.origin[b] = first ? static_cast<const uint8_t*>(first) - mask : 0;
  for (int64_t key = p.keys - 1; first && !mask[p.end[b] = key]; --key) {
  }
  const int64_t real = p.end[b] - p.origin[b] + 1;
  return first && real >= p.sinks && !std::memchr(first, 0, real);
}

// The queries of a sequence before they were rotated: x cos + rotate_half(x) sin was scaled by √(cos² + sin²).
template <typename T>
void unrotate(const SpanQuery& p, int64_t b, float* x) {
  const int64_t turned = p.cos.data ? p.cos.size[2] : 0, half = turned / 2;
  const T* cos = static_cast<const T*>(p.cos.data) + b * p.cos.stride[0];
  const T* sin = static_cast<const T*>(p.sin.data) + b * p.sin.stride[0];
  for (int64_t h = 0; h < p.heads(); ++h, x += p.width()) {
    const T* q = static_cast<const T*>(p.q.data) + b * p.q.stride[0] + h * p.q.stride[1];
    for (int64_t j = 0; j < p.width(); ++j) x[j] = load1(q + j);
    for (int64_t j = 0; j < turned; ++j) {
      const float c = load1(cos + j), s = load1(sin + j), other = j < half ? load1(q + j + half) : -load1(q + j - half);
      x[j] = (x[j] * c + other * s) / (c * c + s * s);
    }
  }
}

// y += x W, with W [inputs outputs].
void add_product(const float* x, const float* w, int64_t inputs, int64_t outputs, float* y) {
  for (int64_t i = 0; i < inputs; ++i, w += outputs)
    for (int64_t j = 0; j < outputs; ++j) y[j] += x[i] * w[j];
}

// The windows of a sequence; the last choice is everything, the others have lengths.
void choose(const SpanQuery& p, const int64_t* lengths, int64_t b, const float* x, float* seen, float* logits) {
  const int64_t first = p.mask.data ? p.origin[b] : 0, features = p.heads() * p.width(), shared = p.heads() / p.units;
  const float position = std::log1p(float(std::min(std::max<int64_t>(p.end[b] - first, 0), p.block - 1)));
  if (p.hidden_weight) {
    std::copy(p.hidden_bias, p.hidden_bias + p.hidden, seen);
    add_product(x, p.hidden_weight, features, p.hidden, seen);
    for (int64_t j = 0; j < p.hidden; ++j) seen[j] = std::max(seen[j], 0.f);
  }
  for (int64_t unit = 0; unit < p.units; ++unit) {
    std::copy(p.bias + unit * p.choices, p.bias + (unit + 1) * p.choices, logits);
    if (p.position) add_product(&position, p.position + unit * p.choices, 1, p.choices, logits);
    const int64_t inputs = features / p.units;
    if (p.weight) add_product(x + unit * inputs, p.weight + unit * inputs * p.choices, inputs, p.choices, logits);
    if (p.hidden_weight) add_product(seen, p.out + unit * p.hidden * p.choices, p.hidden, p.choices, logits);
    const int64_t choice = std::max_element(logits, logits + p.choices) - logits;
    const int64_t start = choice == p.choices - 1 ? first : std::max(first, p.end[b] - lengths[choice] + 1);
    std::fill_n(p.start + b * p.heads() + unit * shared, shared, start);
  }
}

}  // namespace
}  // namespace dw

// Return 0 when done, 1 without memory, 2 if the arguments are not the plain case that this serves, and 3 when done and the
// windows need no mask.
extern "C" __attribute__((visibility("default"))) int dw_span_query(const dw::SpanQuery* given, const int64_t* lengths) {
  using namespace dw;
  SpanQuery p = *given;
  if (!is_served(p)) return 2;
  const int64_t features = p.heads() * p.width();
  float* x = reinterpret_cast<float*>(thread_scratch().reserve(4 * (features + p.hidden + p.choices)));
  if (!x) return 1;
  bool told = true;
  for (int64_t b = 0; b < p.q.size[0]; ++b) {
    told &= place(p, b);
    p.is_bf16 ? unrotate<bfloat16>(p, b, x) : unrotate<float>(p, b, x);
    choose(p, lengths, b, x, x + features, x + features + p.hidden);
  }
  return told ? 3 : 0;
}
