// SPDX-License-Identifier: Apache-2.0
// Memory and events that two processes share.
#include <unistd.h>

#include <cstring>

#include "other_process.h"
#include "virtual_memory.h"

namespace {

constexpr int N = 256;

void add_one_at(const Gpu& gpu, CUdeviceptr at, CUstream stream) {
  int n = N;
  launch(gpu.function("add_one"), stream, {&at, &n}, N);
}

void* as_handle(int descriptor) {
  return reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
}

CUmemoryPool exportable_pool(CUdevice device) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemoryPool pool = nullptr;
  CU(cuMemPoolCreate(&pool, &properties));
  return pool;
}

}  // namespace

TEST_CASE("processes: physical memory by descriptor") {
  OtherProcess other("other process: physical memory");
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  Physical physical(gpu.device, bytes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const Addresses addresses(bytes);
  const Mapped mapped(addresses.base, bytes, physical);
  set_access(gpu.device, mapped.at, bytes);
  CU(cuMemsetD32(mapped.at, 10, N));
  CU(cuCtxSynchronize());
  int descriptor = -1;
  CU(cuMemExportToShareableHandle(&descriptor, physical.handle,
                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  physical.release();
  send_descriptor(other.socket(), descriptor);
  close(descriptor);
  other.finish();
  CHECK(read_ints(mapped.at, N) == std::vector<int>(N, 11));
  CUmemGenericAllocationHandle handle = 0;
  int pipes[2];
  REQUIRE(pipe(pipes) == 0);
  CU_FAILS(cuMemImportFromShareableHandle(&handle, as_handle(pipes[0]),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(pipes[0]);
  close(pipes[1]);
}

TEST_CASE("other process: physical memory" * doctest::skip()) {
  const Gpu gpu;
  const size_t bytes = granularity(gpu.device);
  const int descriptor = receive_descriptor(socket_to_first_process());
  Physical imported(gpu.device, bytes);
  imported.release();
  CU(cuMemImportFromShareableHandle(&imported.handle, as_handle(descriptor),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(descriptor);
  const Addresses addresses(bytes);
  const Mapped mapped(addresses.base, bytes, imported);
  set_access(gpu.device, mapped.at, bytes);
  CHECK(read_ints(mapped.at, N) == std::vector<int>(N, 10));
  add_one_at(gpu, mapped.at, nullptr);
  CU(cuCtxSynchronize());
}

static void share_with_itself(const Gpu& gpu, size_t bytes) {
  int descriptor = -1;
  {
    Physical physical(gpu.device, bytes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CU(cuMemExportToShareableHandle(&descriptor, physical.handle,
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    const Addresses addresses(bytes);
    const Mapped mapped(addresses.base, bytes, physical);
    set_access(gpu.device, mapped.at, bytes);
    CU(cuMemsetD32(mapped.at, 12, N));
    CU(cuCtxSynchronize());
  }
  {
    const int copy = dup(descriptor);
    close(descriptor);
    Physical again(gpu.device, bytes);
    again.release();
    CU(cuMemImportFromShareableHandle(&again.handle, as_handle(copy),
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(copy);
    const Addresses addresses(bytes);
    const Mapped mapped(addresses.base, bytes, again);
    set_access(gpu.device, mapped.at, bytes);
    CHECK(read_ints(mapped.at, N) == std::vector<int>(N, 12));
  }
}

TEST_CASE("sharing: a descriptor keeps memory, its own process may import it, too") {
  const Gpu gpu;
  const size_t bytes = 64 * granularity(gpu.device);
  size_t before = 0, after = 0, total = 0;
  bool is_back = false;
  // Once is enough: other programs take memory, too.
  for (int attempt = 0; attempt < 5 && !is_back; ++attempt) {
    CU(cuMemGetInfo(&before, &total));
    share_with_itself(gpu, bytes);
    CU(cuMemGetInfo(&after, &total));
    is_back = after + bytes > before;
  }
  CHECK(is_back);
}

TEST_CASE("sharing: what is no handle") {
  const Gpu gpu;
  CUmemGenericAllocationHandle memory = 0;
  CUmemoryPool pool = nullptr;
  CUipcMemHandle handle{};
  CUipcEventHandle event_handle{};
  CUdeviceptr at = 0;
  CUevent event = nullptr;
  CU_IS(cuMemImportFromShareableHandle(&memory, as_handle(-1),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        CUDA_ERROR_UNKNOWN);
  CU_IS(cuMemPoolImportFromShareableHandle(&pool, as_handle(-1),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_ERROR_UNKNOWN);
  CU_IS(cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
        CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuIpcOpenEventHandle(&event, event_handle), CUDA_ERROR_MAP_FAILED);
  const Ints data(N, 1);
  CU(cuIpcGetMemHandle(&handle, data.dptr));
  CUipcMemHandle inside{};
  CU(cuIpcGetMemHandle(&inside, data.dptr + 64));
  CHECK(memcmp(&inside, &handle, sizeof handle) == 0);
  CU_IS(cuIpcOpenMemHandle(&at, handle, 0), CUDA_ERROR_INVALID_VALUE);
  CU_IS(cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
        CUDA_ERROR_INVALID_CONTEXT);  // it is this process's own
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CU_IS(cuIpcGetEventHandle(&event_handle, event), CUDA_ERROR_INVALID_HANDLE);
  CU(cuEventDestroy(event));
}

TEST_CASE("processes: memory of cuMemAlloc and an event") {
  OtherProcess other("other process: memory and an event");
  const Gpu gpu;
  const Ints data(N, 20);
  CUipcMemHandle memory{};
  CUipcEventHandle event{};
  CUevent recorded = nullptr;
  CU_FAILS(cuEventCreate(&recorded, CU_EVENT_INTERPROCESS));  // times are of one process
  CU(cuEventCreate(&recorded, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  CU(cuIpcGetMemHandle(&memory, data.dptr));
  CU(cuIpcGetEventHandle(&event, recorded));
  CUdeviceptr own = 0;
  CU_FAILS(cuIpcOpenMemHandle(&own, memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CU_FAILS(cuIpcCloseMemHandle(data.dptr));

  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  {
    Gate gate(gpu, stream);
    add_one_at(gpu, data.dptr, stream);
    CU(cuEventRecord(recorded, stream));
    CU_IS(cuEventQuery(recorded), CUDA_ERROR_NOT_READY);
    send(other.socket(), memory);
    send(other.socket(), event);
    receive<char>(other.socket());  // its work waits for the event
    gate.open();
    CU(cuStreamSynchronize(stream));
  }
  other.finish();
  CHECK(data.read() == std::vector<int>(N, 22));
  CU(cuEventQuery(recorded));
  CU(cuEventDestroy(recorded));
  CU(cuStreamDestroy(stream));
}

TEST_CASE("other process: memory and an event" * doctest::skip()) {
  const Gpu gpu;
  const int socket = socket_to_first_process();
  const auto memory = receive<CUipcMemHandle>(socket);
  const auto event_handle = receive<CUipcEventHandle>(socket);
  CUdeviceptr data = 0, again = 0;
  CUevent event = nullptr;
  CU(cuIpcOpenMemHandle(&data, memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CU(cuIpcOpenMemHandle(&again, memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CHECK(again == data);
  const auto open_once = first_form<decltype(&cuIpcOpenMemHandle)>("cuIpcOpenMemHandle");
  CU_IS(open_once(&again, memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_ALREADY_MAPPED);
  CU(cuIpcOpenEventHandle(&event, event_handle));
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU_IS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  CU(cuStreamWaitEvent(stream, event, 0));
  add_one_at(gpu, data, stream);
  CU_IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  send(socket, 'w');
  CU(cuStreamSynchronize(stream));
  CU(cuEventSynchronize(event));
  CHECK(read_ints(data, N) == std::vector<int>(N, 22));
  CU(cuIpcCloseMemHandle(data));
  CHECK(read_ints(data, N) == std::vector<int>(N, 22));  // it was opened twice
  CU(cuIpcCloseMemHandle(data));
  CU_FAILS(cuIpcCloseMemHandle(data));
  CU(cuEventDestroy(event));
  CU(cuStreamDestroy(stream));
}

TEST_CASE("processes: a memory pool") {
  OtherProcess other("other process: a memory pool");
  const Gpu gpu;
  const CUmemoryPool pool = exportable_pool(gpu.device);
  CUdeviceptr data = 0;
  CU(cuMemAllocFromPoolAsync(&data, N * sizeof(int), pool, nullptr));
  CU(cuMemsetD32(data, 30, N));
  CU(cuCtxSynchronize());
  int descriptor = -1;
  CUmemPoolPtrExportData place{};
  CU(cuMemPoolExportToShareableHandle(&descriptor, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      0));
  CU(cuMemPoolExportPointer(&place, data));
  send_descriptor(other.socket(), descriptor);
  close(descriptor);
  send(other.socket(), place);
  other.finish();
  CHECK(read_ints(data, N) == std::vector<int>(N, 31));
  CU(cuMemFreeAsync(data, nullptr));
  CU(cuStreamSynchronize(nullptr));
  CU(cuMemPoolDestroy(pool));
  const Ints ordinary(16);
  CU_FAILS(cuMemPoolExportPointer(&place, ordinary.dptr));
}

TEST_CASE("other process: a memory pool" * doctest::skip()) {
  const Gpu gpu;
  const int socket = socket_to_first_process(), descriptor = receive_descriptor(socket);
  auto place = receive<CUmemPoolPtrExportData>(socket);
  CUmemoryPool pool = nullptr;
  CU(cuMemPoolImportFromShareableHandle(&pool, as_handle(descriptor),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  close(descriptor);
  CUdeviceptr data = 0, more = 0;
  CU(cuMemPoolImportPointer(&data, pool, &place));
  CHECK(read_ints(data, N) == std::vector<int>(N, 30));
  add_one_at(gpu, data, nullptr);
  CU_FAILS(cuMemAllocFromPoolAsync(&more, 64, pool, nullptr));
  CU_FAILS(cuDeviceSetMemPool(gpu.device, pool));
  CU(cuMemFreeAsync(data, nullptr));
  CU(cuStreamSynchronize(nullptr));
  CU(cuMemPoolDestroy(pool));
}
