// SPDX-License-Identifier: Apache-2.0
// Occupancy: asked of the driver, once; but for the search that calls a function of the program.
#include <algorithm>

#include "call.h"
#include "generated/api.gen.h"
#include "kvgpu/plain_calls.gen.h"
#include "launch.h"
#include "refuse.h"

namespace kvgpu::guest {

namespace {

// The block size with most threads on a multiprocessor, the larger where two are equal (CUDA 13.0
// cuda_occupancy.h: cudaOccMaxPotentialOccupancyBlockSize).
CUresult search(int* min_grid, int* block, CUfunction func, CUoccupancyB2DSize shared_of_block,
                int limit, unsigned flags, const Call& call) {
  const auto& device = Session::get().devices()[static_cast<size_t>(call.device())].info;
  const Function& function = *find(func);
  const int warp = device.attributes[CU_DEVICE_ATTRIBUTE_WARP_SIZE];
  const int most = device.attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR];
  int top = std::min<int>(device.attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK],
                          function.attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK]);
  if (limit > 0) top = std::min(top, limit);
  int best_threads = 0, best_blocks = 0;
  *block = 0;
  for (int size = (top + warp - 1) / warp * warp; size > 0 && best_threads < most; size -= warp) {
    const int threads = std::min(size, top);
    int blocks = 0;
    const CUresult bad = occupancy_max_active_blocks_per_multiprocessor_with_flags(
        &blocks, func, threads, shared_of_block(threads), flags);
    if (bad != CUDA_SUCCESS) return bad;
    if (blocks * threads > best_threads) {
      best_threads = blocks * threads;
      best_blocks = blocks;
      *block = threads;
    }
  }
  *min_grid = best_blocks * device.attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
  return CUDA_SUCCESS;
}

// What stays so until something is set.
template <typename In, typename Out, typename... Values>
CUresult ask_once(wire::Op op, CUfunction func, uint64_t Out::* member, uint64_t* answer,
                  Values... values) {
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  Function* const function = find(func);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = need_description(*function)) return bad;
  const FunctionMemo::Question question{static_cast<uint64_t>(op), call.context(),
                                        call.context_object().n_changes,
                                        static_cast<uint64_t>(values)...};
  if (const auto known = function->memo.answer_to(question)) {
    *answer = *known;
    return CUDA_SUCCESS;
  }
  const uint64_t version = function->memo.version();
  const In in{call.context(), function->handle, static_cast<uint64_t>(values)...};
  Out out;
  const CUresult result = call.sync(op, in, &out);
  if (result != CUDA_SUCCESS) return result;
  *answer = out.*member;
  function->memo.keep(question, *answer, version);
  return CUDA_SUCCESS;
}

CUresult ask_clusters(wire::Op op, int* n, CUfunction func, const CUlaunchConfig* config) {
  if (n == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (find(func) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = need_description(*find(func))) return bad;
  Attributes attributes;
  if (const CUresult bad = gather_attributes(*config, &attributes)) return bad;
  const wire::ClusterQuery body{call.context(),
                                to_wire(func),
                                {config->gridDimX, config->gridDimY, config->gridDimZ},
                                {config->blockDimX, config->blockDimY, config->blockDimZ},
                                config->sharedMemBytes,
                                attributes.n};
  wire::ClusterAnswer out;
  const Part list{attributes.list,
                  static_cast<uint32_t>(attributes.n * sizeof(wire::LaunchAttribute))};
  const CUresult result = call.sync(op, body, &out, list);
  if (result == CUDA_SUCCESS) *n = out.n;
  return result;
}

}  // namespace

CUresult occupancy_max_active_blocks_per_multiprocessor(int* numBlocks, CUfunction func,
                                                        int blockSize, size_t dynamicSMemSize) {
  if (numBlocks == nullptr) return CUDA_ERROR_INVALID_VALUE;
  using Out = wire::cuOccupancyMaxActiveBlocksPerMultiprocessor_out;
  uint64_t answer = 0;
  const CUresult result = ask_once<wire::cuOccupancyMaxActiveBlocksPerMultiprocessor_in>(
      wire::Op::cuOccupancyMaxActiveBlocksPerMultiprocessor, func, &Out::numBlocks, &answer,
      blockSize, dynamicSMemSize);
  if (result == CUDA_SUCCESS) *numBlocks = static_cast<int>(answer);
  return result;
}

CUresult occupancy_max_active_blocks_per_multiprocessor_with_flags(int* numBlocks, CUfunction func,
                                                                   int blockSize,
                                                                   size_t dynamicSMemSize,
                                                                   unsigned int flags) {
  if (numBlocks == nullptr) return CUDA_ERROR_INVALID_VALUE;
  using Out = wire::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags_out;
  uint64_t answer = 0;
  const CUresult result = ask_once<wire::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags_in>(
      wire::Op::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, func, &Out::numBlocks,
      &answer, blockSize, dynamicSMemSize, flags);
  if (result == CUDA_SUCCESS) *numBlocks = static_cast<int>(answer);
  return result;
}

CUresult occupancy_available_dynamic_smem_per_block(size_t* dynamicSmemSize, CUfunction func,
                                                    int numBlocks, int blockSize) {
  if (dynamicSmemSize == nullptr) return CUDA_ERROR_INVALID_VALUE;
  using Out = wire::cuOccupancyAvailableDynamicSMemPerBlock_out;
  return ask_once<wire::cuOccupancyAvailableDynamicSMemPerBlock_in>(
      wire::Op::cuOccupancyAvailableDynamicSMemPerBlock, func, &Out::dynamicSmemSize,
      dynamicSmemSize, numBlocks, blockSize);
}

CUresult occupancy_max_potential_block_size_with_flags(
    int* minGridSize, int* blockSize, CUfunction func,
    CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit,
    unsigned int flags) {
  if (minGridSize == nullptr || blockSize == nullptr || blockSizeLimit < 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Call call(CaptureRule::ALLOWED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  if (find(func) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = need_description(*find(func))) return bad;
  if (blockSizeToDynamicSMemSize != nullptr) {
    return search(minGridSize, blockSize, func, blockSizeToDynamicSMemSize, blockSizeLimit, flags,
                  call);
  }
  const wire::PotentialBlockSize body{call.context(), to_wire(func), dynamicSMemSize,
                                      blockSizeLimit, flags};
  wire::PotentialBlockSizeFound out;
  const CUresult result =
      call.sync(wire::Op::cuOccupancyMaxPotentialBlockSizeWithFlags, body, &out);
  if (result != CUDA_SUCCESS) return result;
  *minGridSize = out.min_grid;
  *blockSize = out.block;
  return CUDA_SUCCESS;
}

CUresult occupancy_max_potential_block_size(int* minGridSize, int* blockSize, CUfunction func,
                                            CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                            size_t dynamicSMemSize, int blockSizeLimit) {
  return occupancy_max_potential_block_size_with_flags(minGridSize, blockSize, func,
                                                       blockSizeToDynamicSMemSize, dynamicSMemSize,
                                                       blockSizeLimit, CU_OCCUPANCY_DEFAULT);
}

CUresult occupancy_max_potential_cluster_size(int* clusterSize, CUfunction func,
                                              const CUlaunchConfig* config) {
  return ask_clusters(wire::Op::cuOccupancyMaxPotentialClusterSize, clusterSize, func, config);
}
CUresult occupancy_max_active_clusters(int* numClusters, CUfunction func,
                                       const CUlaunchConfig* config) {
  return ask_clusters(wire::Op::cuOccupancyMaxActiveClusters, numClusters, func, config);
}

}  // namespace kvgpu::guest
