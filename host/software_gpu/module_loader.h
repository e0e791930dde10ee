// SPDX-License-Identifier: Apache-2.0
// PTX text -> a Module in device memory.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "memory.h"
#include "program.h"

namespace software_gpu {

/// On failure `*error` says what and where; on success it is empty.
[[nodiscard]] CUresult load_module(std::string_view ptx, Memory& memory,
                                   std::unique_ptr<Module>* out, std::string* error);

/// Give the memory of its variables back.
void release_variables(const Module& module, Memory& memory);

/// Look whether `ptx` can be one of several that are linked: what it lacks others may have.
[[nodiscard]] CUresult check_link_input(std::string_view ptx, Memory& memory, std::string* error);

}  // namespace software_gpu
