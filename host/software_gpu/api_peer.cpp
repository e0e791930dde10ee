// SPDX-License-Identifier: Apache-2.0
// Which devices reach each other's memory. All do: it is the same machine's.
#include "api.h"

using namespace software_gpu;

namespace {

/// Two devices that are there and differ.
CUresult check_pair(CUdevice one, CUdevice other) {
  RETURN_IF_FAILED(enter_without_context());
  Driver& driver = Driver::instance();
  return driver.device(one) && driver.device(other) && one != other ? CUDA_SUCCESS
                                                                    : CUDA_ERROR_INVALID_DEVICE;
}

/// The current context, and the one that was named.
CUresult find_peer(CUcontext handle, Context** context, Context** peer) {
  RETURN_IF_FAILED(enter(context));
  *peer = context_of(handle);
  return *peer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

constexpr unsigned WORDS = CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_SCALAR_64;

/// What PTX of compute_80 has, as the device does all of it on any memory.
unsigned capabilities_of(CUatomicOperation operation) {
  switch (operation) {
    case CU_ATOMIC_OPERATION_INTEGER_ADD:
    case CU_ATOMIC_OPERATION_INTEGER_MIN:
    case CU_ATOMIC_OPERATION_INTEGER_MAX:
      return CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED |
             CU_ATOMIC_CAPABILITY_REDUCTION | WORDS;
    case CU_ATOMIC_OPERATION_INTEGER_INCREMENT:
    case CU_ATOMIC_OPERATION_INTEGER_DECREMENT:
      return CU_ATOMIC_CAPABILITY_UNSIGNED | CU_ATOMIC_CAPABILITY_REDUCTION |
             CU_ATOMIC_CAPABILITY_SCALAR_32;
    case CU_ATOMIC_OPERATION_AND:
    case CU_ATOMIC_OPERATION_OR:
    case CU_ATOMIC_OPERATION_XOR:
      return CU_ATOMIC_CAPABILITY_UNSIGNED | CU_ATOMIC_CAPABILITY_REDUCTION | WORDS;
    case CU_ATOMIC_OPERATION_EXCHANGE:
    case CU_ATOMIC_OPERATION_CAS:
      return CU_ATOMIC_CAPABILITY_UNSIGNED | WORDS;
    case CU_ATOMIC_OPERATION_FLOAT_ADD:
      return CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_REDUCTION | WORDS;
    default:
      return 0;
  }
}

}  // namespace

SOFTWARE_GPU_API cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  RETURN_IF_FAILED(enter_without_context());
  Driver& driver = Driver::instance();
  if (!driver.device(device) || !driver.device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  if (!can) return CUDA_ERROR_INVALID_VALUE;
  *can = device != peer;
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute,
                                         CUdevice source, CUdevice destination) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(check_pair(source, destination));
  switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
      *value = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

SOFTWARE_GPU_API cuDeviceGetP2PAtomicCapabilities(unsigned* capabilities,
                                                  const CUatomicOperation* operations, unsigned n,
                                                  CUdevice source, CUdevice destination) {
  if (!capabilities || !operations || n == 0) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(check_pair(source, destination));
  for (unsigned i = 0; i < n; ++i)
    if (operations[i] < 0 || operations[i] >= CU_ATOMIC_OPERATION_MAX)
      return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < n; ++i) capabilities[i] = capabilities_of(operations[i]);
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuCtxEnablePeerAccess(CUcontext handle, unsigned flags) {
  Context *context, *peer;
  RETURN_IF_FAILED(find_peer(handle, &context, &peer));
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (&peer->device == &context->device) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  RETURN_IF_FAILED(check_capture_safe(*context));
  std::lock_guard lock(context->peers_mutex);
  return context->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

SOFTWARE_GPU_API cuCtxDisablePeerAccess(CUcontext handle) {
  Context *context, *peer;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_capture_safe(*context));
  RETURN_IF_FAILED(find_peer(handle, &context, &peer));
  std::lock_guard lock(context->peers_mutex);
  return context->peers.erase(peer) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
