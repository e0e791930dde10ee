// SPDX-License-Identifier: Apache-2.0
// The program's side: libcuda.so.1 as the loader finds it, and a kernel through it.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "checks.h"

namespace kvgpu::check {

namespace {

constexpr char SONAME[] = "libcuda.so.1";
constexpr unsigned N = 1024;

// c[i] = a[i] + b[i]
constexpr char VECTOR_ADD[] = R"(
.version 7.0
.target sm_52
.address_size 64
.visible .entry vector_add(.param .u64 pa, .param .u64 pb, .param .u64 pc)
{
  .reg .u32 %r<8>;
  .reg .u64 %d<8>;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  mul.wide.u32 %d1, %r4, 4;
  ld.param.u64 %d2, [pa];
  ld.param.u64 %d3, [pb];
  ld.param.u64 %d4, [pc];
  add.u64 %d2, %d2, %d1;
  add.u64 %d3, %d3, %d1;
  add.u64 %d4, %d4, %d1;
  ld.global.u32 %r5, [%d2];
  ld.global.u32 %r6, [%d3];
  add.u32 %r7, %r5, %r6;
  st.global.u32 [%d4], %r7;
  ret;
}
)";

void* library() {
  static void* const handle = dlopen(SONAME, RTLD_NOW | RTLD_LOCAL);
  return handle;
}

std::string library_path() {
  Dl_info info{};
  void* const function = dlsym(library(), "cuInit");
  if (function == nullptr || dladdr(function, &info) == 0) return {};
  return info.dli_fname;
}

// Ours names the agent's socket; nobody else's does.
bool is_ours(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(file)), {});
  return content.find(control::GUEST_SOCKET) != content.npos;
}

std::string nvidia_advice() {
  std::error_code error;
  const bool driver = std::filesystem::exists("/proc/driver/nvidia/version", error);
  const std::string remove =
      driver ? "NVIDIA's driver is loaded here, and its libcuda comes first: remove its packages"
             : "another package's libcuda.so.1 comes first: remove it";
  const char* const path = std::getenv("LD_LIBRARY_PATH");
  if (path == nullptr || *path == '\0') return remove + ", then ldconfig";
  return remove + " (LD_LIBRARY_PATH is " + path + ")";
}

struct Driver {
  decltype(&::cuInit) init;
  decltype(&::cuDriverGetVersion) version;
  decltype(&::cuGetErrorName) error_name;
  decltype(&::cuDeviceGet) device_get;
  decltype(&::cuDeviceGetName) device_name;
  decltype(&::cuDevicePrimaryCtxRetain) retain;
  decltype(&::cuCtxSetCurrent) set_current;
  decltype(&::cuModuleLoadData) load;
  decltype(&::cuModuleGetFunction) function;
  decltype(&::cuMemAlloc) alloc;
  decltype(&::cuMemcpyHtoD) to_device;
  decltype(&::cuMemcpyDtoH) to_host;
  decltype(&::cuLaunchKernel) launch;
  decltype(&::cuCtxSynchronize) synchronize;
};

// The first name that is missing; null: all are there.
const char* resolve(Driver* driver) {
  const char* missing = nullptr;
  const auto find = [&](auto* to, const char* name) {
    *to = reinterpret_cast<std::remove_reference_t<decltype(*to)>>(dlsym(library(), name));
    if (*to == nullptr && missing == nullptr) missing = name;
  };
  find(&driver->init, "cuInit");
  find(&driver->version, "cuDriverGetVersion");
  find(&driver->error_name, "cuGetErrorName");
  find(&driver->device_get, "cuDeviceGet");
  find(&driver->device_name, "cuDeviceGetName");
  find(&driver->retain, "cuDevicePrimaryCtxRetain");
  find(&driver->set_current, "cuCtxSetCurrent");
  find(&driver->load, "cuModuleLoadData");
  find(&driver->function, "cuModuleGetFunction");
  find(&driver->alloc, "cuMemAlloc_v2");
  find(&driver->to_device, "cuMemcpyHtoD_v2");
  find(&driver->to_host, "cuMemcpyDtoH_v2");
  find(&driver->launch, "cuLaunchKernel");
  find(&driver->synchronize, "cuCtxSynchronize");
  return missing;
}

// Runs the calls until one fails.
class Attempt {
 public:
  explicit Attempt(const Driver& driver) : driver_(driver) {}

  template <typename Function, typename... Arguments>
  Attempt& call(const char* name, Function function, Arguments... arguments) {
    if (error_.empty()) {
      if (const CUresult result = function(arguments...)) {
        const char* text = nullptr;
        (void)driver_.error_name(result, &text);
        error_ = std::string(name) + " answers " + (text != nullptr ? text : "?") + " (" +
                 std::to_string(result) + ")";
      }
    }
    return *this;
  }
  const std::string& error() const { return error_; }

 private:
  const Driver& driver_;
  std::string error_;
};

std::string add_vectors(const Driver& driver, Attempt* attempt) {
  std::vector<unsigned> a(N), b(N), c(N);
  for (unsigned i = 0; i < N; ++i) {
    a[i] = i * 3;
    b[i] = i ^ 0x55;
  }
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr pa = 0, pb = 0, pc = 0;
  void* params[] = {&pa, &pb, &pc};
  constexpr size_t BYTES = N * sizeof(unsigned);
  constexpr unsigned BLOCK = 128;
  attempt->call("cuModuleLoadData", driver.load, &module, VECTOR_ADD)
      .call("cuModuleGetFunction", driver.function, &function, module, "vector_add")
      .call("cuMemAlloc", driver.alloc, &pa, BYTES)
      .call("cuMemAlloc", driver.alloc, &pb, BYTES)
      .call("cuMemAlloc", driver.alloc, &pc, BYTES)
      .call("cuMemcpyHtoD", driver.to_device, pa, a.data(), BYTES)
      .call("cuMemcpyHtoD", driver.to_device, pb, b.data(), BYTES)
      .call("cuLaunchKernel", driver.launch, function, N / BLOCK, 1u, 1u, BLOCK, 1u, 1u, 0u,
            nullptr, params, nullptr)
      .call("cuCtxSynchronize", driver.synchronize)
      .call("cuMemcpyDtoH", driver.to_host, c.data(), pc, BYTES);
  if (!attempt->error().empty()) return attempt->error();
  for (unsigned i = 0; i < N; ++i) {
    if (c[i] == a[i] + b[i]) continue;
    return "vector add: element " + std::to_string(i) + " is " + std::to_string(c[i]) + ", not " +
           std::to_string(a[i] + b[i]);
  }
  return {};
}

}  // namespace

Result check_library() {
  if (library() == nullptr) {
    return failed("the loader finds no libcuda.so.1: " + std::string(dlerror()),
                  "run ldconfig; kvgpu-guest puts its path into /etc/ld.so.conf.d");
  }
  const std::string path = library_path();
  if (path.empty()) return failed("libcuda.so.1 has no cuInit", nvidia_advice());
  if (!is_ours(path)) return failed(path + " is not kvgpu's", nvidia_advice());
  return ok(path);
}

Result check_kernel() {
  Driver driver{};
  if (library() == nullptr) return skipped("no libcuda.so.1");
  if (const char* missing = resolve(&driver)) {
    return failed(std::string("libcuda.so.1 lacks ") + missing, "reinstall kvgpu-guest");
  }
  CUdevice device = 0;
  CUcontext context = nullptr;
  char name[256] = "";
  int version = 0;
  Attempt attempt(driver);
  attempt.call("cuInit", driver.init, 0u)
      .call("cuDriverGetVersion", driver.version, &version)
      .call("cuDeviceGet", driver.device_get, &device, 0)
      .call("cuDeviceGetName", driver.device_name, name, int{sizeof name}, device)
      .call("cuDevicePrimaryCtxRetain", driver.retain, &context, device)
      .call("cuCtxSetCurrent", driver.set_current, context);
  const std::string error =
      attempt.error().empty() ? add_vectors(driver, &attempt) : attempt.error();
  if (!error.empty()) {
    return failed(error,
                  "KVGPU_LOG=debug kvgpu-check says more; so does the session's log on the host");
  }
  return ok("vector add on " + std::string(name) + ", driver " + std::to_string(version / 1000) +
            "." + std::to_string(version % 1000 / 10) + ", result correct");
}

}  // namespace kvgpu::check
