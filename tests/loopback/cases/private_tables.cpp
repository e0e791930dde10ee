// SPDX-License-Identifier: Apache-2.0
// Slots of the driver's private tables that libraries call and no documentation describes.
#include <malloc.h>

#include <cstring>

#include "support.h"

namespace {

constexpr CUuuid uuid(const unsigned char (&bytes)[16]) {
  CUuuid id{};
  for (int i = 0; i < 16; ++i) id.bytes[i] = static_cast<char>(bytes[i]);
  return id;
}
constexpr CUuuid FLOOR_PLAN = uuid({0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26,
                                    0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca});
constexpr CUuuid CONTEXT_STREAM = uuid({0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6,
                                        0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2});
constexpr CUuuid FUNCTION = uuid({0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1,
                                  0x82, 0xaf, 0xf1, 0x99, 0x1e});

template <typename Function>
Function slot(const CUuuid& table_id, size_t index) {
  const void* table = nullptr;
  CU(cuGetExportTable(&table, &table_id));
  const auto* const slots = static_cast<const uintptr_t*>(table);
  REQUIRE(slots[0] > index * sizeof *slots);
  return reinterpret_cast<Function>(slots[index]);
}

}  // namespace

TEST_CASE("private tables: the floor plan has an entry for each TPC, the same each time") {
  const Gpu gpu;
  const auto get = slot<CUresult (*)(uint8_t**, uint8_t**)>(FLOOR_PLAN, 4);
  const auto release = slot<CUresult (*)(uint8_t*, uint8_t*)>(FLOOR_PLAN, 13);
  int n_multiprocessors;
  CU(cuDeviceGetAttribute(&n_multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                          gpu.device));
  const size_t n = static_cast<size_t>(n_multiprocessors) / 2;
  std::vector<std::string> plans;
  for (int i = 0; i < 2; ++i) {
    uint8_t *first = nullptr, *second = nullptr;
    CU(get(&first, &second));
    REQUIRE(malloc_usable_size(first) >= n);
    REQUIRE(malloc_usable_size(second) >= n);
    plans.push_back(std::string(reinterpret_cast<char*>(first), n) +
                    std::string(reinterpret_cast<char*>(second), n));
    CU(release(first, second));
  }
  CHECK(plans[0] == plans[1]);
  CHECK(plans[0] != std::string(2 * n, '\0'));
}

TEST_CASE("private tables: a context's number is the documented one") {
  const Gpu gpu;
  const auto get = slot<CUresult (*)(CUcontext, unsigned long long*)>(CONTEXT_STREAM, 4);
  CUcontext context = nullptr;
  CU(cuCtxGetCurrent(&context));
  unsigned long long documented = 0, id = 1;
  CU(cuCtxGetId(context, &documented));
  CU(get(context, &id));
  CHECK(id == documented);
}

TEST_CASE("private tables: a stream's number is the documented one") {
  const Gpu gpu;
  const auto find = slot<CUresult (*)(CUcontext, CUstream, void**, int)>(CONTEXT_STREAM, 51);
  const auto number = slot<CUresult (*)(CUcontext, void*, unsigned long long*)>(CONTEXT_STREAM, 39);
  const auto number_of = [&](CUstream stream, int default_is_per_thread) {
    void* found = nullptr;
    CU(find(gpu.context, stream, &found, default_is_per_thread));
    unsigned long long id = 0;
    CU(number(gpu.context, found, &id));
    return id;
  };
  const auto documented = [](CUstream stream) {
    unsigned long long id = 0;
    CU(cuStreamGetId(stream, &id));
    return id;
  };
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (const CUstream each : {stream, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    CHECK(number_of(each, 0) == documented(each));
  }
  CHECK(number_of(nullptr, 0) == documented(CU_STREAM_LEGACY));
  CHECK(number_of(nullptr, 1) == documented(CU_STREAM_PER_THREAD));
  CU(cuStreamDestroy(stream));
}

TEST_CASE("private tables: a visitor is shown all kernels of a module, in the documented order") {
  const Gpu gpu;
  using Visitor = int (*)(void*, CUfunction, const char*, void*);
  const auto visit = slot<int (*)(CUcontext, CUmodule, Visitor, void*)>(FUNCTION, 7);
  using Found = std::vector<std::pair<CUfunction, std::string>>;
  unsigned n = 0;
  CU(cuModuleGetFunctionCount(&n, gpu.module));
  Found expected;
  std::vector<CUfunction> functions(n);
  CU(cuModuleEnumerateFunctions(functions.data(), n, gpu.module));
  for (const CUfunction function : functions) {
    const char* name = nullptr;
    CU(cuFuncGetName(&name, function));
    expected.emplace_back(function, name);
  }
  Found found;
  const Visitor note = [](void* user, CUfunction function, const char* name, void*) {
    static_cast<Found*>(user)->emplace_back(function, name);
    return 0;
  };
  CHECK(visit(gpu.context, gpu.module, note, &found) == static_cast<int>(n));
  CHECK(found == expected);
}

TEST_CASE("private tables: an unknown one is told apart from none") {
  const Gpu gpu;
  const CUuuid unknown{};
  const void* table = &unknown;
  CU_IS(cuGetExportTable(&table, &unknown), CUDA_ERROR_INVALID_VALUE);
  CHECK(table == nullptr);
}
