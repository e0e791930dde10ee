// SPDX-License-Identifier: Apache-2.0
// Changes to a list of actions that keep most of it a plausible session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace kvgpu::fuzz {

using Random = std::minstd_rand;

// For LLVMFuzzerCustomMutator, where the input is such a list.
size_t mutate_input(uint8_t* data, size_t size, size_t max_size, unsigned seed);

// A word such as a guest might send: a handle, an address of the session, a number.
uint64_t plausible_word(Random& random);

}  // namespace kvgpu::fuzz
