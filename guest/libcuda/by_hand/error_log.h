// SPDX-License-Identifier: Apache-2.0
// The error log of cuLogs*: which of the program's calls have failed. It is the guest's, as the
// calls are: what the host's driver says there is about the worker's. No cuda.h here.
#pragma once

namespace kvgpu::guest {

void note_failure(const char* entry_point, int result);

// What a call of the program's answers, on its way there.
template <typename Result>
Result answered(const char* entry_point, Result result) {
  if (result != 0) [[unlikely]]
    note_failure(entry_point, result);
  return result;
}

}  // namespace kvgpu::guest
