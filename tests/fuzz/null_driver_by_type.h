// SPDX-License-Identifier: Apache-2.0
// A driver function from the types of its arguments: handles are checked, texts and structs read to
// their end, and what is written gets something plausible.
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <typeinfo>

#include "kvgpu/layout.h"
#include "null_driver.h"

namespace kvgpu::fuzz {

template <typename T>
concept Handle =
    std::is_same_v<T, CUcontext> || std::is_same_v<T, CUmodule> || std::is_same_v<T, CUlibrary> ||
    std::is_same_v<T, CUfunction> || std::is_same_v<T, CUkernel> || std::is_same_v<T, CUstream> ||
    std::is_same_v<T, CUevent> || std::is_same_v<T, CUgraph> || std::is_same_v<T, CUgraphExec> ||
    std::is_same_v<T, CUgraphNode> || std::is_same_v<T, CUmemoryPool> ||
    std::is_same_v<T, CUarray> || std::is_same_v<T, CUmipmappedArray> ||
    std::is_same_v<T, CUlinkState> || std::is_same_v<T, CUuserObject> ||
    std::is_same_v<T, CUexternalMemory> || std::is_same_v<T, CUexternalSemaphore> ||
    std::is_same_v<T, CUgreenCtx> || std::is_same_v<T, CUtexref> || std::is_same_v<T, CUsurfref> ||
    std::is_same_v<T, CUgraphicsResource> || std::is_same_v<T, CUdevResourceDesc> ||
    std::is_same_v<T, CUasyncCallbackHandle> || std::is_same_v<T, CUlogsCallbackHandle>;

template <typename T>
constexpr const char* type_name() {
  if constexpr (std::is_same_v<T, CUfunction>) return "CUfunc_st";
  if constexpr (std::is_same_v<T, CUkernel>) return "CUkern_st";
  return typeid(T).name();
}

inline void read_bytes(const void* from, size_t n) {
  const auto* bytes = static_cast<const volatile unsigned char*>(from);
  for (size_t i = 0; i < n; ++i) (void)bytes[i];
}

template <typename T>
void accept(T argument) {
  if constexpr (Handle<T>) {
    null_driver().check_handle(type_name<T>(), argument);
  } else if constexpr (std::is_same_v<T, const char*>) {
    if (argument != nullptr) read_bytes(argument, std::strlen(argument) + 1);
  } else if constexpr (std::is_pointer_v<T>) {
    using To = std::remove_pointer_t<T>;
    if constexpr (!std::is_void_v<To> && !std::is_function_v<To>) {
      if (argument == nullptr) return;
      if constexpr (std::is_const_v<To>) {
        read_bytes(argument, sizeof(To));
      } else if constexpr (Handle<To>) {
        *argument = static_cast<To>(null_driver().make_handle(type_name<To>()));
      } else if constexpr (std::is_same_v<To, CUdeviceptr>) {
        uint64_t address = 0;
        if (null_driver().allocate(&address, PAGE_BYTES) == CUDA_SUCCESS) *argument = address;
      } else if constexpr (std::is_same_v<To, char>) {
        *argument = '\0';
      } else if constexpr (std::is_arithmetic_v<To> || std::is_enum_v<To>) {
        *argument = static_cast<To>(1);
      } else {
        std::memset(static_cast<void*>(argument), 0, sizeof(To));
      }
    }
  }
}

template <typename T>
void forget(T argument) {
  if constexpr (Handle<T>) null_driver().forget_handle(argument);
}

template <size_t N>
struct Text {
  char value[N];
  constexpr Text(const char (&text)[N]) { std::copy_n(text, N, value); }
};

template <Text name, typename Function>
struct ByType;
template <Text name, typename... Arguments>
struct ByType<name, CUresult (*)(Arguments...)> {
  static CUresult call(Arguments... arguments) {
    if (const CUresult bad = null_driver().begin(name.value)) return bad;
    (accept(arguments), ...);
    constexpr std::string_view NAME = name.value;
    if (NAME.find("Destroy") != NAME.npos || NAME.find("Unload") != NAME.npos) {
      (forget(arguments), ...);
    }
    return CUDA_SUCCESS;
  }
};

}  // namespace kvgpu::fuzz
