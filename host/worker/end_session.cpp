// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "control.h"
#include "log.h"
#include "session.h"

namespace kvgpu::worker {

void end_session(const std::string& reason, ExitStatus status) {
  log("session ends: %s", reason.c_str());
  if (status != ExitStatus::ENDED) Control::report_failure(CUDA_ERROR_UNKNOWN, reason);
  _exit(static_cast<int>(status));
}

}  // namespace kvgpu::worker
