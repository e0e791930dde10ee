// SPDX-License-Identifier: Apache-2.0
// runtime_program LIBCUDART LIBNVRTC: what a host program does with a shared CUDA runtime of any
// version: memory, streams, events, registered kernels, a captured graph, host functions; and the
// driver API beside it. Prints one line per check; the same bits natively and remoted.
#include <atomic>
#include <cstring>
#include <vector>

#include "fatbin.h"
#include "runtime_api.h"

namespace {

constexpr char KERNELS[] = R"(
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
extern "C" __global__ void scale(float* values, float factor, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] *= factor;
}
)";
constexpr int N = 10'000;
constexpr size_t N_BYTES = N * sizeof(float);

bool all_correct = true;

void report(const char* what, bool correct) {
  std::printf("%s: %s\n", what, correct ? "ok" : "WRONG");
  std::fflush(stdout);
  all_correct = all_correct && correct;
}

void must(const Runtime& cuda, int result, const char* call) {
  if (result == SUCCESS) return;
  std::printf("FAILED %s: %s\n", call, cuda.error_name(result));
  std::exit(1);
}
#define MUST(call) must(cuda, call, #call)

// The addresses by which a host program names its kernels.
const char add_kernel = 0, scale_kernel = 0;

struct Registration {
  const Runtime& cuda;
  std::string image;
  FatbinWrapper wrapper;
  void** handle;

  Registration(const Runtime& runtime, const std::string& ptx)
      : cuda(runtime), image(make_fatbin(ptx)), wrapper{0x466243b1, 1, image.data(), nullptr} {
    handle = cuda.register_fatbin(&wrapper);
    add_function(&add_kernel, "add");
    add_function(&scale_kernel, "scale");
    cuda.register_end(handle);
  }
  ~Registration() { cuda.unregister_fatbin(handle); }

  void add_function(const char* host, const char* name) {
    cuda.register_function(handle, host, const_cast<char*>(name), name, -1, nullptr, nullptr,
                           nullptr, nullptr, nullptr);
  }
};

struct Numbers {
  std::vector<float> a = std::vector<float>(N), b = a, c = a;
  Numbers() {
    for (int i = 0; i < N; ++i)
      a[i] = static_cast<float>(i % 512) / 2, b[i] = static_cast<float>(i % 333) / 4;
  }
  bool is_sum(const float* values, float factor = 1) const {
    for (int i = 0; i < N; ++i) {
      if (values[i] != (a[i] + b[i]) * factor) return false;
    }
    return true;
  }
};

struct Arrays {
  const Runtime& cuda;
  float *a, *b, *c;
  explicit Arrays(const Runtime& runtime) : cuda(runtime) {
    for (float** each : {&a, &b, &c}) MUST(cuda.allocate(reinterpret_cast<void**>(each), N_BYTES));
  }
  ~Arrays() {
    for (float* each : {a, b, c}) MUST(cuda.free(each));
  }
};

int launch_add(const Runtime& cuda, const Arrays& at, Stream stream) {
  int n = N;
  const float *a = at.a, *b = at.b;
  float* c = at.c;
  void* arguments[] = {&a, &b, &c, &n};
  return cuda.launch(&add_kernel, Dim3{(N + 255) / 256}, Dim3{256}, arguments, 0, stream);
}

int launch_scale(const Runtime& cuda, float* values, float factor, Stream stream) {
  int n = N;
  void* arguments[] = {&values, &factor, &n};
  return cuda.launch(&scale_kernel, Dim3{(N + 127) / 128}, Dim3{128}, arguments, 0, stream);
}

void memory(const Runtime& cuda) {
  const Numbers numbers;
  const Arrays at(cuda);
  size_t free_bytes, total_bytes;
  MUST(cuda.memory_info(&free_bytes, &total_bytes));
  report("memory info", free_bytes > 0 && free_bytes < total_bytes);
  PointerAttributes attributes{};
  MUST(cuda.pointer_attributes(&attributes, at.a));
  report("pointer of the device", attributes.type == MEMORY_DEVICE && attributes.device == 0 &&
                                      attributes.device_pointer == at.a);
  std::vector<float> back(N);
  MUST(cuda.copy(at.a, numbers.a.data(), N_BYTES, HOST_TO_DEVICE));
  MUST(cuda.copy(at.b, at.a, N_BYTES, DEVICE_TO_DEVICE));
  MUST(cuda.copy(back.data(), at.b, N_BYTES, DEVICE_TO_HOST));
  report("copies", back == numbers.a);
}

void kernels(const Runtime& cuda) {
  Numbers numbers;
  const Arrays at(cuda);
  MUST(cuda.copy(at.a, numbers.a.data(), N_BYTES, HOST_TO_DEVICE));
  MUST(cuda.copy(at.b, numbers.b.data(), N_BYTES, HOST_TO_DEVICE));
  MUST(launch_add(cuda, at, nullptr));
  MUST(cuda.copy(numbers.c.data(), at.c, N_BYTES, DEVICE_TO_HOST));
  report("registered kernel", numbers.is_sum(numbers.c.data()));
  int blocks = 0;
  MUST(cuda.occupancy(&blocks, &add_kernel, 256, 0));
  report("occupancy", blocks >= 1);
}

void streams(const Runtime& cuda) {
  const Numbers numbers;
  const Arrays at(cuda);
  Stream first, second;
  Event begin, copied, end;
  float *pinned, *temporary;
  MUST(cuda.stream_create(&first, NON_BLOCKING));
  MUST(cuda.stream_create(&second, NON_BLOCKING));
  for (Event* each : {&begin, &copied, &end}) MUST(cuda.event_create(each));
  MUST(cuda.host_allocate(reinterpret_cast<void**>(&pinned), 2 * N_BYTES, 0));
  PointerAttributes attributes{};
  MUST(cuda.pointer_attributes(&attributes, pinned));
  report("pinned pointer", attributes.type == MEMORY_HOST && attributes.device_pointer == pinned);
  std::memcpy(pinned, numbers.a.data(), N_BYTES);
  std::memcpy(pinned + N, numbers.b.data(), N_BYTES);
  MUST(cuda.event_record(begin, first));
  MUST(cuda.copy_async(at.a, pinned, N_BYTES, HOST_TO_DEVICE, first));
  MUST(cuda.copy_async(at.b, pinned + N, N_BYTES, HOST_TO_DEVICE, first));
  MUST(cuda.event_record(copied, first));
  MUST(cuda.stream_wait(second, copied, 0));
  MUST(launch_add(cuda, at, second));
  MUST(cuda.allocate(reinterpret_cast<void**>(&temporary), N_BYTES));
  MUST(cuda.copy_async(temporary, at.c, N_BYTES, DEVICE_TO_DEVICE, second));
  MUST(cuda.set_async(at.c, 0, N_BYTES, second));
  MUST(launch_scale(cuda, temporary, 4, second));
  MUST(cuda.copy_async(pinned, temporary, N_BYTES, DEVICE_TO_HOST, second));
  MUST(cuda.event_record(end, second));
  MUST(cuda.event_synchronize(end));
  report("two streams", numbers.is_sum(pinned, 4));
  float ms = -1;
  MUST(cuda.event_elapsed(&ms, begin, end));
  report("events", ms >= 0 && cuda.event_query(end) == SUCCESS);
  std::atomic<int> n_calls{0};
  const auto count = [](void* n) { ++*static_cast<std::atomic<int>*>(n); };
  for (int i = 0; i < 3; ++i) MUST(cuda.host_function(first, count, &n_calls));
  MUST(cuda.stream_synchronize(first));
  report("host functions", n_calls == 3);
  MUST(cuda.free(temporary));
  for (Event each : {begin, copied, end}) MUST(cuda.event_destroy(each));
  MUST(cuda.host_free(pinned));
  for (Stream each : {first, second}) MUST(cuda.stream_destroy(each));
}

void graph(const Runtime& cuda) {
  Numbers numbers;
  const Arrays at(cuda);
  MUST(cuda.copy(at.a, numbers.a.data(), N_BYTES, HOST_TO_DEVICE));
  MUST(cuda.copy(at.b, numbers.b.data(), N_BYTES, HOST_TO_DEVICE));
  // A copy of pageable memory may return before it is in place; other streams do not wait for it.
  MUST(cuda.device_synchronize());
  Stream stream;
  Graph captured;
  GraphExec ready;
  MUST(cuda.stream_create(&stream, NON_BLOCKING));
  MUST(cuda.begin_capture(stream, 0));
  MUST(launch_add(cuda, at, stream));
  MUST(launch_scale(cuda, at.c, 2, stream));
  MUST(cuda.end_capture(stream, &captured));
  MUST(cuda.instantiate(&ready, captured, 0));
  for (int i = 0; i < 3; ++i) MUST(cuda.graph_launch(ready, stream));
  MUST(cuda.stream_synchronize(stream));
  MUST(cuda.copy(numbers.c.data(), at.c, N_BYTES, DEVICE_TO_HOST));
  report("graph", numbers.is_sum(numbers.c.data(), 2));
  MUST(cuda.graph_exec_destroy(ready));
  MUST(cuda.graph_destroy(captured));
  MUST(cuda.stream_destroy(stream));
}

void errors(const Runtime& cuda) {
  const Arrays at(cuda);
  float* values = at.a;
  int n = N;
  float factor = 1;
  void* arguments[] = {&values, &factor, &n};
  const int refused = cuda.launch(&scale_kernel, Dim3{1}, Dim3{2048}, arguments, 0, nullptr);
  report("too large a block",
         std::strcmp(cuda.error_name(refused), "cudaErrorInvalidValue") == 0 ||
             std::strcmp(cuda.error_name(refused), "cudaErrorInvalidConfiguration") == 0);
  report("the error is told once", cuda.last_error() == refused && cuda.last_error() == SUCCESS);
  void* never = nullptr;
  const int too_much = cuda.allocate(&never, size_t{1} << 50);
  report("too large an allocation",
         std::strcmp(cuda.error_name(too_much), "cudaErrorMemoryAllocation") == 0);
  (void)cuda.last_error();
}

// Beside the runtime and in its context: kernels from NVRTC as a module of the driver API.
void driver_api(const Runtime& cuda, const std::string& ptx) {
  void* const driver = open_library("libcuda.so.1");
  const Function<int, void**, const void*> load{driver, "cuModuleLoadData"};
  const Function<int, void**, void*, const char*> get_function{driver, "cuModuleGetFunction"};
  const Function<int, void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                 Stream, void**, void**>
      launch{driver, "cuLaunchKernel"};
  const Function<int, void*> unload{driver, "cuModuleUnload"};
  Numbers numbers;
  const Arrays at(cuda);
  MUST(cuda.copy(at.c, numbers.a.data(), N_BYTES, HOST_TO_DEVICE));
  void *module, *function;
  MUST(load(&module, ptx.c_str()));
  MUST(get_function(&function, module, "scale"));
  float* values = at.c;
  float factor = 8;
  int n = N;
  void* arguments[] = {&values, &factor, &n};
  MUST(launch(function, (N + 127) / 128, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr));
  MUST(cuda.copy(numbers.c.data(), at.c, N_BYTES, DEVICE_TO_HOST));
  bool same = true;
  for (int i = 0; i < N; ++i) same = same && numbers.c[i] == numbers.a[i] * 8;
  report("module of the driver API", same);
  MUST(unload(module));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: runtime_program LIBCUDART LIBNVRTC\n");
    return 2;
  }
  const Runtime cuda(open_library(argv[1]));
  int version = 0, n_devices = 0, major = 0;
  MUST(cuda.runtime_version(&version));
  std::printf("runtime %d.%d\n", version / 1000, version % 1000 / 10);
  MUST(cuda.device_count(&n_devices));
  MUST(cuda.device_attribute(&major, ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  report("device", n_devices >= 1 && major >= 8);
  const std::string ptx = compile_to_ptx(argv[2], KERNELS);
  {
    const Registration registration(cuda, ptx);
    memory(cuda);
    kernels(cuda);
    streams(cuda);
    graph(cuda);
    errors(cuda);
    driver_api(cuda, ptx);
    MUST(cuda.device_synchronize());
    report("no error is left", cuda.last_error() == SUCCESS);
  }
  MUST(cuda.device_reset());
  std::printf(all_correct ? "runtime_program: all results correct\n"
                          : "runtime_program: some results are wrong\n");
  return all_correct ? 0 : 1;
}
