// SPDX-License-Identifier: Apache-2.0
// Launches of one stream that have come one after the other: all are read and looked up first, then
// given to the driver back to back. The driver's code takes the processor's caches for itself, so
// what a worker does between two launches costs it more than what it does eight times in a row. And
// what comes again and again is a graph (launch_graph.h).
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>

#include "kvgpu/calls.h"
#include "kvgpu/opcodes.gen.h"
#include "launch_graph.h"
#include "task.h"

namespace kvgpu::worker {

class Session;

// Belongs to who executes the stream's records, as its StreamWindow does.
class LaunchRun {
 public:
  static constexpr uint32_t MAX_BODY_BYTES = 256;  // one with more parameters is taken by itself

  // `cache`: of the thread that executes. `device`: what its streams have to be of.
  LaunchRun(Session* session, HandleCache* cache, int device)
      : session_(session), cache_(cache), device_(device) {}
  LaunchRun(const LaunchRun&) = delete;
  LaunchRun& operator=(const LaunchRun&) = delete;

  // May a record with this header be part of one?
  static bool is_launch(const wire::Header& header) {
    return static_cast<wire::Op>(header.opcode) == wire::Op::cuLaunchKernel &&
           header.flags == wire::NOREPLY && header.len_bytes <= sizeof header + MAX_BODY_BYTES;
  }

  size_t size() const { return n_; }
  bool is_full() const { return n_ == MOST; }
  // Whether the next run may wait for a full stream to have room; one of short kernels has some
  // soon.
  void be_patient(bool is_patient) { is_patient_ = is_patient; }
  // While it is not full: where the next one is to be, and its body, if that is not kept elsewhere.
  Task& next() { return entries_[n_].task; }
  std::byte* room() { return bodies_[n_].bytes; }
  // Part of the run from here on; its body stays where it is until give(). False: there is more to
  // it than a launch (a mark, attributes, an error), so it is taken by itself, after the run.
  [[nodiscard]] bool add_next();
  // All of it; empty from here on. Behind one that fails the others are skipped. Returns the last
  // one's number, 0 if there was none.
  uint64_t give();

 private:
  static constexpr size_t MOST = LAUNCHES_AT_ONCE;

  struct Entry {
    Task task;
    CUfunction function;
  };
  struct alignas(16) Body {
    std::byte bytes[MAX_BODY_BYTES];
  };

  bool begin(wire::Handle stream);
  bool has_room() const;
  CUresult launch(const Entry& entry) const;
  bool give_as_graph();

  Session* const session_;
  HandleCache* const cache_;
  const int device_;
  bool is_patient_ = false;
  size_t n_ = 0;
  wire::Handle handle_ = 0;  // of the stream
  Stream* stream_ = nullptr;
  std::array<Entry, MOST> entries_;
  std::array<Body, MOST> bodies_;
};

}  // namespace kvgpu::worker
