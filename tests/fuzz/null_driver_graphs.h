// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "null_driver.h"

namespace kvgpu::fuzz {

void fill_graphs(worker::DriverTable* table);

}  // namespace kvgpu::fuzz
