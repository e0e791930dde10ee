// SPDX-License-Identifier: Apache-2.0
// Values that libraries keep by context and key (private table CONTEXT_LOCAL_STORAGE).
#pragma once

#include "objects.h"

namespace kvgpu::guest {

using StorageDestructor = void (*)(CUcontext context, void* key, void* value);

CUresult storage_put(CUcontext context, void* key, void* value, StorageDestructor destructor);
CUresult storage_delete(CUcontext context, void* key);
CUresult storage_get(void** value, CUcontext context, void* key);

// The context ends.
void run_storage_destructors(Context& context);

}  // namespace kvgpu::guest
