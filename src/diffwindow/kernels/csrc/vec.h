// Vectors of floats through the compiler's vector extension, so that one source serves AVX-512, AVX2 and the rest.
#pragma once
#include <cstdint>
#include <cstring>

#if !defined(DW_LANES)
#if defined(__AVX512F__)
#define DW_LANES 16
#else
#define DW_LANES 8
#endif
#endif

#define DW_INLINE inline __attribute__((always_inline))

namespace dw {

// Queries lie side by side in a panel, one cache line wide, and every loop runs along the keys: maxima, sums and
// prefix sums of a row are then plain vertical operations, with neither shuffles nor tails.
constexpr int64_t kPanel = 16;
constexpr int64_t kLanes = DW_LANES;
constexpr int64_t kParts = kPanel / kLanes;

typedef float vec __attribute__((vector_size(4 * DW_LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * DW_LANES), aligned(4), may_alias));
typedef uint32_t uvec __attribute__((vector_size(4 * DW_LANES), aligned(4), may_alias));
typedef uint16_t hvec __attribute__((vector_size(2 * DW_LANES), aligned(2), may_alias));
typedef int8_t bvec __attribute__((vector_size(DW_LANES), aligned(1), may_alias));
typedef float vec8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t uvec8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint16_t hvec8 __attribute__((vector_size(16), aligned(2), may_alias));

struct bfloat16 {
  uint16_t bits;
};

DW_INLINE vec load(const float* p) { return *reinterpret_cast<const vec*>(p); }
DW_INLINE void store(float* p, vec x) { *reinterpret_cast<vec*>(p) = x; }
DW_INLINE vec splat(float x) { return x - vec{}; }  // not 0 + x, which would have to be added for the sign of zero
DW_INLINE vec larger(vec a, vec b) { return a > b ? a : b; }

// e^x for x ≤ 0: 2^n 2^f with |f| ≤ 1/2, within 1e-7 of the largest result. The polynomial is split up, since a chain of
// its multiply-adds would wait for each. Below the normal numbers, and at -inf, it is 0; NaN stays NaN; e^0 is 1.
DW_INLINE vec exp(vec x) {
  constexpr float round = 12582912.f;  // 1.5 · 2^23: adding it leaves the nearest integer in the low bits
  constexpr float log2e = 1.44269504088896341f;
  const vec shifted = x * log2e + round;
  const vec f = x * log2e - (shifted - round), f2 = f * f;
  const vec low = f * 0.693147242f + 1.f, middle = f * 0.0555031039f + 0.240226522f;
  const vec high = f2 * 1.55946778e-4f + (f * 1.34066434e-3f + 9.61769279e-3f);
  const vec p = (f2 * high + middle) * f2 + low;
  const uvec bits = (uvec)p + ((uvec)shifted << 23);
  return (vec)(bits & ~(uvec)(x < -87.f));
}

DW_INLINE vec load(const bfloat16* p) {
  return (vec)(__builtin_convertvector(*reinterpret_cast<const hvec*>(p), uvec) << 16);
}
DW_INLINE void store(bfloat16* p, vec x) {
  const uvec bits = (uvec)x, nan = (uvec)(x != x);
  const uvec nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  *reinterpret_cast<hvec*>(p) = __builtin_convertvector((nearest & ~nan) | (nan & 0x7fc0), hvec);
}

DW_INLINE vec8 load8(const float* p) { return *reinterpret_cast<const vec8*>(p); }
DW_INLINE vec8 load8(const bfloat16* p) {
  const hvec8 half = *reinterpret_cast<const hvec8*>(p);
  return (vec8)(__builtin_convertvector(half, uvec8) << 16);
}
DW_INLINE void store8(float* p, vec8 x) { *reinterpret_cast<vec8*>(p) = x; }
DW_INLINE void store8(bfloat16* p, vec8 x) {
  const uvec8 bits = (uvec8)x;
  const uvec8 nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uvec8 nan = (uvec8)(x != x);
  *reinterpret_cast<hvec8*>(p) = __builtin_convertvector((nearest & ~nan) | (nan & 0x7fc0), hvec8);
}

DW_INLINE float load1(const float* p) { return *p; }
DW_INLINE float load1(const bfloat16* p) {
  const uint32_t bits = uint32_t(p->bits) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
DW_INLINE void store1(float* p, float x) { *p = x; }
DW_INLINE void store1(bfloat16* p, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  p->bits = x != x ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

DW_INLINE void transpose8(vec8 (&r)[8]) {
  vec8 t[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    t[2 * i + 1] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  vec8 u[8];
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      u[4 * i + 2 * j] = __builtin_shufflevector(t[4 * i + j], t[4 * i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      u[4 * i + 2 * j + 1] = __builtin_shufflevector(t[4 * i + j], t[4 * i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = __builtin_shufflevector(u[i], u[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    r[i + 4] = __builtin_shufflevector(u[i], u[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

}  // namespace dw
