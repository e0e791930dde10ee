// SPDX-License-Identifier: Apache-2.0
// Sharing between the processes of a VM: physical memory, pools and what is allocated from them,
// memory of cuMemAlloc, events.
#include "address_space.h"
#include "call.h"
#include "generated/api.gen.h"
#include "memory_map.h"
#include "pools.h"
#include "refuse.h"
#include "shared.h"
#include "virtual_memory.h"

namespace kvgpu::guest {

namespace {

// CUDA passes a descriptor in the pointer itself.
int descriptor_in(void* shareable) {
  return static_cast<int>(reinterpret_cast<intptr_t>(shareable));
}

// Another process's memory that is at an address of this one's now.
CUresult adopt(const Call& call, const wire::OpenedMemory& opened, MemoryRange range) {
  range.begin = opened.address;
  range.bytes = opened.bytes;
  range.is_imported = true;
  if (keep_for_devices(opened.address, opened.bytes)) {
    memory_map().add(range);
    return CUDA_SUCCESS;
  }
  log(Level::WARNING,
      "the device address 0x%llx is not free in this process: another process's memory is refused",
      static_cast<unsigned long long>(opened.address));
  if (range.kind == MemoryKind::OPENED) {
    const wire::CloseMemory body{call.context(), opened.address};
    (void)call.sync(wire::Op::cuIpcCloseMemHandle, body);
  } else {
    (void)call.sync(wire::Op::cuMemFree_v2, wire::MemFree{call.context(), opened.address});
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

CUresult mem_export_to_shareable_handle(void* shareableHandle, CUmemGenericAllocationHandle handle,
                                        CUmemAllocationHandleType handleType,
                                        unsigned long long flags) {
  const Call call(CaptureRule::ALLOWED, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  VirtualMemory& memory = VirtualMemory::get();
  {
    const std::lock_guard lock(memory.mutex);
    const Physical* const physical = memory.find(handle);
    if (shareableHandle == nullptr || physical == nullptr ||
        handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        (physical->properties.requestedHandleTypes & handleType) == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  revoke_closed();
  wire::Token token;
  const wire::PhysicalExport body{handle, flags};
  const CUresult bad = call.sync(wire::Op::cuMemExportToShareableHandle, body, &token);
  return bad != CUDA_SUCCESS ? bad : make_descriptor(token, static_cast<int*>(shareableHandle));
}

CUresult mem_import_from_shareable_handle(CUmemGenericAllocationHandle* handle, void* osHandle,
                                          CUmemAllocationHandleType shHandleType) {
  const Call call(CaptureRule::ALLOWED, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (handle == nullptr || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto token = token_in(descriptor_in(osHandle));
  if (!token) return CUDA_ERROR_UNKNOWN;  // as driver 580
  VirtualMemory& memory = VirtualMemory::get();
  const std::lock_guard lock(memory.mutex);
  const wire::PhysicalImport body{memory.new_name(), *token};
  wire::PhysicalImported out;
  const CUresult bad = call.sync(wire::Op::cuMemImportFromShareableHandle, body, &out);
  if (bad != CUDA_SUCCESS) return bad;
  Physical physical{{}, 0, 1, 0, out.host};
  physical.properties.type = static_cast<CUmemAllocationType>(out.properties.type);
  physical.properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, out.properties.device};
  if (physical.is_host()) {
    const auto type = static_cast<CUmemLocationType>(out.host.location_type);
    physical.properties.location = {type, out.host.node};
  }
  memory.add(body.memory, physical);  // it is not this process's to pass on: no handle types
  *handle = body.memory;
  return CUDA_SUCCESS;
}

CUresult mem_pool_export_to_shareable_handle(void* handle_out, CUmemoryPool pool,
                                             CUmemAllocationHandleType handleType,
                                             unsigned long long flags) {
  const Call call(CaptureRule::FORBIDDEN, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const MemPool* const known = find(pool);
  if (handle_out == nullptr || known == nullptr ||
      handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      (known->handle_types & handleType) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  revoke_closed();
  wire::Token token;
  const wire::PoolExport body{known->handle, flags, known->device, 0};
  const CUresult bad = call.sync(wire::Op::cuMemPoolExportToShareableHandle, body, &token);
  return bad != CUDA_SUCCESS ? bad : make_descriptor(token, static_cast<int*>(handle_out));
}

CUresult mem_pool_import_from_shareable_handle(CUmemoryPool* pool_out, void* handle,
                                               CUmemAllocationHandleType handleType,
                                               unsigned long long flags) {
  const Call call(CaptureRule::FORBIDDEN, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (pool_out == nullptr || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto token = token_in(descriptor_in(handle));
  if (!token) return CUDA_ERROR_UNKNOWN;  // as driver 580
  MemPool* const pool = tables().mem_pools.create();
  if (pool == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::PoolImported out;
  const wire::PoolImport body{pool->handle, *token, flags};
  const CUresult result = call.sync(wire::Op::cuMemPoolImportFromShareableHandle, body, &out);
  if (result != CUDA_SUCCESS) {
    tables().mem_pools.remove(pool->handle);
    return result;
  }
  pool->device = out.device;
  *pool_out = from_wire<CUmemoryPool>(pool->handle);
  return CUDA_SUCCESS;
}

CUresult mem_pool_export_pointer(CUmemPoolPtrExportData* shareData_out, CUdeviceptr ptr) {
  const Call call(CaptureRule::FORBIDDEN, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const auto range = memory_map().find(ptr);
  if (shareData_out == nullptr || !range || range->begin != ptr ||
      range->kind != MemoryKind::POOL) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  wire::Token token;
  const wire::PointerExport body{0, ptr};
  const CUresult result = call.sync(wire::Op::cuMemPoolExportPointer, body, &token);
  if (result == CUDA_SUCCESS) {
    put_token(reinterpret_cast<char*>(shareData_out->reserved), token);
  }
  return result;
}

CUresult mem_pool_import_pointer(CUdeviceptr* ptr_out, CUmemoryPool pool,
                                 CUmemPoolPtrExportData* shareData) {
  const Call call(CaptureRule::FORBIDDEN, nullptr, ContextRule::OPTIONAL);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const MemPool* const known = find(pool);
  if (ptr_out == nullptr || shareData == nullptr || known == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto token = token_in(reinterpret_cast<const char*>(shareData->reserved));
  if (!token) return CUDA_ERROR_INVALID_VALUE;
  wire::OpenedMemory out;
  const wire::PointerImport body{known->handle, *token};
  const CUresult bad = call.sync(wire::Op::cuMemPoolImportPointer, body, &out);
  if (bad != CUDA_SUCCESS) return bad;
  DeviceState* const device = Session::get().find_device(known->device);
  MemoryRange range{0, 0, MemoryKind::POOL, device->primary};
  range.pool = known->handle;
  if (const CUresult refused = adopt(call, out, range)) return refused;
  *ptr_out = out.address;
  return CUDA_SUCCESS;
}

// ---- legacy IPC

CUresult ipc_get_mem_handle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const auto range = memory_map().find(dptr);
  if (pHandle == nullptr || !range || range->kind != MemoryKind::DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  wire::Token token;
  const wire::PointerExport body{call.context(), range->begin};
  const CUresult result = call.sync(wire::Op::cuIpcGetMemHandle, body, &token);
  if (result == CUDA_SUCCESS) put_token(pHandle->reserved, token);
  return result;
}

static CUresult open_memory(CUdeviceptr* pdptr, const CUipcMemHandle& handle, unsigned flags,
                            bool* is_again) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const auto token = token_in(handle.reserved);
  if (pdptr == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || !token) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  wire::OpenedMemory out;
  const wire::OpenMemory body{call.context(), *token, flags};
  const CUresult bad = call.sync(wire::Op::cuIpcOpenMemHandle_v2, body, &out);
  if (bad != CUDA_SUCCESS) return bad;
  *is_again = memory_map().open_again(out.address);
  if (!*is_again) {
    const MemoryRange range{0, 0, MemoryKind::OPENED, &call.context_object()};
    if (const CUresult refused = adopt(call, out, range)) return refused;
  }
  *pdptr = out.address;
  return CUDA_SUCCESS;
}
CUresult ipc_open_mem_handle_v2(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  bool is_again;
  return open_memory(pdptr, handle, Flags, &is_again);
}
// On driver 580 the first form opens nothing twice.
CUresult ipc_open_mem_handle(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  bool is_again;
  CUdeviceptr address;
  const CUresult bad = open_memory(pdptr == nullptr ? nullptr : &address, handle, Flags, &is_again);
  if (bad != CUDA_SUCCESS) return bad;
  if (is_again) {
    const CUresult closed = ipc_close_mem_handle(address);
    return closed != CUDA_SUCCESS ? closed : CUDA_ERROR_ALREADY_MAPPED;
  }
  *pdptr = address;
  return CUDA_SUCCESS;
}

CUresult ipc_close_mem_handle(CUdeviceptr dptr) {
  const auto range = memory_map().find(dptr);
  const bool is_open = range && range->begin == dptr && range->kind == MemoryKind::OPENED;
  if (const Call here(CaptureRule::ALLOWED); here.status() != CUDA_SUCCESS) return here.status();
  if (!is_open) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::ALLOWED, range->context);
  if (call.status() != CUDA_SUCCESS) return call.status();
  const wire::CloseMemory body{call.context(), dptr};
  const CUresult result = call.sync(wire::Op::cuIpcCloseMemHandle, body);
  if (result == CUDA_SUCCESS) memory_map().close_once(dptr);
  return result;
}

CUresult ipc_get_event_handle(CUipcEventHandle* pHandle, CUevent event) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (pHandle == nullptr || event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Event* const known = find(event);
  if (known == nullptr || !known->is_shared()) return CUDA_ERROR_INVALID_HANDLE;
  wire::Token token;
  const wire::EventRef body{call.context(), known->handle};
  const CUresult result = call.sync(wire::Op::cuIpcGetEventHandle, body, &token);
  if (result == CUDA_SUCCESS) put_token(pHandle->reserved, token);
  return result;
}

CUresult ipc_open_event_handle(CUevent* phEvent, CUipcEventHandle handle) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (phEvent == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto token = token_in(handle.reserved);
  if (!token) return CUDA_ERROR_MAP_FAILED;  // as driver 580
  Event* const event = tables().events.create();
  if (event == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  event->context = &call.context_object();
  event->share(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  const wire::OpenEvent body{call.context(), event->handle, *token};
  const CUresult result = call.sync(wire::Op::cuIpcOpenEventHandle, body);
  if (result != CUDA_SUCCESS) {
    tables().events.remove(event->handle);
    return result;
  }
  *phEvent = from_wire<CUevent>(event->handle);
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::guest
