// SPDX-License-Identifier: Apache-2.0
// User objects. Who holds how many references the driver knows, in the worker; the destructor runs
// here, on the thread that runs host functions.
#include "generated/api.gen.h"
#include "graphs.h"

namespace kvgpu::guest {

CUresult user_object_create(CUuserObject* object_out, void* ptr, CUhostFn destroy,
                            unsigned int initialRefcount, unsigned int flags) {
  if (object_out == nullptr || destroy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  UserObject* const object = tables().user_objects.create();
  if (object == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const wire::Handle handle = object->handle;
  Session& session = Session::get();
  const uint64_t function = session.add_destructor([handle, destroy, ptr](CUresult) {
    forget(handle);
    destroy(ptr);
  });
  const wire::UserObjectCreate body{call.context(), handle, function, initialRefcount, flags};
  const CUresult result = call.sync(wire::Op::cuUserObjectCreate, body);
  if (result != CUDA_SUCCESS) {
    session.drop_destructor(function);
    forget(handle);
    return result;
  }
  *object_out = from_wire<CUuserObject>(handle);
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
