// Threads that share units of work, each with its own memory.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "problem.h"

namespace dw {

// Memory that a thread keeps between calls while it is small: fresh pages cost more than short sequences do.
class Scratch {
 public:
  ~Scratch() { std::free(data_); }
  char* reserve(int64_t bytes) {
    if (bytes > size_) {
      release();
      const int64_t align = bytes < kHugePage ? 64 : kHugePage;
      data_ = static_cast<char*>(std::aligned_alloc(align, round_up(bytes, align)));
      size_ = data_ ? bytes : 0;
#if defined(__linux__)
      // Huge pages: long rows touch many pages, and each miss in the page tables stalls.
      if (data_ && align == kHugePage) madvise(data_, round_up(bytes, align), MADV_HUGEPAGE);
#endif
    }
    return data_;
  }
  void trim() {
    if (size_ > kKept) release();
  }

 private:
  static constexpr int64_t kHugePage = int64_t(2) << 20;
  static constexpr int64_t kKept = int64_t(4) << 20;
  void release() {
    std::free(data_);
    data_ = nullptr;
    size_ = 0;
  }
  char* data_ = nullptr;
  int64_t size_ = 0;
};

inline Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// While it lives, numbers below the normal ones are 0 in this thread. Pointers have many of them, far from where they point,
// and some processors take a hundred cycles for a product with one.
class FlushDenormals {
#if defined(__SSE__)
 public:
  FlushDenormals() : before_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(before_ | kFlushResults | kFlushInputs); }
  ~FlushDenormals() { __builtin_ia32_ldmxcsr(before_); }

 private:
  static constexpr unsigned kFlushResults = 0x8000, kFlushInputs = 0x0040;
  const unsigned before_;
#endif
};

// Run body(data) on every thread of a new team, as the `GOMP_parallel` of an OpenMP runtime does.
using StartTeam = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

// Null until `dw_use_threads` sets it; without it the calling thread works alone.
extern StartTeam start_team;

// Run body() on up to `threads` threads, the caller among them. A runtime may give fewer, for example in a nested team.
template <typename Body>
void run_team(int64_t threads, const Body& body) {
  if (threads < 2 || !start_team) return body();
  start_team([](void* data) { (*static_cast<const Body*>(data))(); }, const_cast<Body*>(&body), unsigned(threads), 0);
}

// Run work(unit, memory) for every unit; false when memory ran out. Which thread runs a unit changes nothing in it.
template <typename Work>
bool parallel(int64_t units, int64_t threads, int64_t bytes, const Work& work) {
  std::atomic<bool> fits{true};
  std::atomic<int64_t> next{0};
  run_team(std::min(threads, units), [&] {
    const FlushDenormals flush;
    char* memory = thread_scratch().reserve(bytes);
    if (!memory) fits = false;
    for (int64_t unit; memory && (unit = next++) < units;) work(unit, memory);
    thread_scratch().trim();
  });
  return fits;
}

}  // namespace dw
