// SPDX-License-Identifier: Apache-2.0
// The worker's table of the driver's functions, over a driver that has hardly any.
#include <doctest/doctest.h>

#include <cstring>

#include "generated/driver.gen.h"

namespace kvgpu::worker {

namespace {

CUresult present(unsigned int) { return CUDA_ERROR_NO_DEVICE; }

DriverTable sparse_driver() {
  DriverTable driver;
  driver.fill([](const char* name) {
    return std::strcmp(name, "cuInit") == 0 ? reinterpret_cast<void*>(&present) : nullptr;
  });
  return driver;
}

}  // namespace

TEST_CASE("a function the driver has is called") {
  const DriverTable driver = sparse_driver();
  CHECK(driver.has(driver.cuInit));
  CHECK(driver.cuInit(0) == CUDA_ERROR_NO_DEVICE);
}

TEST_CASE("a function the driver lacks refuses, and has() says so, in a copy of the table, too") {
  const DriverTable driver = sparse_driver();
  CHECK_FALSE(driver.has(driver.cuEventElapsedTime_v2));
  CHECK(driver.cuEventElapsedTime_v2(nullptr, nullptr, nullptr) == CUDA_ERROR_NOT_SUPPORTED);
  const DriverTable copy = driver;  // NOLINT(performance-unnecessary-copy-initialization)
  CHECK_FALSE(copy.has(copy.cuMemFree_v2));
  CHECK(copy.has(copy.cuInit));
}

}  // namespace kvgpu::worker
