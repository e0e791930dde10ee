// SPDX-License-Identifier: Apache-2.0
#include "jit.h"

#include <algorithm>
#include <cstring>

#include "refuse.h"

namespace kvgpu::guest {

namespace {

constexpr uint64_t OWN_LOG_BYTES = 4096;

// A caller's value is 8 bytes of which a number takes the first four.
uint32_t number_of(void* const* value) {
  uint32_t number;
  std::memcpy(&number, value, sizeof number);
  return number;
}

}  // namespace

JitOptions::~JitOptions() {
  if (has_piece_) Staging::get().release(piece_);
}

CUresult JitOptions::read(unsigned n, CUjit_option* options, void** values, bool keep_error) {
  if (n != 0 && (options == nullptr || values == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  if (n > wire::MAX_JIT_OPTIONS) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < n; ++i) {
    switch (options[i]) {
      case CU_JIT_INFO_LOG_BUFFER:
        info_.buffer = static_cast<char*>(values[i]);
        break;
      case CU_JIT_ERROR_LOG_BUFFER:
        error_.buffer = static_cast<char*>(values[i]);
        break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        info_.size_value = &values[i];
        info_.bytes = number_of(&values[i]);
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        error_.size_value = &values[i];
        error_.bytes = number_of(&values[i]);
        break;
      default:
        if (!wire::jit_option_is_plain(options[i])) {
          return static_cast<CUresult>(refuse_part("a JIT option that names symbols"));
        }
        passed_.push_back({static_cast<uint32_t>(options[i]), 0, number_of(&values[i])});
        passed_values_.push_back(&values[i]);
    }
  }
  const auto wanted = [](const Log& log) {
    return log.buffer == nullptr ? 0 : std::min(log.bytes, wire::MAX_JIT_LOG_BYTES);
  };
  request_.info_bytes = wanted(info_);
  request_.error_bytes = keep_error ? std::max(wanted(error_), OWN_LOG_BYTES) : wanted(error_);
  request_.n_options = static_cast<uint32_t>(passed_.size());
  return CUDA_SUCCESS;
}

CUresult JitOptions::prepare() {
  const uint64_t bytes = request_.info_bytes + request_.error_bytes;
  if (bytes == 0) return CUDA_SUCCESS;
  if (const CUresult bad = Staging::get().allocate(bytes, &piece_)) return bad;
  has_piece_ = true;
  request_.info_off = piece_.off;
  request_.error_off = piece_.off + request_.info_bytes;
  return CUDA_SUCCESS;
}

Part JitOptions::options() const {
  return {passed_.data(), static_cast<uint32_t>(passed_.size() * sizeof(wire::JitOption))};
}

void JitOptions::write_log(const Log& log, uint64_t slab_off, uint64_t written) const {
  if (log.buffer != nullptr && log.bytes > 0) {
    const uint64_t n = std::min(written, log.bytes - 1);
    std::memcpy(log.buffer, Session::get().slab() + slab_off, n);
    log.buffer[n] = '\0';
    written = n;
  }
  // CUDA 13.0 cuda.h: on output, the number of bytes that were filled.
  if (log.size_value != nullptr) *log.size_value = reinterpret_cast<void*>(written);
}

void JitOptions::finish(const Reply& reply) {
  const uint64_t info_bytes = std::min(reply.sizes.info_bytes, request_.info_bytes);
  const uint64_t error_bytes = std::min(reply.sizes.error_bytes, request_.error_bytes);
  write_log(info_, request_.info_off, info_bytes);
  write_log(error_, request_.error_off, error_bytes);
  if (error_bytes > 0) {
    const auto* text = reinterpret_cast<const char*>(Session::get().slab() + request_.error_off);
    error_log_.assign(text, strnlen(text, error_bytes));
  }
  for (size_t i = 0; i < passed_.size(); ++i) {
    // Written by the driver: how many threads the code is good for, and how long it took.
    const uint32_t id = passed_[i].id;
    if (id == CU_JIT_THREADS_PER_BLOCK || id == CU_JIT_WALL_TIME) {
      *passed_values_[i] = reinterpret_cast<void*>(reply.values[i]);
    }
  }
}

}  // namespace kvgpu::guest
