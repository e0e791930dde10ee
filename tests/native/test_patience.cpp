// SPDX-License-Identifier: Apache-2.0
// How long a worker's threads look before they sleep.
#include <doctest/doctest.h>

#include "spin.h"

using namespace kvgpu::worker;
using namespace std::chrono_literals;

namespace {

// What is waited for comes after `time`; whether it was slept for.
bool wait(Patience* patience, Spin::Clock::duration time) {
  if (time <= patience->limit()) return false;
  patience->slept(time - patience->limit());
  return true;
}

}  // namespace

TEST_CASE("patience grows where what is waited for comes soon, and goes again") {
  Patience patience(false);
  const auto shortest = patience.limit();
  CHECK(shortest == Spin::alone());
  for (int i = 0; i < 10; ++i) (void)wait(&patience, 1ms);
  CHECK(!wait(&patience, 1ms));
  CHECK(patience.limit() <= Patience::LONGEST);
  for (int i = 0; i < 10; ++i) CHECK(wait(&patience, 10ms));
  CHECK(patience.limit() == shortest);
}

TEST_CASE("with few cores there is none") {
  Patience patience(true);
  for (int i = 0; i < 10; ++i) CHECK(wait(&patience, 1ms));
  CHECK(patience.limit() == Spin::alone());
}

TEST_CASE("after a run of records, and then only, some are let come, once") {
  Gathering gathering;
  for (int i = 0; i < 100; ++i) {  // few that somebody waits for, again and again
    gathering.found();
    gathering.found();
    CHECK_FALSE(gathering.waits());
  }
  for (int i = 0; i < 100; ++i) gathering.found();
  const auto begun = Spin::Clock::now();
  CHECK(gathering.waits());
  CHECK(Spin::Clock::now() - begun >= 1us);
  CHECK_FALSE(gathering.waits());  // none came
  gathering.found();
  CHECK_FALSE(gathering.waits());
}

TEST_CASE("a spin ends, and begins again") {
  Spin spin(2ms);
  const auto begun = Spin::Clock::now();
  while (spin.once()) {
  }
  CHECK(Spin::Clock::now() - begun >= 2ms);
  CHECK(!spin.once());
  spin.reset(1us);
  int n = 0;
  while (spin.once()) ++n;
  CHECK(n > 0);
}
