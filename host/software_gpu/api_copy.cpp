// SPDX-License-Identifier: Apache-2.0
// Copies and fills.
#include <cstring>

#include "api.h"
#include "context_captures.h"

using namespace software_gpu;

namespace {

/// Pageable sources up to this size are copied aside, so that the call returns at once.
constexpr size_t MAX_STAGED_BYTES = 1 << 20;

enum class Side { DEVICE, HOST, ANY };

struct Copy {
  uint64_t to, from;
  size_t n_bytes;
  bool to_known, from_known;                                  // an allocation or registered memory
  std::weak_ptr<const Tiles> to_tiles = {}, from_tiles = {};  // of arrays that are mapped later
};

CUresult describe(Context& context, uint64_t to, Side to_side, uint64_t from, Side from_side,
                  size_t n_bytes, Copy* copy) {
  if (n_bytes != 0 && (to == 0 || from == 0)) return CUDA_ERROR_INVALID_VALUE;
  const AllMemory memory(context.device);
  *copy = {to, from, n_bytes, memory.is_known(to), memory.is_known(from)};
  const auto fits = [&](uint64_t address, bool known, Side side, bool to_write) {
    return known ? memory.covers(address, n_bytes, to_write) : side != Side::DEVICE;
  };
  return n_bytes == 0 || (fits(to, copy->to_known, to_side, true) &&
                          fits(from, copy->from_known, from_side, false))
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

/// Is memory mapped there? Without it a sparse array is 0 and takes nothing, any other one faults.
CUresult look_at(const std::weak_ptr<const Tiles>& of_array, uint64_t address, bool* is_there) {
  const auto tiles = of_array.lock();
  *is_there = !tiles || tiles->is_mapped(address);
  return *is_there || tiles->is_sparse() ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}

Operation copy_operation(const Copy& copy) {
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  operation.run = [copy](Context& context) {
    const AllMemory hold(context.device);
    const auto gone = [&](uint64_t address, bool known, bool to_write) {
      return known && copy.n_bytes != 0 && !hold.covers(address, copy.n_bytes, to_write);
    };
    if (gone(copy.to, copy.to_known, true) || gone(copy.from, copy.from_known, false))
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    bool may_read, may_write;
    RETURN_IF_FAILED(look_at(copy.from_tiles, copy.from, &may_read));
    RETURN_IF_FAILED(look_at(copy.to_tiles, copy.to, &may_write));
    void* const to = reinterpret_cast<void*>(copy.to);
    if (may_write && may_read)
      memmove(to, reinterpret_cast<const void*>(copy.from), copy.n_bytes);
    else if (may_write)
      memset(to, 0, copy.n_bytes);
    return CUDA_SUCCESS;
  };
  return operation;
}

uint64_t address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

CUresult copy_sync(uint64_t to, Side to_side, uint64_t from, Side from_side, size_t n_bytes) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_to_enqueue(*context, nullptr, &stream));
  Copy copy;
  RETURN_IF_FAILED(describe(*context, to, to_side, from, from_side, n_bytes, &copy));
  return submit_and_wait(*context, *stream, copy_operation(copy));
}

/// What cuGraphMemcpyNodeGetParams answers.
std::shared_ptr<NodeParams> copy_params(const CUDA_MEMCPY3D& copy) {
  auto params = std::make_shared<NodeParams>();
  params->copy = copy;
  return params;
}

CUmemorytype type_of(Side side) {
  if (side == Side::HOST) return CU_MEMORYTYPE_HOST;
  return side == Side::DEVICE ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_UNIFIED;
}

CUDA_MEMCPY3D linear(uint64_t to, Side to_side, uint64_t from, Side from_side, size_t n_bytes) {
  CUDA_MEMCPY3D copy{};
  copy.dstMemoryType = type_of(to_side);
  copy.dstHost = reinterpret_cast<void*>(to);
  copy.dstDevice = to;
  copy.dstPitch = n_bytes;
  copy.srcMemoryType = type_of(from_side);
  copy.srcHost = reinterpret_cast<const void*>(from);
  copy.srcDevice = from;
  copy.srcPitch = n_bytes;
  copy.WidthInBytes = n_bytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

CUresult copy_async(uint64_t to, Side to_side, uint64_t from, Side from_side, size_t n_bytes,
                    CUstream handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_to_enqueue(*context, handle, &stream));
  Copy copy;
  RETURN_IF_FAILED(describe(*context, to, to_side, from, from_side, n_bytes, &copy));
  bool capturing;
  {
    std::lock_guard lock(context->order_mutex);
    capturing = stream->capture != nullptr;
  }
  // Pageable memory may change or go as soon as the call returns.
  const bool pageable = !copy.to_known || !copy.from_known;
  if (capturing || !pageable) {
    Operation operation = copy_operation(copy);
    if (capturing) operation.params = copy_params(linear(to, to_side, from, from_side, n_bytes));
    return context->submit(*stream, std::move(operation));
  }
  if (!copy.to_known || n_bytes > MAX_STAGED_BYTES)
    return submit_and_wait(*context, *stream, copy_operation(copy));
  auto staged = std::make_shared<std::vector<char>>(n_bytes);
  memcpy(staged->data(), reinterpret_cast<const void*>(from), n_bytes);
  copy.from = reinterpret_cast<uint64_t>(staged->data());
  Operation operation = copy_operation(copy);
  operation.run = [staged, run = std::move(operation.run)](Context& c) { return run(c); };
  return context->submit(*stream, std::move(operation));
}

/// What cuGraphMemsetNodeGetParams answers.
std::shared_ptr<NodeParams> fill_params(const CUDA_MEMSET_NODE_PARAMS& fill) {
  auto params = std::make_shared<NodeParams>();
  params->fill = fill;
  return params;
}

template <class T>
CUresult fill(CUdeviceptr pointer, T value, size_t n, CUstream handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_to_enqueue(*context, handle, &stream));
  if (pointer % sizeof(T) != 0 || n > SIZE_MAX / sizeof(T)) return CUDA_ERROR_INVALID_VALUE;
  if (n != 0 && !AllMemory(context->device).covers(pointer, n * sizeof(T), true))
    return CUDA_ERROR_INVALID_VALUE;
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_MEMSET;
  operation.run = [=](Context& c) {
    const AllMemory hold(c.device);
    if (n != 0 && !hold.covers(pointer, n * sizeof(T), true)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::fill_n(reinterpret_cast<T*>(pointer), n, value);
    return CUDA_SUCCESS;
  };
  operation.params = fill_params({pointer, 0, value, sizeof(T), n, 1});
  return context->submit(*stream, std::move(operation));
}

/// One slice of one side of a copy of rows.
struct Rows {
  uint64_t address = 0, pitch_bytes = 0;
  std::shared_ptr<const Array> array;  // null: of memory
  uint64_t x_bytes = 0, y = 0, z = 0;  // where they begin in the array
  /// Where that byte of a row is; `*n_bytes`: no more than lie behind each other.
  uint64_t at(uint64_t row, uint64_t byte, size_t* n_bytes) const {
    if (!array) return address + row * pitch_bytes + byte;
    const uint64_t there = array->address + array->tiling.offset(x_bytes + byte, y + row, z);
    *n_bytes = std::min<size_t>(*n_bytes, array->tiling.rest_bytes(x_bytes + byte));
    if (array->tiles) *n_bytes = std::min<size_t>(*n_bytes, array->tiles->rest_bytes(there));
    return there;
  }
  std::weak_ptr<const Tiles> tiles() const {
    return array ? array->tiles : std::shared_ptr<const Tiles>();
  }
};

/// What CUDA_MEMCPY3D says of one side.
struct Place {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  CUarray array;
  size_t x_bytes, y, z, pitch_bytes, height;
};

Place source(const CUDA_MEMCPY3D& p) {
  return {p.srcMemoryType, p.srcHost, p.srcDevice, p.srcArray, p.srcXInBytes,
          p.srcY,          p.srcZ,    p.srcPitch,  p.srcHeight};
}
Place destination(const CUDA_MEMCPY3D& p) {
  return {p.dstMemoryType, p.dstHost, p.dstDevice, p.dstArray, p.dstXInBytes,
          p.dstY,          p.dstZ,    p.dstPitch,  p.dstHeight};
}

CUresult rows_of_array(const Place& place, size_t z, const CUDA_MEMCPY3D& p, Rows* rows) {
  const auto array = Driver::instance().arrays.find(place.array);
  if (!array) return CUDA_ERROR_INVALID_VALUE;
  const auto fits = [](size_t first, size_t n, size_t length) {
    return first <= length && n <= length - first;
  };
  if (!fits(place.x_bytes, p.WidthInBytes, array->width_bytes()) ||
      !fits(place.y, p.Height, array->n_rows()) || !fits(place.z, p.Depth, array->n_slices()))
    return CUDA_ERROR_INVALID_VALUE;
  *rows = {0, 0, array, place.x_bytes, place.y, place.z + z};
  return CUDA_SUCCESS;
}

/// The rows of slice `z` of the copy.
CUresult rows_of(const Place& place, size_t z, const CUDA_MEMCPY3D& p, Rows* rows) {
  if (place.type == CU_MEMORYTYPE_ARRAY) return rows_of_array(place, z, p, rows);
  const bool is_host = place.type == CU_MEMORYTYPE_HOST;
  if (!is_host && place.type != CU_MEMORYTYPE_DEVICE && place.type != CU_MEMORYTYPE_UNIFIED)
    return CUDA_ERROR_INVALID_VALUE;
  const uint64_t base = is_host ? address(place.host) : place.device;
  // Where nothing is said rows and slices have no gaps (driver 580).
  const size_t row_end_bytes = place.x_bytes + p.WidthInBytes, slice_end = place.y + p.Height;
  const size_t pitch_bytes = place.pitch_bytes == 0 ? row_end_bytes : place.pitch_bytes;
  const size_t height = place.height == 0 ? slice_end : place.height;
  if (base == 0 || pitch_bytes < row_end_bytes || height < slice_end)
    return CUDA_ERROR_INVALID_VALUE;
  const size_t y = place.y + (place.z + z) * height;
  *rows = {base + y * pitch_bytes + place.x_bytes, pitch_bytes, nullptr};
  return CUDA_SUCCESS;
}

Side side_of(CUmemorytype type) {
  if (type == CU_MEMORYTYPE_HOST) return Side::HOST;
  return type == CU_MEMORYTYPE_UNIFIED ? Side::ANY : Side::DEVICE;
}

/// Appends what copies a row.
CUresult row_operations(Context& context, const CUDA_MEMCPY3D& p, const Rows& to, const Rows& from,
                        size_t y, bool* pageable, std::vector<Operation>* parts) {
  for (size_t x = 0, n_bytes; x < p.WidthInBytes; x += n_bytes) {
    n_bytes = p.WidthInBytes - x;
    const uint64_t to_address = to.at(y, x, &n_bytes), from_address = from.at(y, x, &n_bytes);
    Copy copy;
    RETURN_IF_FAILED(describe(context, to_address, side_of(p.dstMemoryType), from_address,
                              side_of(p.srcMemoryType), n_bytes, &copy));
    copy.to_tiles = to.tiles();
    copy.from_tiles = from.tiles();
    *pageable |= !copy.to_known || !copy.from_known;
    parts->push_back(copy_operation(copy));
  }
  return CUDA_SUCCESS;
}

/// The operation of a copy of rows. As a plain copy, every address is looked at again when it runs.
CUresult rows_operation(Context& context, const CUDA_MEMCPY3D& p, Operation* operation,
                        bool* pageable) {
  std::vector<Operation> parts;
  *pageable = false;
  if (p.srcLOD != 0 || p.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t z = 0; z < p.Depth; ++z) {
    Rows to, from;
    RETURN_IF_FAILED(rows_of(destination(p), z, p, &to));
    RETURN_IF_FAILED(rows_of(source(p), z, p, &from));
    for (size_t y = 0; y < p.Height; ++y)
      RETURN_IF_FAILED(row_operations(context, p, to, from, y, pageable, &parts));
  }
  operation->type = CU_GRAPH_NODE_TYPE_MEMCPY;
  operation->params = copy_params(p);
  operation->run = [parts = std::move(parts)](Context& c) {
    for (const Operation& part : parts) RETURN_IF_FAILED(part.run(c));
    return CUDA_SUCCESS;
  };
  return CUDA_SUCCESS;
}

template <class T>
CUresult make_fill_rows(Context& context, CUdeviceptr pointer, size_t pitch_bytes, T value,
                        size_t width, size_t height, Operation* operation) {
  if (pointer % sizeof(T) != 0 || (height > 1 && pitch_bytes % sizeof(T) != 0) ||
      (height > 1 && pitch_bytes < width * sizeof(T)))
    return CUDA_ERROR_INVALID_VALUE;
  const size_t n_bytes = pitch_bytes * (height - 1) + width * sizeof(T);
  if (!AllMemory(context.device).covers(pointer, n_bytes, true)) return CUDA_ERROR_INVALID_VALUE;
  operation->type = CU_GRAPH_NODE_TYPE_MEMSET;
  operation->params = fill_params({pointer, pitch_bytes, value, sizeof(T), width, height});
  operation->run = [=](Context& c) {
    const AllMemory hold(c.device);
    if (!hold.covers(pointer, n_bytes, true)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (size_t y = 0; y < height; ++y)
      std::fill_n(reinterpret_cast<T*>(pointer + y * pitch_bytes), width, value);
    return CUDA_SUCCESS;
  };
  return CUDA_SUCCESS;
}

template <class T>
CUresult fill_rows(CUdeviceptr pointer, size_t pitch_bytes, T value, size_t width, size_t height,
                   CUstream handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  Operation operation;
  RETURN_IF_FAILED(find_to_enqueue(*context, handle, &stream));
  if (width == 0 || height == 0) return CUDA_SUCCESS;
  RETURN_IF_FAILED(
      make_fill_rows(*context, pointer, pitch_bytes, value, width, height, &operation));
  return context->submit(*stream, std::move(operation));
}

}  // namespace

CUresult software_gpu::make_copy(Context& context, const CUDA_MEMCPY3D& p, Operation* operation) {
  bool pageable;
  RETURN_IF_FAILED(context.sticky_error());
  if (p.WidthInBytes == 0 || p.Height == 0 || p.Depth == 0) return CUDA_ERROR_INVALID_VALUE;
  return rows_operation(context, p, operation, &pageable);
}

CUresult software_gpu::copy_rows(const CUDA_MEMCPY3D& p, CUstream handle) {
  Context* context;
  RETURN_IF_FAILED(enter(&context));
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_to_enqueue(*context, handle, &stream));
  if (p.WidthInBytes == 0 || p.Height == 0 || p.Depth == 0) return CUDA_SUCCESS;
  Operation operation;
  bool pageable;
  RETURN_IF_FAILED(rows_operation(*context, p, &operation, &pageable));
  return pageable ? submit_and_wait(*context, *stream, std::move(operation))
                  : context->submit(*stream, std::move(operation));
}

CUresult software_gpu::make_fill(Context& context, const CUDA_MEMSET_NODE_PARAMS& p,
                                 Operation* operation) {
  RETURN_IF_FAILED(context.sticky_error());
  if (p.width == 0 || p.height == 0) return CUDA_ERROR_INVALID_VALUE;
  switch (p.elementSize) {
    case 1:
      return make_fill_rows(context, p.dst, p.pitch, static_cast<unsigned char>(p.value), p.width,
                            p.height, operation);
    case 2:
      return make_fill_rows(context, p.dst, p.pitch, static_cast<unsigned short>(p.value), p.width,
                            p.height, operation);
    case 4:
      return make_fill_rows(context, p.dst, p.pitch, p.value, p.width, p.height, operation);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

SOFTWARE_GPU_API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n) {
  return copy_sync(to, Side::ANY, from, Side::ANY, n);
}
SOFTWARE_GPU_API cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t n) {
  return copy_sync(to, Side::DEVICE, address(from), Side::HOST, n);
}
SOFTWARE_GPU_API cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t n) {
  return copy_sync(address(to), Side::HOST, from, Side::DEVICE, n);
}
SOFTWARE_GPU_API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t n) {
  return copy_async(to, Side::DEVICE, from, Side::DEVICE, n, nullptr);
}
SOFTWARE_GPU_API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream) {
  return copy_async(to, Side::ANY, from, Side::ANY, n, stream);
}
SOFTWARE_GPU_API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t n, CUstream stream) {
  return copy_async(to, Side::DEVICE, address(from), Side::HOST, n, stream);
}
SOFTWARE_GPU_API cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t n, CUstream stream) {
  return copy_async(address(to), Side::HOST, from, Side::DEVICE, n, stream);
}
SOFTWARE_GPU_API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream) {
  return copy_async(to, Side::DEVICE, from, Side::DEVICE, n, stream);
}
SOFTWARE_GPU_API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t n) {
  return fill(to, value, n, nullptr);
}
SOFTWARE_GPU_API cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t n) {
  return fill(to, value, n, nullptr);
}
SOFTWARE_GPU_API cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t n) {
  return fill(to, value, n, nullptr);
}
SOFTWARE_GPU_API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, CUstream s) {
  return fill(to, value, n, s);
}
SOFTWARE_GPU_API cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t n, CUstream s) {
  return fill(to, value, n, s);
}
SOFTWARE_GPU_API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t n, CUstream s) {
  return fill(to, value, n, s);
}
SOFTWARE_GPU_API cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                 size_t height) {
  return fill_rows(to, pitch, value, width, height, nullptr);
}
SOFTWARE_GPU_API cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                                  size_t height) {
  return fill_rows(to, pitch, value, width, height, nullptr);
}
SOFTWARE_GPU_API cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned value, size_t width,
                                  size_t height) {
  return fill_rows(to, pitch, value, width, height, nullptr);
}
SOFTWARE_GPU_API cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                   size_t height, CUstream s) {
  return fill_rows(to, pitch, value, width, height, s);
}
SOFTWARE_GPU_API cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value,
                                    size_t width, size_t height, CUstream s) {
  return fill_rows(to, pitch, value, width, height, s);
}
SOFTWARE_GPU_API cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned value, size_t width,
                                    size_t height, CUstream s) {
  return fill_rows(to, pitch, value, width, height, s);
}
