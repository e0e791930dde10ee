// SPDX-License-Identifier: Apache-2.0
// Fields of nvmlDeviceGetFieldValues that are of NVLinks.
#pragma once

#include "answers.h"

namespace kvgpu::nvml {

// NOT_SUPPORTED where it is a field of something else.
[[nodiscard]] nvmlReturn_t fill_link_field(nvmlDevice_t device, nvmlFieldValue_t* value);

}  // namespace kvgpu::nvml
