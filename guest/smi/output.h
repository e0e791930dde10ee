// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "devices.h"

namespace kvgpu::smi {

void print_names(const std::vector<Device>& devices);
void print_table(const std::vector<Device>& devices);
void print_json(const std::vector<Device>& devices);

}  // namespace kvgpu::smi
