// SPDX-License-Identifier: Apache-2.0
#include "activity.h"

#include <algorithm>
#include <cstring>

#include "kvgpu/control.h"
#include "ops.h"
#include "session.h"

namespace kvgpu::worker {

namespace {

template <size_t N>
void set_text(char (&to)[N], const char* text) {
  std::strncpy(to, text, N - 1);
}

}  // namespace

std::vector<std::byte> report_activity(const Session& session) {
  control::Activity head{};
  std::vector<control::CallCount> counts;
  for (uint16_t opcode = 0; opcode <= MAX_OPCODE; ++opcode) {
    const uint64_t n = session.activity.n_calls(opcode);
    if (n == 0) continue;
    head.n_calls += n;
    control::CallCount& count = counts.emplace_back();
    set_text(count.call, find_op(opcode)->name);
    count.n_calls = n;
  }
  std::ranges::stable_sort(counts, std::greater{}, &control::CallCount::n_calls);
  constexpr size_t ROOM = (control::MAX_PAYLOAD_BYTES - sizeof head) / sizeof counts[0];
  counts.resize(std::min(counts.size(), ROOM));
  head.n_counts = static_cast<uint32_t>(counts.size());
  std::tie(head.memory_bytes, head.peak_memory_bytes) = session.memory_and_peak();
  if (const auto failure = session.activity.last_failure(); failure.n != 0) {
    head.n_failed = failure.n;
    head.failed_at_s = static_cast<uint64_t>(failure.at_s);
    head.cuda_error = failure.error;
    set_text(head.failed_call, failure.call);
    const char* name = "";
    (void)session.driver->cuGetErrorName(failure.error, &name);
    set_text(head.error_name, name == nullptr ? "" : name);
  }
  std::vector<std::byte> payload(sizeof head + counts.size() * sizeof counts[0]);
  std::memcpy(payload.data(), &head, sizeof head);
  if (!counts.empty()) {
    std::memcpy(payload.data() + sizeof head, counts.data(), payload.size() - sizeof head);
  }
  return payload;
}

}  // namespace kvgpu::worker
