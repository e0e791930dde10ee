// SPDX-License-Identifier: Apache-2.0
// The socket to kvgpud (PROTOCOL.md §4, §5). Trusted: kvgpud is ours.
//
// kvgpud may go away and come back: the session goes on meanwhile, and what was asked of the
// earlier kvgpud and not answered is asked again.
#pragma once

#include <cuda.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kvgpu/barrier.h"
#include "kvgpu/control.h"
#include "kvgpu/device_report.h"
#include "kvgpu/layout.h"
#include "shares.h"

struct msghdr;

namespace kvgpu::worker {

inline constexpr int CONTROL_FD = 3, REGION_FD = 4, KICK_FD = 5, LISTENER_FD = 6;

// What the command line says of a worker that is started for its session.
struct Assignment {
  uint32_t session_id;
  uint64_t region_bytes;
  uint64_t block_offset;
  std::chrono::seconds away_limit;
};

class Control {
 public:
  // `away_limit`: how long the session goes on without kvgpud; 0: it ends with the connection.
  Control(uint32_t session_id, HostPage* page, std::chrono::seconds away_limit)
      : shares(session_id), session_id_(session_id), page_(page), away_limit_(away_limit) {}

  // What other sessions of the VM may ask for; kvgpud passes that on.
  Shares shares;

  // Before the worker gives up being root: only this user's kvgpud is listened to.
  static void remember_owner();

  // Says that the worker waits, and returns its session, whose descriptors are in place then.
  // None: kvgpud has no use for the worker, or is gone.
  static std::optional<Assignment> wait_for_session(uint32_t n_devices);

  void ready(uint32_t n_devices);
  // Says why the session cannot start or ends; CUresult is what the guest will see.
  static void report_failure(CUresult error, const std::string& reason);

  // Pinned memory for the session. False: none left, or kvgpud has been away for too long.
  [[nodiscard]] bool allocate_extent(uint64_t bytes, control::Extent* extent);
  void free_extent(uint64_t offset);

  // What a session, this one or another one of the VM, has shared; kind NONE: there is no such
  // thing, or its session does not answer.
  [[nodiscard]] Share resolve(const wire::Token& token);

  // Reads until kvgpud ends the session; returns why. `measure` answers USAGE_QUERY, on a thread of
  // its own: the driver may keep it for long, and END must be heard.
  using Measure = std::function<std::vector<control::DeviceUsage>()>;
  // Answers ACTIVITY_QUERY: the payload. It asks no driver.
  using Report = std::function<std::vector<std::byte>()>;
  std::string serve(Measure measure, Report report);

 private:
  union Question {
    uint64_t value;  // of EXTENT_ALLOC, EXTENT_FREE
    control::Resolve resolve;
  };
  struct Request {
    control::Type type;
    Question question;
    bool abandoned;  // nobody waits any more
    uint32_t len_bytes() const {
      return type == control::Type::RESOLVE ? sizeof question.resolve : sizeof question.value;
    }
  };

  // release: pairs with the agent's acquire in read_worker_state()
  void beat() { store_release(page_->beat, ++n_beats_); }
  bool read_frames();  // false: told to end; true: the connection is gone
  void on_frame(const control::FrameHeader& header, const char* payload, Descriptor descriptor);
  void on_extent(uint32_t request, const control::Extent& extent);
  [[noreturn]] void answer_usage(const Measure& measure);
  void answer_activity(uint32_t query);
  void on_resolve(uint32_t request, const control::Resolve& asked);
  void on_resolved(uint32_t request, const control::Resolved& answer, Descriptor descriptor);
  uint32_t ask(control::Type type, const Question& question);  // holding mutex_
  [[nodiscard]] bool wait_for_kvgpud();
  [[nodiscard]] bool take_over(int connection);

  const uint32_t session_id_;
  HostPage* const page_;
  const std::chrono::seconds away_limit_;
  std::mutex mutex_;
  std::condition_variable answered_;
  std::map<uint32_t, Request> unanswered_;
  std::map<uint32_t, control::Extent> answers_;
  std::condition_variable usage_wanted_;
  std::optional<uint32_t> usage_query_;  // the newest; kvgpud has no other under way
  Report report_;
  std::map<uint32_t, Share> resolved_;
  uint32_t next_request_ = 1;
  uint64_t n_beats_ = 0;
};

}  // namespace kvgpu::worker
