// SPDX-License-Identifier: Apache-2.0
// Kernel launches and occupancy.
#include <algorithm>
#include <cstring>

#include "api.h"
#include "context_captures.h"
#include "engine.h"
#include "texture_reference.h"

using namespace software_gpu;

namespace {

constexpr uint32_t MAX_GRID_YZ = 65535;
constexpr uint64_t GRID_WORKSPACE_BYTES = 8;  // grid_workspace of cooperative_groups/details
std::atomic<uint64_t> next_launch_id{1};

struct Configuration {
  Dim3 grid, block;
  unsigned shared_bytes;
  bool cooperative;
  uint32_t n_sms = n_cores();
};

/// What work in a green context may use.
uint32_t n_sms_of(const GreenContext* green) { return green ? green->n_sms : n_cores(); }

int resident_blocks(const Kernel& kernel, uint64_t n_threads, size_t dynamic_bytes) {
  if (n_threads == 0 || n_threads > kernel.function->max_threads) return 0;
  const uint64_t by_threads = 2048 / n_threads;
  const uint64_t shared_bytes = kernel.function->shared_bytes + dynamic_bytes + 1024;
  return static_cast<int>(
      std::min<uint64_t>({by_threads, (164u << 10) / shared_bytes, MAX_BLOCKS_PER_CORE}));
}

CUresult check(const Kernel& kernel, const Configuration& c) {
  if (c.grid.count() == 0 || c.block.count() == 0) return CUDA_ERROR_INVALID_VALUE;
  if (c.grid.x > INT32_MAX || c.grid.y > MAX_GRID_YZ || c.grid.z > MAX_GRID_YZ)
    return CUDA_ERROR_INVALID_VALUE;
  if (c.block.x > 1024 || c.block.y > 1024 || c.block.z > 64 || c.block.count() > 1024)
    return CUDA_ERROR_INVALID_VALUE;
  const Function& function = *kernel.function;
  if (c.block.count() > function.max_threads) return CUDA_ERROR_INVALID_VALUE;
  const uint32_t* required = function.required_threads;
  if (required[0] != 0 &&
      (required[0] != c.block.x || required[1] != c.block.y || required[2] != c.block.z))
    return CUDA_ERROR_INVALID_VALUE;
  if (c.shared_bytes > static_cast<unsigned>(kernel.max_dynamic_shared_bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (c.cooperative &&
      c.grid.count() > uint64_t{c.n_sms} * static_cast<uint64_t>(resident_blocks(
                                               kernel, c.block.count(), c.shared_bytes)))
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  return CUDA_SUCCESS;
}

/// The parameter buffer from an array of pointers or from the `extra` list.
CUresult gather(const Function& function, void** values, void** extra, std::vector<uint64_t>* out) {
  out->assign(function.parameter_bytes / 8 + 1, 0);
  char* bytes = reinterpret_cast<char*>(out->data());
  if (values && extra) return CUDA_ERROR_INVALID_VALUE;
  if (values) {
    for (size_t i = 0; i < function.parameters.size(); ++i) {
      if (!values[i]) return CUDA_ERROR_INVALID_VALUE;
      memcpy(bytes + function.parameters[i].offset_bytes, values[i],
             function.parameters[i].size_bytes);
    }
    return CUDA_SUCCESS;
  }
  const void* buffer = nullptr;
  size_t n_bytes = 0;
  for (size_t i = 0; extra && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buffer = extra[i + 1];
    else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      n_bytes = *static_cast<const size_t*>(extra[i + 1]);
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (function.parameters.empty() && n_bytes == 0) return CUDA_SUCCESS;
  if (!buffer || n_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  // A structure of them may end with padding.
  if (n_bytes > (function.parameter_bytes + 7) / 8 * 8) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  // As driver 580: a word that the buffer ends in is read whole, the rest is zero.
  for (const Parameter& each : function.parameters) {
    const size_t end = each.offset_bytes + each.size_bytes;
    if (each.size_bytes <= 8 && each.offset_bytes < n_bytes) n_bytes = std::max(n_bytes, end);
  }
  memcpy(bytes, buffer, n_bytes);
  return CUDA_SUCCESS;
}

/// What cuGraphKernelNodeGetParams answers.
std::shared_ptr<NodeParams> kernel_params(CUfunction handle, const Function& function,
                                          const Configuration& c,
                                          const std::vector<uint64_t>& parameters) {
  auto params = std::make_shared<NodeParams>();
  params->parameters = parameters;
  for (const auto& parameter : function.parameters)
    params->pointers.push_back(reinterpret_cast<char*>(params->parameters.data()) +
                               parameter.offset_bytes);
  params->kernel = {
      handle,    c.grid.x,       c.grid.y,
      c.grid.z,  c.block.x,      c.block.y,
      c.block.z, c.shared_bytes, params->pointers.empty() ? nullptr : params->pointers.data(),
      nullptr,   nullptr,        nullptr};
  return params;
}

CUresult make_launch(CUfunction handle, const Configuration& configuration, void** values,
                     void** extra, Operation* operation) {
  const auto kernel = Driver::instance().kernels.find(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  RETURN_IF_FAILED(check(*kernel, configuration));
  std::vector<uint64_t> parameters;
  RETURN_IF_FAILED(gather(*kernel->function, values, extra, &parameters));
  operation->type = CU_GRAPH_NODE_TYPE_KERNEL;
  operation->params = kernel_params(handle, *kernel->function, configuration, parameters);
  auto images = images_of(*kernel->owner);
  operation->run = [configuration, images, parameters = std::move(parameters),
                    function = kernel->function, module = kernel->owner->module](Context& c) {
    auto launch = std::make_shared<Launch>();
    if (module->uses_heap) RETURN_IF_FAILED(c.find_heap(&launch->heap));
    launch->entry = function;
    launch->grid = configuration.grid;
    launch->block = configuration.block;
    launch->dynamic_shared_bytes = configuration.shared_bytes;
    launch->cooperative = configuration.cooperative;
    launch->n_cores = configuration.n_sms;
    Memory& memory = c.device.memory;
    if (launch->cooperative)
      RETURN_IF_FAILED(
          memory.allocate(GRID_WORKSPACE_BYTES, MemoryKind::MODULE, 0, &launch->grid_workspace));
    launch->id = next_launch_id.fetch_add(1);
    launch->parameters = parameters;
    launch->memory = c.visible_memory();
    launch->images = images;
    launch->images.push_back(Driver::instance().images.all());
    launch->module = module.get();
    launch->printed = &c.printed;
    const CUresult result = run_launch(launch);
    if (launch->cooperative)
      RETURN_IF_FAILED(
          memory.release(launch->grid_workspace, MemoryKind::MODULE, MemoryKind::MODULE));
    return result;
  };
  return CUDA_SUCCESS;
}

CUresult launch(CUfunction handle, Configuration configuration, CUstream stream_handle,
                void** values, void** extra) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  Operation operation;
  RETURN_IF_FAILED(find_to_enqueue(*context, stream_handle, &stream));
  configuration.n_sms = n_sms_of(stream->green);
  const CUresult made = make_launch(handle, configuration, values, extra, &operation);
  // As on driver 580 a launch that is refused ends the capture that it was for.
  if (made != CUDA_SUCCESS && made != CUDA_ERROR_INVALID_HANDLE) refuse_question(*context, *stream);
  if (made != CUDA_SUCCESS) return made;
  return context->submit(*stream, std::move(operation));
}

}  // namespace

CUresult software_gpu::make_kernel(Context& context, const CUDA_KERNEL_NODE_PARAMS& p,
                                   bool cooperative, Operation* operation) {
  RETURN_IF_FAILED(context.sticky_error());
  const Configuration c{{p.gridDimX, p.gridDimY, p.gridDimZ},
                        {p.blockDimX, p.blockDimY, p.blockDimZ},
                        p.sharedMemBytes,
                        cooperative};
  const CUfunction handle = p.func ? p.func : reinterpret_cast<CUfunction>(p.kern);
  const CUresult made = make_launch(handle, c, p.kernelParams, p.extra, operation);
  return made == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES ? CUDA_ERROR_INVALID_VALUE : made;
}

SOFTWARE_GPU_API cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                unsigned grid_z, unsigned block_x, unsigned block_y,
                                unsigned block_z, unsigned shared_bytes, CUstream stream,
                                void** values, void** extra) {
  return launch(function,
                {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, false},
                stream, values, extra);
}

SOFTWARE_GPU_API cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                           unsigned grid_z, unsigned block_x, unsigned block_y,
                                           unsigned block_z, unsigned shared_bytes, CUstream stream,
                                           void** values) {
  return launch(function,
                {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, true}, stream,
                values, nullptr);
}

SOFTWARE_GPU_API cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** values,
                                  void** extra) {
  if (!config || (config->numAttrs != 0 && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  Configuration c{{config->gridDimX, config->gridDimY, config->gridDimZ},
                  {config->blockDimX, config->blockDimY, config->blockDimZ},
                  config->sharedMemBytes,
                  false};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    switch (attribute.id) {
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        c.cooperative = attribute.value.cooperative != 0;
        break;
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        if (attribute.value.clusterDim.x > 1 || attribute.value.clusterDim.y > 1 ||
            attribute.value.clusterDim.z > 1)
          return CUDA_ERROR_NOT_SUPPORTED;
        break;
      // Without effect on results; serialisation is kept where overlap would be allowed.
      case CU_LAUNCH_ATTRIBUTE_IGNORE:
      case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
      case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        break;
      default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return launch(function, c, config->hStream, values, extra);
}

SOFTWARE_GPU_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction function,
                                                             int n_threads, size_t dynamic_bytes) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  const auto kernel = Driver::instance().kernels.find(function);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!n || n_threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *n = resident_blocks(*kernel, static_cast<uint64_t>(n_threads), dynamic_bytes);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, CUfunction function,
                                                                      int n_threads,
                                                                      size_t dynamic_bytes,
                                                                      unsigned flags) {
  if (flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) return CUDA_ERROR_INVALID_VALUE;
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(n, function, n_threads, dynamic_bytes);
}

SOFTWARE_GPU_API cuOccupancyMaxPotentialBlockSize(int* min_grid, int* block_size,
                                                  CUfunction function,
                                                  CUoccupancyB2DSize shared_of_block,
                                                  size_t dynamic_bytes, int limit) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  const auto kernel = Driver::instance().kernels.find(function);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!min_grid || !block_size || limit < 0) return CUDA_ERROR_INVALID_VALUE;
  int best = 0, best_threads = 0, best_blocks = 0;
  int top = static_cast<int>(kernel->function->max_threads);
  if (limit > 0) top = std::min(top, limit);
  for (int size = (top + 31) / 32 * 32; size > 0; size -= 32) {
    const int n_threads = std::min(size, top);
    const size_t bytes = shared_of_block ? shared_of_block(n_threads) : dynamic_bytes;
    const int blocks = resident_blocks(*kernel, static_cast<uint64_t>(n_threads), bytes);
    if (blocks * n_threads > best_threads)
      best = n_threads, best_threads = blocks * n_threads, best_blocks = blocks;
  }
  *block_size = best;
  *min_grid = best_blocks * static_cast<int>(n_sms_of(current().green));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuOccupancyMaxPotentialBlockSizeWithFlags(int* min_grid, int* block_size,
                                                           CUfunction function,
                                                           CUoccupancyB2DSize shared_of_block,
                                                           size_t dynamic_bytes, int limit,
                                                           unsigned flags) {
  if (flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) return CUDA_ERROR_INVALID_VALUE;
  return cuOccupancyMaxPotentialBlockSize(min_grid, block_size, function, shared_of_block,
                                          dynamic_bytes, limit);
}

SOFTWARE_GPU_API cuOccupancyAvailableDynamicSMemPerBlock(size_t* n_bytes, CUfunction function,
                                                         int n_blocks, int n_threads) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  const auto kernel = Driver::instance().kernels.find(function);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!n_bytes || n_blocks <= 0 || n_threads <= 0 ||
      resident_blocks(*kernel, static_cast<uint64_t>(n_threads), 0) < n_blocks)
    return CUDA_ERROR_INVALID_VALUE;
  const size_t taken = kernel->function->shared_bytes + 1024;
  const size_t share = (164u << 10) / static_cast<size_t>(n_blocks);
  *n_bytes = share > taken ? share - taken : 0;
  return CUDA_SUCCESS;
}

// A device of compute capability 8.0 has no clusters.
SOFTWARE_GPU_API cuOccupancyMaxPotentialClusterSize(int*, CUfunction, const CUlaunchConfig*) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
SOFTWARE_GPU_API cuOccupancyMaxActiveClusters(int*, CUfunction, const CUlaunchConfig*) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
