// A linear layer with weights of eight bits: y = s_x s_W (q_x q_Wᵀ) + b. Each row of x is rounded to q_x = x / s_x, where s_x is
// its largest value over 127, so that rows do not depend on each other; sums of integers are exact. One instruction of
// AVX-512 VNNI adds 64 products of an unsigned and a signed byte: 128 is added to q_x, and 128 Σ q_W subtracted from the sums.
#include "parallel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define DW_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

namespace dw {

// Eight bytes per field, in the order of kernels/int8.py.
struct Int8Rows {
  const float* x;
  const int8_t* weight;   // [block, input / 4, output of the block, 4]
  const float* scale;     // s_W of each output, then all others up to a whole block
  const int32_t* offset;  // 128 Σ q_W
  const float* bias;
  float* y;
  int64_t rows, inputs, first, last, threads;  // outputs from `first` to `last`
};

namespace {

constexpr int64_t kBlock = 64;  // outputs side by side in a block
constexpr int64_t kLanes32 = 16;
constexpr int64_t kColumns = kBlock / kLanes32;
constexpr int64_t kGroup = 6;  // rows whose sums the registers hold
constexpr int64_t kChunk = 192;  // rows that are rounded together; they stay in the L2 cache
constexpr float kSmallest = 1e-30f;  // below, a row counts as zero, and 127 / max would overflow

struct Rows {
  uint8_t* bytes;  // `stride` apart, filled up with zeros
  float* scale;
  int64_t stride;
};

DW_VNNI void round_row(const float* x, int64_t inputs, const Rows& rows, int64_t row) {
  const __mmask16 tail = __mmask16((1u << inputs % kLanes32) - 1);
  const int64_t whole = inputs / kLanes32 * kLanes32;
  // As integers, the bits of |x| order the same, and NaN comes out largest: it must not get lost.
  const __m512i no_sign = _mm512_set1_epi32(0x7fffffff);
  __m512i top = _mm512_setzero_si512();
  for (int64_t i = 0; i < whole; i += kLanes32)
    top = _mm512_max_epu32(top, _mm512_and_si512(_mm512_loadu_si512(x + i), no_sign));
  top = _mm512_max_epu32(top, _mm512_and_si512(_mm512_maskz_loadu_epi32(tail, x + whole), no_sign));
  const uint32_t bits = _mm512_reduce_max_epu32(top);
  float largest;
  std::memcpy(&largest, &bits, 4);
  rows.scale[row] = largest / 127.f;
  const __m512 factor = _mm512_set1_ps(largest > kSmallest ? 127.f / largest : 0.f);
  const auto round = [&](__m512 value) DW_VNNI {
    const __m512i nearest = _mm512_cvtps_epi32(_mm512_mul_ps(value, factor));
    return _mm512_cvtepi32_epi8(_mm512_add_epi32(nearest, _mm512_set1_epi32(128)));
  };
  uint8_t* to = rows.bytes + row * rows.stride;
  for (int64_t i = 0; i < whole; i += kLanes32)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), round(_mm512_loadu_ps(x + i)));
  if (tail) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + whole), round(_mm512_maskz_loadu_ps(tail, x + whole)));
}

// A group of rows times one block of outputs.
template <int64_t Count>
DW_VNNI void multiply(const Int8Rows& p, const Rows& rows, int64_t row, int64_t block, float* y) {
  const int64_t quads = ceil_div(p.inputs, 4);
  const int8_t* weight = p.weight + block * quads * kBlock * 4;
  const uint8_t* x = rows.bytes + row * rows.stride;
  __m512i sum[Count][kColumns];
  for (int64_t i = 0; i < Count; ++i)
    for (int64_t j = 0; j < kColumns; ++j) sum[i][j] = _mm512_setzero_si512();
  for (int64_t quad = 0; quad < quads; ++quad, weight += kBlock * 4) {
    __m512i w[kColumns];
    for (int64_t j = 0; j < kColumns; ++j) w[j] = _mm512_loadu_si512(weight + j * 64);
    for (int64_t i = 0; i < Count; ++i) {
      int32_t four;
      std::memcpy(&four, x + i * rows.stride + quad * 4, 4);
      const __m512i value = _mm512_set1_epi32(four);
      for (int64_t j = 0; j < kColumns; ++j) sum[i][j] = _mm512_dpbusd_epi32(sum[i][j], value, w[j]);
    }
  }
  // Unrolled: sums that are indexed at run time would live in memory all along.
#pragma GCC unroll 4
  for (int64_t j = 0; j < kColumns; ++j) {
    const int64_t output = block * kBlock + j * kLanes32;
    const int64_t skipped = std::clamp<int64_t>(p.first - output, 0, kLanes32), kept = std::clamp<int64_t>(p.last - output, 0, kLanes32);
    const __mmask16 mask = __mmask16(((1u << kept) - 1) & ~((1u << skipped) - 1));
    const __m512i offset = _mm512_loadu_si512(p.offset + output);
    const __m512 scale = _mm512_loadu_ps(p.scale + output), bias = _mm512_loadu_ps(p.bias + output);
#pragma GCC unroll 6
    for (int64_t i = 0; i < Count; ++i) {
      const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(rows.scale[row + i]));
      const __m512 value = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum[i][j], offset));
      float* to = y + (row + i) * (p.last - p.first) + output - p.first;
      _mm512_mask_storeu_ps(to, mask, _mm512_fmadd_ps(value, factor, bias));
    }
  }
}

template <int64_t Count = kGroup>
void multiply_group(int64_t count, const Int8Rows& p, const Rows& rows, int64_t row, int64_t block, float* y) {
  if (count == Count) return multiply<Count>(p, rows, row, block, y);
  if constexpr (Count > 1) multiply_group<Count - 1>(count, p, rows, row, block, y);
}

// Up to `kChunk` rows; each thread rounds all of them for itself, which takes less time than to wait for the others.
bool multiply_chunk(const Int8Rows& p, int64_t first_row, int64_t count) {
  const int64_t first = p.first / kBlock, last = ceil_div(p.last, kBlock), groups = ceil_div(count, kGroup);
  const int64_t stride = round_up(p.inputs, 64), scales = round_up(count * 4, 64);
  float* y = p.y + first_row * (p.last - p.first);
  std::atomic<int64_t> next{first};
  std::atomic<bool> fits{true};
  run_team(std::min(p.threads, last - first), [&] {
    char* memory = thread_scratch().reserve(scales + count * stride);
    if (!memory) {
      fits = false;
      return;
    }
    const Rows rows{reinterpret_cast<uint8_t*>(memory) + scales, reinterpret_cast<float*>(memory), stride};
    for (int64_t row = 0; row < count; ++row) round_row(p.x + (first_row + row) * p.inputs, p.inputs, rows, row);
    for (int64_t block; (block = next++) < last;)
      for (int64_t group = 0, row = 0; group < groups; ++group) {
        // Groups of equal size: a short last group would leave the units that multiply idle.
        const int64_t size = count / groups + (group < count % groups);
        multiply_group(size, p, rows, row, block, y);
        row += size;
      }
    thread_scratch().trim();
  });
  return fits;
}

}  // namespace
}  // namespace dw

// Return 0 when done, 1 without memory, 2 if the processor lacks the instruction.
extern "C" __attribute__((visibility("default"))) int dw_int8_rows(const dw::Int8Rows* given) {
  using namespace dw;
  if (!__builtin_cpu_supports("avx512vnni")) return 2;
  const Int8Rows p = *given;
  for (int64_t row = 0; row < p.rows; row += kChunk)
    if (!multiply_chunk(p, row, std::min(kChunk, p.rows - row))) return 1;
  return 0;
}

#else
extern "C" __attribute__((visibility("default"))) int dw_int8_rows(const void*) { return 2; }
#endif
