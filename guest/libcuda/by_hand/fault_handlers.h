// SPDX-License-Identifier: Apache-2.0
// Who is asked when a thread of the program runs into a protected page, before the program's own
// handler of SIGSEGV is.
#pragma once

#include <cstdint>

namespace kvgpu::guest {

// Runs in a signal handler. True: the instruction may be tried again.
using FaultHandler = bool (*)(uint64_t address);

// Each is asked, in the order in which they came; the list stays. To be called again whenever pages
// have been protected: the program may have installed a handler of its own meanwhile.
void watch_faults(FaultHandler handler);

}  // namespace kvgpu::guest
