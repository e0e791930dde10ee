// SPDX-License-Identifier: Apache-2.0
// JIT options of the guest as the driver wants them. The logs are the worker's own memory; what was
// written there is copied into the slab afterwards.
#pragma once

#include <vector>

#include "kvgpu/calls.h"
#include "kvgpu/module_calls.h"
#include "session.h"

namespace kvgpu::worker {

class Jit {
 public:
  // `options`: what follows the request in the record. False: it breaks the protocol.
  [[nodiscard]] bool read(const wire::JitRequest& request, std::span<const std::byte> options) {
    if (!fits(request) || request.n_options > wire::MAX_JIT_OPTIONS ||
        options.size() < request.n_options * sizeof(wire::JitOption)) {
      return false;
    }
    n_ = request.n_options;
    for (uint32_t i = 0; i < n_; ++i) {
      wire::JitOption option;
      std::memcpy(&option, options.data() + i * sizeof option, sizeof option);
      if (!wire::jit_option_is_plain(option.id)) return false;
      add(static_cast<CUjit_option>(option.id), option.value);
    }
    info_.resize(request.info_bytes);
    error_.resize(request.error_bytes);
    add_log(info_, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, &info_at_);
    add_log(error_, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, &error_at_);
    return true;
  }

  static bool fits(const wire::JitRequest& request) {
    const auto inside = [](uint64_t off, uint64_t bytes) {
      return bytes <= wire::MAX_JIT_LOG_BYTES && off <= SLAB_BYTES && bytes <= SLAB_BYTES - off;
    };
    return inside(request.info_off, request.info_bytes) &&
           inside(request.error_off, request.error_bytes);
  }

  unsigned n() const { return static_cast<unsigned>(options_.size()); }
  CUjit_option* options() { return options_.data(); }
  void** values() { return values_.data(); }

  // Logs to where `request` wants them, the rest into the reply.
  void answer(Session& session, const wire::JitRequest& request, ReplyWriter& reply) const {
    const uint64_t info_bytes =
        copy(session, info_, info_at_, request.info_off, request.info_bytes);
    const uint64_t error_bytes =
        copy(session, error_, error_at_, request.error_off, request.error_bytes);
    reply.put(wire::JitReply{info_bytes, error_bytes});
    for (uint32_t i = 0; i < n_; ++i) reply.put(reinterpret_cast<uint64_t>(values_[i]));
  }

 private:
  void add(CUjit_option option, uint64_t value) {
    options_.push_back(option);
    values_.push_back(reinterpret_cast<void*>(value));
  }
  void add_log(std::vector<char>& log, CUjit_option buffer, CUjit_option size, size_t* size_at) {
    if (log.empty()) return;
    add(buffer, reinterpret_cast<uint64_t>(log.data()));
    add(size, log.size());
    *size_at = values_.size() - 1;
  }
  uint64_t copy(Session& session, const std::vector<char>& log, size_t size_at, uint64_t slab_off,
                uint64_t room_bytes) const {
    if (log.empty() || room_bytes == 0) return 0;
    uint32_t written;  // a value is 8 bytes of which a number takes the first four
    std::memcpy(&written, &values_[size_at], sizeof written);
    const uint64_t n = std::min<uint64_t>({written, log.size(), room_bytes});
    std::memcpy(session.slab() + slab_off, log.data(), n);
    return n;
  }

  std::vector<CUjit_option> options_;
  std::vector<void*> values_;
  uint32_t n_ = 0;  // of the guest's
  std::vector<char> info_, error_;
  size_t info_at_ = 0, error_at_ = 0;
};

}  // namespace kvgpu::worker
