// SPDX-License-Identifier: Apache-2.0
// How a program tells fault_driver when to fail: the value of a cuMemsetD32Async.
#pragma once

namespace fault {

inline constexpr unsigned SEED = 0xfa170000;  // + a number below NONE
inline constexpr unsigned NONE = 0xffff;

}  // namespace fault
