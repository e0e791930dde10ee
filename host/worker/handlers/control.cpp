// SPDX-License-Identifier: Apache-2.0
// Records that belong to no entry point.
#include "control.h"

#include <mutex>
#include <set>

#include "generated/handlers.gen.h"
#include "inventory.h"
#include "kvgpu/calls.h"
#include "kvgpu/control.h"
#include "log.h"
#include "ops.h"

namespace kvgpu::worker {

namespace {

// As they were while the worker waited, but for what an administrator may have changed since.
CUresult describe_devices(Session& session, std::vector<wire::DeviceInfo>* devices) {
  constexpr auto MODE = CU_DEVICE_ATTRIBUTE_COMPUTE_MODE;
  const DriverTable& driver = *session.driver;
  if (session.known_devices.empty()) return list_devices(driver, devices);
  *devices = session.known_devices;
  for (size_t i = 0; i < devices->size(); ++i) {
    CUdevice device;
    if (const CUresult bad = driver.cuDeviceGet(&device, static_cast<int>(i))) return bad;
    int* const mode = &(*devices)[i].attributes[MODE];
    if (const CUresult bad = driver.cuDeviceGetAttribute(mode, MODE, device)) return bad;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult hello(Session& session, const Task& task, ReplyWriter& reply) {
  wire::Hello body;
  if (!task.read(&body)) session.violation(task);
  if (body.version >> 16 != control::PROTOCOL_MAJOR) return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  log("the guest's library speaks protocol %u.%u, features 0x%x", body.version >> 16,
      body.version & 0xffff, body.features);
  session.guest_minor = static_cast<uint16_t>(body.version);
  session.is_kicked_directly = (body.features & control::FEATURE_DOORBELL) != 0;
  std::vector<wire::DeviceInfo> devices;
  if (const CUresult bad = describe_devices(session, &devices)) return bad;
  int driver_version = 0;
  if (const CUresult bad = session.driver->cuDriverGetVersion(&driver_version)) return bad;
  const uint32_t version = uint32_t{control::PROTOCOL_MAJOR} << 16 | control::PROTOCOL_MINOR;
  reply.put(wire::HelloReply{version, control::FEATURES & body.features, driver_version,
                             static_cast<uint32_t>(devices.size())});
  for (wire::DeviceInfo& device : devices) {
    if (session.config.wake_fd >= 0) {  // HostMemory::create() refuses
      device.attributes[CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 0;
      device.attributes[CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 0;
    }
    reply.put(device);
  }
  return CUDA_SUCCESS;
}

// For whoever looks at the session's log: what a program misses. Only names of entry points get
// there, each once, so a guest can neither write what it likes nor fill the log.
CUresult refused_call(Session& session, const Task& task, ReplyWriter&) {
  wire::RefusedCall body;
  if (!task.read(&body)) session.violation(task);
  body.name[sizeof body.name - 1] = '\0';
  if (const char* name = find_entry_point(body.name)) {
    static std::mutex mutex;
    static std::set<const char*> told;
    const std::lock_guard lock(mutex);
    if (told.insert(name).second) log("the program calls %s, which is not served", name);
  }
  return CUDA_SUCCESS;
}

// The number itself is written by the executor, as for every record that carries a mark.
CUresult mark(Session&, const Task&, ReplyWriter&) { return CUDA_SUCCESS; }

CUresult upload(Session& session, const Task& task, ReplyWriter&) {
  wire::Upload body;
  if (!task.read(&body)) session.violation(task);
  if (body.offset > body.total_bytes) session.violation(task);
  if (body.slab_off > SLAB_BYTES || body.len_bytes > SLAB_BYTES - body.slab_off)
    session.violation(task);
  const std::span chunk(session.slab() + body.slab_off, body.len_bytes);
  switch (session.blobs.write(body.blob, body.total_bytes, body.offset, chunk)) {
    case Blobs::Written::YES:
      return CUDA_SUCCESS;
    case Blobs::Written::GONE:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case Blobs::Written::NEVER:
      break;
  }
  session.violation(task);
}

CUresult heap_grow(Session& session, const Task& task, ReplyWriter& reply) {
  wire::HeapGrow body;
  if (!task.read(&body)) session.violation(task);
  if (body.bytes == 0 || body.bytes % EXTENT_ALIGN_BYTES != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = session.enter_registered()) return bad;
  control::Extent extent;
  if (!session.control->allocate_extent(body.bytes, &extent)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = session.add_extent(extent.offset, extent.bytes);
  if (result != CUDA_SUCCESS) {
    session.control->free_extent(extent.offset);
    return result;
  }
  reply.put(wire::HeapGrown{extent.offset, extent.bytes});
  return CUDA_SUCCESS;
}

CUresult host_sync(Session& session, const Task&, ReplyWriter&) {
  for (const auto& context : session.handles.contexts()) {
    CUresult result = CUDA_SUCCESS;
    context->while_there([&] {
      result = session.enter(*context);
      if (result == CUDA_SUCCESS) result = session.driver->cuCtxSynchronize();
    });
    if (result != CUDA_SUCCESS) return result;
  }
  session.output.deliver(session.events);
  return CUDA_SUCCESS;
}

CUresult waited(Session& session, const Task& task, ReplyWriter&) {
  wire::HostSync body;
  if (!task.read(&body)) session.violation(task);
  const auto context = session.handles.context(body.context);
  if (context == nullptr) return CUDA_SUCCESS;  // another thread has ended it
  if (!is_for_device(task, *context) || context->green != nullptr) session.violation(task);
  if (const CUresult bad = session.print(*context)) return bad;
  for (const auto& stream : session.handles.streams_of(context->device)) {
    stream->context->while_there([&] { stream->freed.wait_if_over(*session.driver); });
  }
  return CUDA_SUCCESS;
}

CUresult stream_sync(Session& session, const Task& task, ReplyWriter&) {
  wire::StreamRef body;
  if (!task.read(&body)) session.violation(task);
  const auto stream = session.handles.stream(body.stream);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = session.enter(*stream)) return bad;
  const CUresult result = session.driver->cuStreamSynchronize(stream->raw);
  session.output.deliver(session.events);
  return result;
}

}  // namespace kvgpu::worker
