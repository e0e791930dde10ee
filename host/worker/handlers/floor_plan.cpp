// SPDX-License-Identifier: Apache-2.0
// The driver's private table that tells where on the chip each TPC is. It is documented nowhere;
// what its two functions do was seen on driver 580.
#include <malloc.h>

#include <algorithm>
#include <cstring>

#include "generated/handlers.gen.h"
#include "kvgpu/calls.h"
#include "kvgpu/module_calls.h"

namespace kvgpu::worker {

namespace {

constexpr CUuuid FLOOR_PLAN_TABLE = {
    {0x17, 0x34, static_cast<char>(0xdc), 0x26, static_cast<char>(0x80), 0x0d, 0x47, 0x45,
     static_cast<char>(0x87), 0x26, static_cast<char>(0xc0), static_cast<char>(0xf1),
     static_cast<char>(0xe7), static_cast<char>(0xdd), static_cast<char>(0x8b),
     static_cast<char>(0xca)}};
constexpr size_t GET = 4, FREE = 13;
using Get = CUresult (*)(uint8_t** first, uint8_t** second);
using Free = CUresult (*)(uint8_t* first, uint8_t* second);

// The table, or null: slot 0 of a table is its size in bytes.
const uintptr_t* find_table(Session& session) {
  const DriverTable& driver = *session.driver;
  const void* found = nullptr;
  if (!driver.has(driver.cuGetExportTable) ||
      driver.cuGetExportTable(&found, &FLOOR_PLAN_TABLE) != CUDA_SUCCESS || found == nullptr) {
    return nullptr;
  }
  const auto* const table = static_cast<const uintptr_t*>(found);
  return table[0] > FREE * sizeof *table ? table : nullptr;
}

}  // namespace

CUresult floor_plan(Session& session, const Task& task, ReplyWriter& reply) {
  wire::AskFloorPlan body;
  if (!task.read(&body)) session.violation(task);
  const uintptr_t* const table = find_table(session);
  if (table == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (body.context == 0) return CUDA_SUCCESS;
  if (const CUresult bad = session.enter(body.context)) return bad;
  uint8_t *first = nullptr, *second = nullptr;
  if (const CUresult bad = reinterpret_cast<Get>(table[GET])(&first, &second)) return bad;
  wire::FloorPlan plan{};
  // They come from malloc without their length: one byte for each TPC.
  const size_t n = std::min(
      {malloc_usable_size(first), malloc_usable_size(second), size_t{wire::MAX_FLOOR_PLAN_BYTES}});
  plan.n_bytes = static_cast<uint32_t>(n);
  std::memcpy(plan.first, first, n);
  std::memcpy(plan.second, second, n);
  (void)reinterpret_cast<Free>(table[FREE])(first, second);
  reply.put(plan);
  return CUDA_SUCCESS;
}

}  // namespace kvgpu::worker
