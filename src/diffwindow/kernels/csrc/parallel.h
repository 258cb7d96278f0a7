// Threads that share out units of work, each with its own memory.
#pragma once
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
      // Long rows walk over many pages, and every walk of a page table waits.
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

// Run work(unit, memory) for every unit; false when memory ran out. Which thread runs a unit changes nothing in it.
template <typename Work>
bool parallel(int64_t units, int64_t threads, int64_t bytes, const Work& work) {
  std::atomic<bool> fits{true};
#pragma omp parallel num_threads(int(std::max<int64_t>(1, std::min(threads, units))))
  {
    char* memory = thread_scratch().reserve(bytes);
    if (!memory) fits = false;
#pragma omp for schedule(dynamic, 1)
    for (int64_t unit = 0; unit < units; ++unit)
      if (memory) work(unit, memory);
    thread_scratch().trim();
  }
  return fits;
}

}  // namespace dw
