// SPDX-License-Identifier: Apache-2.0
#include "launch_run.h"

#include <chrono>
#include <thread>
#include <utility>

#include "executor.h"
#include "handle_cache.h"
#include "handlers/launch.h"
#include "session.h"
#include "spin.h"

namespace kvgpu::worker {

bool LaunchRun::begin(wire::Handle stream) {
  handle_ = stream;
  stream_ = cache_->stream(stream);
  return stream_ != nullptr && stream_->context->device == device_ &&
         session_->enter(*stream_) == CUDA_SUCCESS && has_room();
}

// Kernels that are shorter than their launch make a stream full that they come to as a graph. What
// is held (backlog.h) goes to the driver one by one, so the GPU would wait for that.
bool LaunchRun::has_room() const {
  // A stream that is full has room once 256 launches are through: within this, if each is shorter
  // than it takes to launch it.
  constexpr std::chrono::microseconds SOON{1000};
  if (!stream_->window.may_be_full()) [[likely]]
    return true;
  const auto begun = Spin::Clock::now();
  while (stream_->window.is_full(*session_->driver, stream_->raw)) {
    if (!is_patient_ || Spin::Clock::now() - begun >= SOON) return false;
    std::this_thread::sleep_for(StreamWindow::BETWEEN_LOOKS);
  }
  return true;
}

bool LaunchRun::add_next() {
  auto& [task, function] = entries_[n_];
  wire::Launch b;
  if (!task.read(&b)) return false;
  const bool has_more = b.mark != 0 || b.n_attributes != 0 || b.params_in == wire::PARAMS_IN_SLAB ||
                        b.param_bytes > task.body.size() - sizeof b;
  if (has_more || session_->poison.stops(task.seq) || session_->dependencies.any()) return false;
  if (n_ == 0 ? !begin(b.stream) : b.stream != handle_) return false;
  function = cache_->function(b.function);
  if (function == nullptr) return false;
  task.cache = cache_;
  task.stream = stream_;
  ++n_;
  return true;
}

CUresult LaunchRun::launch(const Entry& entry) const {
  const std::byte* const body = entry.task.body.data();
  if (stream_->lone_graphs.give(*session_, *stream_, body)) return CUDA_SUCCESS;
  wire::Launch b;
  if (!entry.task.read(&b)) return CUDA_ERROR_INVALID_VALUE;  // add_next() has done so
  return call_launch(*session_, b, entry.function, stream_->raw, body + sizeof b);
}

bool LaunchRun::give_as_graph() {
  RunGraph::Bodies bodies;
  for (size_t i = 0; i < MOST; ++i) bodies[i] = entries_[i].task.body.data();
  return stream_->run_graph.give(*session_, *stream_, bodies);
}

uint64_t LaunchRun::give() {
  if (n_ == 0) return 0;
  size_t n_given = is_full() && give_as_graph() ? n_ : 0;
  CUresult result = CUDA_SUCCESS;
  while (n_given < n_ && (result = launch(entries_[n_given])) == CUDA_SUCCESS) ++n_given;
  stream_->window.count(*session_->driver, stream_->raw, n_given);
  if (n_given < n_) [[unlikely]] {
    stream_->forget_launches();
    note_failure(*session_, entries_[n_given].task, result);
    for (size_t i = n_given + 1; i < n_; ++i) run_task(*session_, entries_[i].task);
  }
  return entries_[std::exchange(n_, 0) - 1].task.seq;
}

}  // namespace kvgpu::worker
