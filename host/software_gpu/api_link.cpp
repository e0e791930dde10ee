// SPDX-License-Identifier: Apache-2.0
// The JIT linker: PTX in, PTX out. What it makes loads as a cubin of a real driver would: its
// inputs, one behind the other, each beginning with its .version.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "api.h"
#include "fatbin.h"
#include "module_loader.h"

struct CUlinkState_st {
  std::string text;
  bool is_complete = false;
  std::string error;
  char* error_log = nullptr;
  void** error_bytes = nullptr;
  size_t error_room_bytes = 0;
};

using namespace software_gpu;

namespace {

std::mutex mutex;
auto& states = *new std::map<CUlinkState, std::unique_ptr<CUlinkState_st>>;

/// The state of a handle, with the lock held; null: none.
CUlinkState_st* find(CUlinkState handle) {
  const auto found = states.find(handle);
  return found == states.end() ? nullptr : found->second.get();
}

void write_error(CUlinkState_st& state, const std::string& error) {
  if (!state.error_log || !state.error_bytes || state.error_room_bytes == 0) return;
  const size_t n = std::min(error.size(), state.error_room_bytes - 1);
  memcpy(state.error_log, error.data(), n);
  state.error_log[n] = 0;
  *state.error_bytes = reinterpret_cast<void*>(n);
}

/// NVIDIA's device runtime is machine code, and what of it the software GPU has is its own: nothing
/// is taken from an archive. What would only be there is missing when the link is completed.
bool is_archive(const void* data, size_t n_bytes) {
  constexpr std::string_view MAGIC = "!<arch>\n";
  return n_bytes > MAGIC.size() && memcmp(data, MAGIC.data(), MAGIC.size()) == 0;
}

}  // namespace

SOFTWARE_GPU_API cuLinkCreate_v2(unsigned n, CUjit_option* options, void** values,
                                 CUlinkState* handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  if (!handle || (n != 0 && (!options || !values))) return CUDA_ERROR_INVALID_VALUE;
  auto state = std::make_unique<CUlinkState_st>();
  for (unsigned i = 0; i < n; ++i) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) state->error_log = static_cast<char*>(values[i]);
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
      state->error_bytes = &values[i];
      state->error_room_bytes = static_cast<unsigned>(reinterpret_cast<uintptr_t>(values[i]));
    }
    // Nothing was written yet.
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES ||
        options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES) {
      values[i] = nullptr;
    }
  }
  *handle = state.get();
  std::lock_guard lock(mutex);
  states.emplace(*handle, std::move(state));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuLinkAddData_v2(CUlinkState handle, CUjitInputType type, void* data,
                                  size_t n_bytes, const char* name, unsigned, CUjit_option*,
                                  void**) {
  RETURN_IF_FAILED(enter_without_context());
  std::lock_guard lock(mutex);
  CUlinkState_st* state = find(handle);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if (!data || n_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (state->is_complete) return CUDA_ERROR_INVALID_VALUE;
  if (type < 0 || type >= CU_JIT_NUM_INPUT_TYPES) return CUDA_ERROR_INVALID_VALUE;
  std::string ptx;
  if (type == CU_JIT_INPUT_PTX) {
    ptx.assign(static_cast<const char*>(data), strnlen(static_cast<const char*>(data), n_bytes));
  } else if (type == CU_JIT_INPUT_FATBINARY) {
    RETURN_IF_FAILED(fatbin::extract_ptx(data, n_bytes, false, &ptx));
  } else if (type == CU_JIT_INPUT_LIBRARY && is_archive(data, n_bytes)) {
    return CUDA_SUCCESS;
  } else {
    return type == CU_JIT_INPUT_CUBIN ? CUDA_ERROR_INVALID_IMAGE : CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  // As a real linker: each input is compiled when it is added.
  std::string error;
  const CUresult result = check_link_input(ptx, any_context().device.memory, &error);
  if (result != CUDA_SUCCESS) {
    write_error(*state, std::string(name ? name : "input") + ": " + error);
    return result;
  }
  state->text += ptx + "\n";
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuLinkComplete(CUlinkState handle, void** image, size_t* n_bytes) {
  RETURN_IF_FAILED(enter_without_context());
  std::lock_guard lock(mutex);
  CUlinkState_st* state = find(handle);
  if (!state || state->is_complete) return CUDA_ERROR_INVALID_HANDLE;
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  std::unique_ptr<Module> module;
  std::string error;
  Memory& memory = any_context().device.memory;
  const CUresult result = load_module(state->text, memory, &module, &error);
  if (module) release_variables(*module, memory);
  if (result != CUDA_SUCCESS) {
    write_error(*state, "linked inputs: " + error);
    return result == CUDA_ERROR_INVALID_PTX ? CUDA_ERROR_UNKNOWN : result;
  }
  state->is_complete = true;
  *image = state->text.data();
  if (n_bytes) *n_bytes = state->text.size() + 1;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuLinkDestroy(CUlinkState handle) {
  RETURN_IF_FAILED(enter_without_context());
  std::lock_guard lock(mutex);
  return states.erase(handle) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
