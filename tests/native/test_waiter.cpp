// SPDX-License-Identifier: Apache-2.0
// Whether a waiting guest thread leaves its processor to others.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include "waiter.h"

using namespace kvgpu::guest;

namespace {

constexpr int STEPS = 20;

// How often this thread has slept meanwhile.
long sleeps_of(SpinThenSleep* wait) {
  rusage before{}, after{};
  (void)getrusage(RUSAGE_THREAD, &before);
  for (int i = 0; i < STEPS; ++i) (void)wait->step();
  (void)getrusage(RUSAGE_THREAD, &after);
  return after.ru_nvcsw - before.ru_nvcsw;
}

}  // namespace

TEST_CASE("who waits for room naps at once in company, and spins first alone") {
  SpinThenSleep naps(SpinThenSleep::For::ROOM);
  CHECK(sleeps_of(&naps) < STEPS);
  SpinThenSleep another;
  CHECK(sleeps_of(&naps) >= STEPS);
  CHECK(sleeps_of(&another) < STEPS);
}
