// SPDX-License-Identifier: Apache-2.0
// What comes with a kernel when it is looked up.
#pragma once

#include "session.h"

namespace kvgpu::guest {

struct Description {
  wire::FunctionInfo info;
  wire::ParamInfo params[1024];
};

void adopt(Function& function, const Description& description);

}  // namespace kvgpu::guest
