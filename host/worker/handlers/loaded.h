// SPDX-License-Identifier: Apache-2.0
// What is kept with a module or a library.
#pragma once

#include <memory>

#include "printers.h"

namespace kvgpu::worker {

struct Loaded {
  Printers printers;
  std::shared_ptr<const void> logs;  // into which the driver may still write
};

}  // namespace kvgpu::worker
