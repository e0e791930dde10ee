// SPDX-License-Identifier: Apache-2.0
// Launches: checked here as far as the driver checks before it launches, so that only exhaustion
// can come late.
#include "launch.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "driver_waits.h"
#include "enqueue.h"
#include "generated/api.gen.h"
#include "log.h"
#include "refuse.h"
#include "staging.h"

namespace kvgpu::guest {

namespace {

CUresult check_shape(const Function& function, const wire::DeviceInfo& device,
                     const CUlaunchConfig& c) {
  const auto limit = [&](CUdevice_attribute id) {
    return static_cast<uint64_t>(device.attributes[id]);
  };
  if (c.gridDimX == 0 || c.gridDimY == 0 || c.gridDimZ == 0 || c.blockDimX == 0 ||
      c.blockDimY == 0 || c.blockDimZ == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (c.gridDimX > limit(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X) ||
      c.gridDimY > limit(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y) ||
      c.gridDimZ > limit(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z) ||
      c.blockDimX > limit(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X) ||
      c.blockDimY > limit(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y) ||
      c.blockDimZ > limit(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t threads = uint64_t{c.blockDimX} * c.blockDimY * c.blockDimZ;
  if (threads > limit(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)) return CUDA_ERROR_INVALID_VALUE;
  const int own_threads = function.attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
  if (own_threads > 0 && threads > static_cast<uint64_t>(own_threads)) {
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  }
  const int max_shared = function.attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
  if (max_shared >= 0 && c.sharedMemBytes > static_cast<unsigned>(max_shared)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

[[gnu::always_inline]] inline CUresult gather(const Function& function, void** kernel_params,
                                              void** extra, std::byte* buffer, uint32_t* bytes) {
  *bytes = 0;
  if (function.param_bytes > wire::MAX_PARAM_BYTES) return CUDA_ERROR_INVALID_VALUE;
  if (kernel_params != nullptr) {
    if (extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < function.params.size(); ++i) {
      const wire::ParamInfo& param = function.params[i];
      std::memcpy(buffer + param.offset, kernel_params[i], param.bytes);
    }
    *bytes = function.param_bytes;
    return CUDA_SUCCESS;
  }
  const void* data = nullptr;
  size_t len = 0;
  for (void** at = extra; at != nullptr && *at != CU_LAUNCH_PARAM_END; at += 2) {
    if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER)
      data = at[1];
    else if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE)
      len = *static_cast<const size_t*>(at[1]);
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  const bool is_given = data != nullptr && (len > 0 || function.param_bytes == 0);
  if (!is_given && (len > 0 || function.param_bytes > 0)) return CUDA_ERROR_INVALID_VALUE;
  if (len > wire::MAX_PARAM_BYTES) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  // A word that the buffer ends in is read whole, as driver 580 was seen to do, though not for
  // every kernel; what a shorter one does not give is zero (NCCL gives what it needs). Whether more
  // than the kernel takes is padding is for the driver to say.
  for (const wire::ParamInfo& param : function.params) {
    const bool is_word = param.bytes <= sizeof(uint64_t);
    if (is_word && param.offset < len) len = std::max<size_t>(len, param.offset + param.bytes);
  }
  if (len > 0) std::memcpy(buffer, data, len);
  if (len < function.param_bytes) std::memset(buffer + len, 0, function.param_bytes - len);
  *bytes = std::max(function.param_bytes, static_cast<uint32_t>(len));
  return CUDA_SUCCESS;
}

}  // namespace

CUresult gather_params(const Function& function, void** kernel_params, void** extra,
                       std::byte* buffer, uint32_t* bytes) {
  return gather(function, kernel_params, extra, buffer, bytes);
}

namespace {

const Attributes NO_ATTRIBUTES{};  // shared: 2 KiB are not cleared for each launch

// More parameters than a record holds: through the slab, and the reply says when they are read.
CUresult launch_with_many_params(const Enqueue& enqueue, wire::Op op, wire::Launch body,
                                 Part attributes, const std::byte* params) {
  Staging& staging = Staging::get();
  Staging::Piece piece;
  if (const CUresult bad = staging.allocate(body.param_bytes, &piece)) return bad;
  std::memcpy(staging.data(piece), params, body.param_bytes);
  body.params_in = wire::PARAMS_IN_SLAB;
  const CUresult result = enqueue.submit_and_ask(op, body, attributes, part(piece.off));
  staging.release(piece);
  return result;
}

// What attributes and too many parameters ask for can be refused by the driver in ways that are not
// checked here. What it has accepted once it accepts again.
CUresult launch_unchecked(const Enqueue& enqueue, wire::Op op, Function& function,
                          const wire::Launch& body, Part attributes, Part params) {
  if (enqueue.capture() != nullptr) return enqueue.submit_and_ask(op, body, attributes, params);
  struct Key {
    wire::Handle owner;
    uint64_t n_changes;
    wire::Launch body;
    std::byte attributes[sizeof(Attributes::list)];
  } key;  // its stream is not in it yet
  key.owner = enqueue.stream().owner->handle;
  key.n_changes = enqueue.stream().context->n_changes;
  key.body = body;
  std::memcpy(key.attributes, attributes.data, attributes.len_bytes);
  const std::string_view launch(reinterpret_cast<const char*>(&key),
                                offsetof(Key, attributes) + attributes.len_bytes);
  if (function.memo.has_accepted(launch)) return enqueue.submit(op, body, attributes, params);
  const uint64_t version = function.memo.version();
  const CUresult result = enqueue.submit_and_ask(op, body, attributes, params);
  if (result == CUDA_SUCCESS) function.memo.keep_accepted(launch, version);
  return result;
}

// A kernel that may begin before the one before it has ended would do so, too, where the driver has
// been told of neither a free nor an allocation between them.
CUresult keep_behind_taken_memory(const Enqueue& enqueue, const Attributes& attributes) {
  const auto overlaps = [](const wire::LaunchAttribute& attribute) {
    return attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  };
  if (std::none_of(attributes.list, attributes.list + attributes.n, overlaps)) return CUDA_SUCCESS;
  Stream& stream = enqueue.stream();
  if (enqueue.capture() != nullptr) return CUDA_SUCCESS;
  if (!stream.has_taken_freed.exchange(false, std::memory_order_relaxed)) return CUDA_SUCCESS;
  stream.dirty.store(true, std::memory_order_release);
  uint64_t number;
  return mark_stream(stream, &number);
}

template <wire::Op op>
CUresult launch_on(const Enqueue& enqueue, Function& function, const CUlaunchConfig& config,
                   void** kernel_params, void** extra, const Attributes& attributes) {
  if (const CUresult bad = need_description(function)) return bad;
  const auto& device =
      Session::get().devices()[static_cast<size_t>(enqueue.stream().context->device)].info;
  // On driver 580 a launch that is refused ends the capture that it was for.
  if (const CUresult bad = check_shape(function, device, config)) {
    return break_capture(enqueue.stream(), bad);
  }
  alignas(16) std::byte params[wire::MAX_PARAM_BYTES];
  wire::Launch body{};
  const CUresult bad = gather(function, kernel_params, extra, params, &body.param_bytes);
  if (bad != CUDA_SUCCESS) return bad;
  body.function = function.handle;
  body.grid[0] = config.gridDimX;
  body.grid[1] = config.gridDimY;
  body.grid[2] = config.gridDimZ;
  body.block[0] = config.blockDimX;
  body.block[1] = config.blockDimY;
  body.block[2] = config.blockDimZ;
  body.shared_bytes = config.sharedMemBytes;
  body.n_attributes = attributes.n;
  const Part attribute_part{attributes.list,
                            static_cast<uint32_t>(attributes.n * sizeof(wire::LaunchAttribute))};
  if (const CUresult late = keep_behind_taken_memory(enqueue, attributes)) return late;
  if (body.param_bytes > MAX_INLINE_PARAM_BYTES) {
    return launch_with_many_params(enqueue, op, body, attribute_part, params);
  }
  const Part param_part{params, body.param_bytes};
  if (attributes.n > 0 || body.param_bytes > function.param_bytes) {
    return launch_unchecked(enqueue, op, function, body, attribute_part, param_part);
  }
  return enqueue.submit_in_place(op, body, attribute_part, param_part);
}

// What the driver is to print is printed when the program has waited.
void expect_output(const Enqueue& enqueue) {
  if (Capture* const capture = enqueue.capture()) {
    capture->with_graph([](Graph& graph) { graph.prints = true; });
  } else {
    DriverWaits::output().add(enqueue.stream());
  }
}

template <wire::Op op>
CUresult launch(CUfunction f, const CUlaunchConfig& config, void** kernel_params, void** extra,
                const Attributes& attributes) {
  const Enqueue enqueue(config.hStream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  Function* const function = find(f);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result =
      launch_on<op>(enqueue, *function, config, kernel_params, extra, attributes);
  if (result == CUDA_SUCCESS && function->prints) [[unlikely]]
    expect_output(enqueue);
  return result;
}

}  // namespace

// Of CUlaunchAttributeValue (CUDA 13.0 cuda.h); the rest of that union is what lay there before.
static size_t value_bytes(CUlaunchAttributeID id) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
      return 0;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
      return sizeof(CUlaunchAttributeValue::clusterDim);
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      return sizeof(CUlaunchMemSyncDomainMap);
    default:
      return sizeof(int);
  }
}

CUresult gather_attributes(const CUlaunchConfig& config, Attributes* attributes) {
  if (config.numAttrs > std::size(attributes->list)) return CUDA_ERROR_INVALID_VALUE;
  if (config.numAttrs != 0 && config.attrs == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (!wire::launch_attribute_is_plain(config.attrs[i].id)) {
      return static_cast<CUresult>(refuse_part("a launch attribute that names an event or a node"));
    }
    wire::LaunchAttribute& attribute = attributes->list[attributes->n++];
    attribute = {};
    attribute.id = config.attrs[i].id;
    std::memcpy(attribute.value, &config.attrs[i].value, value_bytes(config.attrs[i].id));
  }
  return CUDA_SUCCESS;
}

CUresult launch_kernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                       unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                       unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                       void** kernelParams, void** extra) {
  CUlaunchConfig config{};
  config.gridDimX = gridDimX;
  config.gridDimY = gridDimY;
  config.gridDimZ = gridDimZ;
  config.blockDimX = blockDimX;
  config.blockDimY = blockDimY;
  config.blockDimZ = blockDimZ;
  config.sharedMemBytes = sharedMemBytes;
  config.hStream = hStream;
  return launch<wire::Op::cuLaunchKernel>(f, config, kernelParams, extra, NO_ATTRIBUTES);
}

CUresult launch_kernel_ex(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                          void** extra, CUstream default_stream) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Attributes attributes;
  if (const CUresult bad = gather_attributes(*config, &attributes)) return bad;
  CUlaunchConfig own = *config;
  if (own.hStream == nullptr) own.hStream = default_stream;
  return launch<wire::Op::cuLaunchKernelEx>(f, own, kernelParams, extra, attributes);
}

CUresult launch_cooperative_kernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX,
                                   unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream,
                                   void** kernelParams) {
  CUlaunchAttribute cooperative{};
  cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  cooperative.value.cooperative = 1;
  const CUlaunchConfig config{gridDimX,  gridDimY,       gridDimZ, blockDimX,    blockDimY,
                              blockDimZ, sharedMemBytes, hStream,  &cooperative, 1};
  return launch_kernel_ex(&config, f, kernelParams, nullptr, hStream);
}

CUresult launch_cooperative_kernel_multi_device(CUDA_LAUNCH_PARAMS* launchParamsList,
                                                unsigned int numDevices, unsigned int flags) {
  constexpr unsigned KNOWN = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                             CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
  const size_t n_devices = Session::get().devices().size();
  if (launchParamsList == nullptr || numDevices == 0 || numDevices > n_devices ||
      (flags & ~KNOWN) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (numDevices > 1) {
    return static_cast<CUresult>(refuse_part("a cooperative launch on several GPUs"));
  }
  const CUDA_LAUNCH_PARAMS& p = *launchParamsList;
  const bool is_default =
      p.hStream == nullptr || p.hStream == CU_STREAM_LEGACY || p.hStream == CU_STREAM_PER_THREAD;
  if (is_default) return CUDA_ERROR_INVALID_HANDLE;
  if (Stream* const stream = tables().streams.find(to_wire(p.hStream));
      stream != nullptr && stream->capture.load() != nullptr) {
    return break_capture(*stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  return launch_cooperative_kernel(p.function, p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX,
                                   p.blockDimY, p.blockDimZ, p.sharedMemBytes, p.hStream,
                                   p.kernelParams);
}

namespace {

CUresult submit_function(const Enqueue& enqueue, wire::Op op, uint64_t id) {
  const CUresult result = enqueue.submit(op, wire::HostFunction{0, 0, id, 1});
  if (result != CUDA_SUCCESS) Session::get().drop_host_function(id);
  return result;
}

}  // namespace

CUresult launch_host_func(CUstream hStream, CUhostFn fn, void* userData) {
  if (fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Enqueue enqueue(hStream);
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  Session& session = Session::get();
  if (Capture* const capture = enqueue.capture()) {
    const uint64_t id = session.add_graph_function(fn, userData);
    const wire::HostFunction body{0, 0, id, 0};
    const CUresult result = enqueue.submit(wire::Op::cuLaunchHostFunc, body);
    bool is_kept = false;
    if (result == CUDA_SUCCESS) {
      capture->with_graph([&](Graph& graph) {
        graph.functions.push_back(id);
        is_kept = true;
      });
    }
    if (!is_kept) session.release_function(id);
    return result;
  }
  // As natively: not run where it is skipped after an error.
  const uint64_t id = session.add_host_function([fn, userData](CUresult status) {
    if (status == CUDA_SUCCESS) fn(userData);
  });
  return submit_function(enqueue, wire::Op::cuLaunchHostFunc, id);
}

CUresult stream_add_callback(CUstream hStream, CUstreamCallback callback, void* userData,
                             unsigned int flags) {
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const Enqueue enqueue(hStream);
  // Driver 580 says of a broken capture, too, that it takes none.
  if (enqueue.status() == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (enqueue.status() != CUDA_SUCCESS) return enqueue.status();
  if (enqueue.capture() != nullptr) {
    return break_capture(enqueue.stream(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  const uint64_t id = Session::get().add_host_function(
      [callback, hStream, userData](CUresult status) { callback(hStream, status, userData); });
  return submit_function(enqueue, wire::Op::cuStreamAddCallback, id);
}

}  // namespace kvgpu::guest
