// SPDX-License-Identifier: Apache-2.0
#include "shared_event.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>

namespace software_gpu {

SharedEvent::SharedEvent(std::shared_ptr<const SharedFile> file) : file_(std::move(file)) {
  void* mapped = mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, file_->fd(), 0);
  if (mapped != MAP_FAILED) state_ = static_cast<State*>(mapped);
}

SharedEvent::~SharedEvent() {
  if (state_) munmap(state_, sizeof(State));
}

std::shared_ptr<SharedEvent> SharedEvent::create(int ordinal) {
  return open(SharedFile::create(SharedFile::Use::EVENT, ordinal, sizeof(State)));
}

std::shared_ptr<SharedEvent> SharedEvent::open(std::shared_ptr<const SharedFile> file) {
  if (!file || file->size_bytes() < sizeof(State)) return nullptr;
  auto event = std::make_shared<SharedEvent>(std::move(file));
  return event->state_ ? event : nullptr;
}

std::shared_ptr<void> SharedEvent::record() {
  const uint64_t recording = state_->n_recorded.fetch_add(1) + 1;
  return {nullptr, [self = shared_from_this(), recording](void*) {
            std::atomic<uint64_t>& happened = self->state_->n_happened;
            uint64_t before = happened;
            // release: pairs with the acquire of has_happened()
            while (before < recording &&
                   !happened.compare_exchange_weak(before, recording, std::memory_order_release))
              continue;
          }};
}

uint64_t SharedEvent::last_recording() const { return state_->n_recorded; }

bool SharedEvent::has_happened(uint64_t recording) const {
  return state_->n_happened.load(std::memory_order_acquire) >= recording;
}

void SharedEvent::wait(uint64_t recording) const {
  const timespec pause{0, 20'000};
  for (int spins = 0; !has_happened(recording); ++spins) {
    if (spins < 64)
      sched_yield();
    else
      nanosleep(&pause, nullptr);
  }
}

}  // namespace software_gpu
