// SPDX-License-Identifier: Apache-2.0
// Stream capture: mode, origin thread and legality are kept here, since the worker's threads are
// not the program's. While a stream captures, its records are sent with a reply, so that the
// driver's own verdict comes back at once.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <functional>

#include "objects.h"

namespace kvgpu::guest {

class Call;

// Used again and never given back: a racing call may still look at one that has ended.
struct Capture {
  uint64_t id = 0;
  CUstreamCaptureMode mode{};
  pthread_t origin_thread{};
  Stream* origin = nullptr;
  Context* context = nullptr;
  std::atomic<bool> invalid{false};
  std::atomic<bool> implicit_sync{
      false};                // a blocking stream takes part: the legacy stream is off limits
  std::mutex mutex;          // of what follows
  wire::Handle graph = 0;    // that it makes, known to the worker when the program has asked for it
  bool is_new_graph = true;  // otherwise the program's

  // Calls `change` with the graph that keeps what the captured nodes name; not after the end.
  template <typename Change>
  void with_graph(Change change) {
    const std::lock_guard lock(mutex);
    Graph* const found = tables().graphs.find(graph);
    if (found != nullptr) change(outermost(*found));
  }
};

// CUDA_SUCCESS, or what a potentially unsafe call gets from this thread now (and the capture it
// breaks becomes invalid).
CUresult unsafe_call_allowed();
/// The driver refused to take a call into a capture, which ends the capture.
inline bool is_capture_error(CUresult result) {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_CAPTURED_EVENT;
}

// May work be given to this stream now? Legacy stream against captures of blocking streams, and
// invalid captures.
CUresult enqueue_allowed(Stream& stream);

// A synchronising call on a capturing stream: breaks the capture.
CUresult break_capture(Stream& stream, CUresult error);
CUresult break_capture(uint64_t capture_id, CUresult error);  // if it still goes on
// What concerns a whole context, green or not, while one of its streams captures: breaks those
// captures.
CUresult break_captures(Context& context);

// Into `graph`, null: a new one. `ask` sends the record.
CUresult begin_capture(CUstream handle, CUstreamCaptureMode mode, const Graph* graph,
                       const std::function<CUresult(const Call&, const Stream&)>& ask);
void join_capture(Stream& stream, uint64_t capture_id);
bool any_capture();
// Of a context or green context that is gone. Holding the mutex.
void drop_captures(const Context& context);

}  // namespace kvgpu::guest
