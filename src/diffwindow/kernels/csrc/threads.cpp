// Which OpenMP runtime starts the threads. The library links none: the process already has the runtime of torch, and a
// second one would bring a second pool of threads. Its caller passes in that runtime's `GOMP_parallel`, which both GNU's
// and LLVM's runtimes export, so any compiler will do.
#include "parallel.h"

namespace dw {

StartTeam start_team = nullptr;

}  // namespace dw

extern "C" __attribute__((visibility("default"))) void dw_use_threads(dw::StartTeam start) { dw::start_team = start; }

// Return how many threads a kernel gets when it asks for `wanted`.
extern "C" __attribute__((visibility("default"))) int64_t dw_count_threads(int64_t wanted) {
  std::atomic<int64_t> count{0};
  dw::run_team(wanted, [&] { ++count; });
  return count;
}
