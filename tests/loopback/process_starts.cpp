// SPDX-License-Identifier: Apache-2.0
// One process start: memory of every kind is allocated, and each device pointer is looked up in
// /proc/self/maps. Natively, too, device memory lies where nothing else is mapped.
// Ends with 0 where every pointer is its own; says which is not.
#include <cuda.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr size_t BYTES = 3 << 20;

void check(const char* what, CUresult result) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "process_starts: %s: CUDA error %d\n", what, result);
  std::exit(1);
}

struct Pointer {
  const char* kind;
  CUdeviceptr begin;
  size_t bytes;
  bool is_host;  // its own pages are mapped there
};

// No module of ours: PTX with one variable.
constexpr const char* IMAGE =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .global .align 16 .b8 table[65536];\n";

std::vector<Pointer> allocate_every_kind() {
  std::vector<Pointer> all;
  CUdeviceptr p = 0;
  size_t bytes = BYTES;
  check("cuMemAlloc", cuMemAlloc(&p, 1));
  all.push_back({"small", p, 1, false});
  check("cuMemAlloc", cuMemAlloc(&p, BYTES));
  all.push_back({"cuMemAlloc", p, BYTES, false});
  check("cuMemAllocPitch", cuMemAllocPitch(&p, &bytes, 1000, 100, 4));
  all.push_back({"cuMemAllocPitch", p, bytes * 100, false});
  check("cuMemAllocAsync", cuMemAllocAsync(&p, BYTES, nullptr));
  all.push_back({"cuMemAllocAsync", p, BYTES, false});
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool;
  check("cuMemPoolCreate", cuMemPoolCreate(&pool, &properties));
  check("cuMemAllocFromPoolAsync", cuMemAllocFromPoolAsync(&p, BYTES, pool, nullptr));
  all.push_back({"cuMemAllocFromPoolAsync", p, BYTES, false});
  CUmodule module;
  check("cuModuleLoadData", cuModuleLoadData(&module, IMAGE));
  check("cuModuleGetGlobal", cuModuleGetGlobal(&p, &bytes, module, "table"));
  all.push_back({"global", p, bytes, false});
  void* host = nullptr;
  check("cuMemHostAlloc", cuMemHostAlloc(&host, BYTES, CU_MEMHOSTALLOC_DEVICEMAP));
  check("cuMemHostGetDevicePointer", cuMemHostGetDevicePointer(&p, host, 0));
  all.push_back({"cuMemHostAlloc", p, BYTES, true});
  host = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check("cuMemHostRegister", cuMemHostRegister(host, BYTES, CU_MEMHOSTREGISTER_DEVICEMAP));
  check("cuMemHostGetDevicePointer", cuMemHostGetDevicePointer(&p, host, 0));
  all.push_back({"cuMemHostRegister", p, BYTES, true});
  check("cuStreamSynchronize", cuStreamSynchronize(nullptr));
  return all;
}

bool overlap(const Pointer& p, uint64_t begin, uint64_t end) {
  return p.begin < end && begin < p.begin + p.bytes;
}

// Device memory may lie in nothing but what is reserved (PROT_NONE) or of the driver itself; host
// memory in one mapping that can be read and written.
int count_collisions(const std::vector<Pointer>& all) {
  FILE* const maps = std::fopen("/proc/self/maps", "r");
  if (maps == nullptr) return 1;
  char line[512];
  int n = 0;
  std::vector<bool> mapped(all.size());
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long begin, end;
    char rights[8], path[256] = "";
    if (std::sscanf(line, "%lx-%lx %7s %*s %*s %*s %255s", &begin, &end, rights, path) < 3) ++n;
    const bool reserved = std::strncmp(rights, "---", 3) == 0;
    const bool of_driver = std::strncmp(path, "/dev/nvidia", 11) == 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!overlap(all[i], begin, end)) continue;
      const bool usable = rights[0] == 'r' && rights[1] == 'w';
      if (all[i].is_host && usable) mapped[i] = true;
      if (reserved || of_driver || (all[i].is_host && usable)) continue;
      std::fprintf(stderr, "process_starts: %s at 0x%llx lies in %s", all[i].kind,
                   static_cast<unsigned long long>(all[i].begin), line);
      ++n;
    }
  }
  std::fclose(maps);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].is_host && !mapped[i]) {
      std::fprintf(stderr, "process_starts: %s is not mapped\n", all[i].kind);
      ++n;
    }
    for (size_t j = 0; j < i; ++j) {
      if (!overlap(all[i], all[j].begin, all[j].begin + all[j].bytes)) continue;
      std::fprintf(stderr, "process_starts: %s and %s overlap\n", all[i].kind, all[j].kind);
      ++n;
    }
  }
  return n;
}

}  // namespace

int main() {
  CUcontext context;
  check("cuInit", cuInit(0));
  check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
  check("cuCtxSetCurrent", cuCtxSetCurrent(context));
  const std::vector<Pointer> all = allocate_every_kind();
  const int n = count_collisions(all);
  if (n == 0) std::printf("%zu pointers\n", all.size());
  return n == 0 ? 0 : 1;
}
