// SPDX-License-Identifier: Apache-2.0
// The instructions that ptx_ops.toml lists; its head describes the notation.
#pragma once

#include "ptx_syntax.h"

namespace software_gpu {

/// Whether some form of ptx_ops.toml has the instruction's opcode, modifiers and types.
bool is_listed(const ptx::Instruction& instruction);

}  // namespace software_gpu
