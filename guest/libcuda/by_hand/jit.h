// SPDX-License-Identifier: Apache-2.0
// JIT options on their way to the worker and back: numbers are passed on, logs travel through the
// slab, and what the driver writes into the caller's values is written back there.
#pragma once

#include <string>
#include <vector>

#include "kvgpu/calls.h"
#include "kvgpu/module_calls.h"
#include "session.h"
#include "staging.h"

namespace kvgpu::guest {

class JitOptions {
 public:
  ~JitOptions();
  JitOptions() = default;
  JitOptions(const JitOptions&) = delete;
  JitOptions& operator=(const JitOptions&) = delete;

  // Options that hold names of the process are refused. With `keep_error` an error log is asked for
  // even where the caller wants none, to be told to the user.
  CUresult read(unsigned n, CUjit_option* options, void** values, bool keep_error);
  // Takes room in the slab for the logs; part(request()) and options() then go into a record.
  CUresult prepare();
  const wire::JitRequest& request() const { return request_; }
  Part options() const;

  // What ends the reply. Filled by the worker, then handed to finish().
  struct Reply {
    wire::JitReply sizes;
    uint64_t values[wire::MAX_JIT_OPTIONS];
  };
  // Writes logs and values to where the caller wants them.
  void finish(const Reply& reply);
  const std::string& error_log() const { return error_log_; }

 private:
  struct Log {
    char* buffer = nullptr;
    void** size_value = nullptr;
    uint64_t bytes = 0;
  };
  void write_log(const Log& log, uint64_t slab_off, uint64_t written) const;

  std::vector<wire::JitOption> passed_;
  std::vector<void**> passed_values_;  // of the caller
  Log info_, error_;
  wire::JitRequest request_{};
  Staging::Piece piece_{};
  bool has_piece_ = false;
  std::string error_log_;
};

}  // namespace kvgpu::guest
