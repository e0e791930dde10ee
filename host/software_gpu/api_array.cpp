// SPDX-License-Identifier: Apache-2.0
// CUDA arrays and mipmapped arrays: their life, and what can be asked of them.
#include "api.h"
#include "array.h"

using namespace software_gpu;

namespace {

/// Waits for work that uses the memory, as cuMemFree does.
CUresult release(Context& context, uint64_t address) {
  context.drain();
  return context.device.memory.release(address, MemoryKind::ARRAY, MemoryKind::TILES);
}

CUresult create(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_capture_safe(*context));
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Array> array;
  RETURN_IF_FAILED(create_array(*context, descriptor, &array));
  *handle = reinterpret_cast<CUarray>(array.get());
  Driver::instance().arrays.add(std::move(array));
  return CUDA_SUCCESS;
}

}  // namespace

SOFTWARE_GPU_API cuArrayCreate_v2(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
  return create(handle, {descriptor->Width, descriptor->Height, 0, descriptor->Format,
                         descriptor->NumChannels, 0});
}
SOFTWARE_GPU_API cuArray3DCreate_v2(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  return descriptor ? create(handle, *descriptor) : CUDA_ERROR_INVALID_VALUE;
}

SOFTWARE_GPU_API cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* descriptor, CUarray handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  const auto array = Driver::instance().arrays.find(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
  *descriptor = array->descriptor;
  return CUDA_SUCCESS;
}
SOFTWARE_GPU_API cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* descriptor, CUarray handle) {
  CUDA_ARRAY3D_DESCRIPTOR whole;
  if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(cuArray3DGetDescriptor_v2(&whole, handle));
  *descriptor = {whole.Width, whole.Height, whole.Format, whole.NumChannels};
  return CUDA_SUCCESS;
}

// It says itself in which context it is.
SOFTWARE_GPU_API cuArrayDestroy(CUarray handle) {
  RETURN_IF_FAILED(enter_without_error());
  Driver& driver = Driver::instance();
  const auto array = driver.arrays.find(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  RETURN_IF_FAILED(check_capture_safe(array->context));
  if (array->is_level) return CUDA_SUCCESS;  // it goes with the whole (driver 580)
  if (!driver.arrays.take(handle)) return CUDA_ERROR_INVALID_HANDLE;
  return release(array->context, array->address);
}

/// No array is of several planes.
SOFTWARE_GPU_API cuArrayGetPlane(CUarray*, CUarray handle, unsigned) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  return Driver::instance().arrays.find(handle) ? CUDA_ERROR_INVALID_VALUE
                                                : CUDA_ERROR_INVALID_HANDLE;
}

SOFTWARE_GPU_API cuMipmappedArrayCreate(CUmipmappedArray* handle,
                                        const CUDA_ARRAY3D_DESCRIPTOR* descriptor,
                                        unsigned n_levels) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  RETURN_IF_FAILED(check_capture_safe(*context));
  if (!handle || !descriptor) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<MipmappedArray> array;
  RETURN_IF_FAILED(create_mipmapped_array(*context, *descriptor, n_levels, &array));
  for (const auto& level : array->levels) Driver::instance().arrays.add(level);
  *handle = reinterpret_cast<CUmipmappedArray>(array.get());
  Driver::instance().mipmapped_arrays.add(std::move(array));
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMipmappedArrayGetLevel(CUarray* out, CUmipmappedArray handle, unsigned level) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  const auto array = Driver::instance().mipmapped_arrays.find(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (!out || level >= array->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUarray>(array->levels[level].get());
  return CUDA_SUCCESS;
}

SOFTWARE_GPU_API cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  RETURN_IF_FAILED(enter_without_error());
  Driver& driver = Driver::instance();
  const auto array = driver.mipmapped_arrays.find(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  RETURN_IF_FAILED(check_capture_safe(array->context));
  if (!driver.mipmapped_arrays.take(handle)) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& level : array->levels) driver.arrays.take(level.get());
  return release(array->context, array->address);
}

SOFTWARE_GPU_API cuDeviceGetTexture1DLinearMaxWidth(size_t* n_elements, CUarray_format format,
                                                    unsigned n_channels, CUdevice ordinal) {
  RETURN_IF_FAILED(enter_without_context());
  if (!Driver::instance().device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  Format known;
  if (!n_elements) return CUDA_ERROR_INVALID_VALUE;
  RETURN_IF_FAILED(find_format(format, n_channels, &known));
  *n_elements =
      static_cast<size_t>(image_limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH));
  return CUDA_SUCCESS;
}
