// SPDX-License-Identifier: Apache-2.0
// Changes to a list of actions that keep most of it a plausible session.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "input.h"

namespace kvgpu::fuzz {

using Random = std::minstd_rand;

// Changes one thing. `known_opcodes`: those that the worker serves.
void mutate(std::vector<Action>* actions, const std::vector<uint16_t>& known_opcodes,
            Random& random);

// A word such as a guest might send: a handle, an address of the session, a number.
uint64_t plausible_word(Random& random);

}  // namespace kvgpu::fuzz
