// SPDX-License-Identifier: Apache-2.0
// Everything that the worker does with a record: ring, reader, executor, handlers, up to the
// driver's doors. With KVGPU_FUZZ_RACE a second thread of the guest rewrites the shared bytes
// meanwhile.
#include <atomic>
#include <thread>

#include "guest.h"
#include "kvgpu/barrier.h"
#include "kvgpu/layout.h"
#include "kvgpu/records.h"
#include "mutate.h"

using namespace kvgpu;
using namespace kvgpu::fuzz;

namespace {

#ifdef KVGPU_FUZZ_RACE
constexpr bool RACE = true;
#else
constexpr bool RACE = false;
#endif

// Rewrites words near the place where the worker reads, and in the first part of the slab. Mostly
// bodies: a changed length only ends the session.
class Rewriter {
 public:
  void start() {
    std::thread([this] { run(); }).detach();
  }
  // release: pairs with the acquire in run()
  void set_active(bool active) { active_.store(active, std::memory_order_release); }

 private:
  static constexpr uint64_t NEAR_BYTES = 512, SLAB_PART_BYTES = 4096;

  void run() {
    const SharedBytes shared = shared_bytes();
    for (;;) {
      // acquire: pairs with the release in set_active()
      if (!active_.load(std::memory_order_acquire)) {
        std::this_thread::yield();
        continue;
      }
      const uint64_t position = load_relaxed(ring_position());
      const uint64_t at = (position + random_() % NEAR_BYTES / 8 * 8) % COMMAND_RING_BYTES;
      const bool is_header = at % wire::RECORD_ALIGN_BYTES < sizeof(wire::Header);
      if (!is_header || random_() % 64 == 0) rewrite(shared.ring + at);
      if (random_() % 4 == 0) rewrite(shared.slab + random_() % SLAB_PART_BYTES / 8 * 8);
      if (random_() % 4096 == 0) store_relaxed(*shared.event_credit, random_() % 65536);
    }
  }

  void rewrite(std::byte* at) {
    auto& word = *reinterpret_cast<uint64_t*>(at);
    const uint64_t was = load_relaxed(word);
    store_relaxed(word, random_() % 2 ? was ^ 1ull << random_() % 64 : plausible_word(random_));
    // Sometimes back again: a check may see the one value and the use the other.
    if (random_() % 2) store_relaxed(word, was);
  }

  Random random_;
  std::atomic<bool> active_{false};
};

Rewriter& rewriter() {
  static Rewriter the_rewriter;
  return the_rewriter;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  prepare();
  if (RACE) rewriter().start();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<Action> actions = parse({data, size});
  if (RACE) rewriter().set_active(true);
  run_session(actions);
  if (RACE) rewriter().set_active(false);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return mutate_input(data, size, max_size, seed);
}
