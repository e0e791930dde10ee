// SPDX-License-Identifier: Apache-2.0
// The name after a record's body.
#pragma once

#include <string>

#include "task.h"

namespace kvgpu::worker {

// Names of kernels may be long, but not longer than a record. False: malformed.
template <typename Body>
bool read_name(const Task& task, const Body& body, std::string* name) {
  const auto rest = task.after<Body>();
  if (body.name_bytes > rest.size()) return false;
  name->assign(reinterpret_cast<const char*>(rest.data()), body.name_bytes);
  return name->find('\0') == name->npos;
}

}  // namespace kvgpu::worker
