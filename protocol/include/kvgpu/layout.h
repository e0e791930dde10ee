// SPDX-License-Identifier: Apache-2.0
// Where things lie: region, block, address windows. Normative text: PROTOCOL.md §2.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvgpu {

inline constexpr uint64_t KIB = 1ull << 10, MIB = 1ull << 20, GIB = 1ull << 30, TIB = 1ull << 40;
inline constexpr uint64_t PAGE_BYTES = 4 * KIB;

inline constexpr uint64_t SUPERBLOCK_MAGIC = 0x5550475651564b00ull;
inline constexpr uint64_t BLOCK_MAGIC = 0x4b434f4c42564b00ull;
inline constexpr uint64_t BLOCK_BYTES = 16 * MIB;
inline constexpr uint64_t EXTENT_ALIGN_BYTES = 2 * MIB;

// A window W (PROTOCOL.md §2.2): device memory lies in [W - DEVICE_WINDOW_BYTES, W), region offset
// o at W + o. The first is what a quiet process has free; the others serve programs that occupy it.
inline constexpr uint64_t WINDOWS[] = {0x300000000000ull, 0x200000000000ull, 0x400000000000ull,
                                       0x500000000000ull};
inline constexpr uint64_t DEVICE_WINDOW_BYTES = 8 * TIB;
inline constexpr uint64_t SESSION_WINDOW_BYTES = 1 * TIB;

// Where NVIDIA's driver puts pools and cuMemAddressReserve whatever the process looks like (seen on
// driver 580).
struct AddressRange {
  uint64_t begin, end;
};
inline constexpr AddressRange LOW_RANGES[] = {{0x200000000ull, 0x9000000000ull},
                                              {0x10000000000ull, 0x11000000000ull}};

// In BAR 0 of an ivshmem-doorbell device, which is 256 bytes long.
inline constexpr uint64_t DOORBELL_REGISTER_OFF = 12;

// Offsets in a block.
inline constexpr uint64_t HOST_PAGE_OFF = 0;
inline constexpr uint64_t GUEST_PAGE_OFF = 4 * KIB;
inline constexpr uint64_t COMMAND_RING_OFF = 64 * KIB;
inline constexpr uint64_t COMMAND_RING_BYTES = 256 * KIB;  // 4096 one-line calls in flight
inline constexpr uint64_t EVENT_RING_OFF = 320 * KIB;
inline constexpr uint64_t EVENT_RING_BYTES = 256 * KIB;
inline constexpr uint64_t PROGRESS_OFF = 1 * MIB;
inline constexpr uint64_t PROGRESS_BYTES = 64 * KIB;
inline constexpr uint32_t N_PROGRESS_WORDS = PROGRESS_BYTES / sizeof(uint64_t);
inline constexpr uint64_t SLAB_OFF = 2 * MIB;
inline constexpr uint64_t SLAB_BYTES = BLOCK_BYTES - SLAB_OFF;
static_assert(EVENT_RING_OFF + EVENT_RING_BYTES <= PROGRESS_OFF);

// Written by the host only. Each word that changes has a cache line of its own.
struct HostPage {
  uint64_t magic;
  uint32_t version;  // major << 16 | minor
  uint32_t features;
  alignas(64) uint64_t command_credit;  // consumer position of the command ring
  // Not 0: the worker sleeps (for the n-th time): kick it, once. Release by the worker, ordered by
  // the fences on both sides; pairs with the guest's relaxed look.
  alignas(64) uint64_t need_wakeup;
  // (epoch << 32 | sticky << 31 | CUresult), 0: none. See ErrorWord. Release by Poison::fail(),
  // acquire by each call of the guest.
  alignas(64) uint64_t error_word;
  uint64_t error_position;  // of the failing record; written before error_word
  uint64_t error_opcode;
  // 1: the worker has left. Release by it; pairs with the agent's acquire in read_worker_state().
  alignas(64) uint64_t ended;
  // Counted up by a living worker, about once a second. Release; pairs as `ended` does.
  alignas(64) uint64_t beat;
};
static_assert(sizeof(HostPage) <= PAGE_BYTES);

// Written by the guest only.
struct GuestPage {
  alignas(64) uint64_t event_credit;  // consumer position of the event ring
  // Token of the last host function that has returned. Not a record: the command ring may be full
  // of work that waits for it.
  alignas(64) uint64_t callback_done;
};
static_assert(sizeof(GuestPage) <= PAGE_BYTES);

struct ErrorWord {
  static constexpr uint64_t STICKY = 1ull << 31;
  static constexpr uint64_t make(uint32_t epoch, bool sticky, uint32_t cuda_error) {
    return uint64_t{epoch} << 32 | (sticky ? STICKY : 0) | cuda_error;
  }
  static constexpr uint32_t epoch(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
  static constexpr bool sticky(uint64_t word) { return (word & STICKY) != 0; }
  static constexpr uint32_t error(uint64_t word) {
    return static_cast<uint32_t>(word & (STICKY - 1));
  }
};

}  // namespace kvgpu
