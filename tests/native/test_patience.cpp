// SPDX-License-Identifier: Apache-2.0
// How long a worker's threads look before they sleep, and when they share the work.
#include <doctest/doctest.h>

#include "lane_pressure.h"
#include "last_mark.h"
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

TEST_CASE("after many records within a short time, and then only, some are let come") {
  Gathering gathering;
  const auto find = [&](int n) { gathering.found(n); };
  for (int i = 0; i < 100; ++i) {  // few that somebody waits for, again and again
    find(2);
    CHECK_FALSE(gathering.waits());
    std::this_thread::sleep_for(2us);
  }
  find(1'000);
  std::this_thread::sleep_for(1ms);
  CHECK_FALSE(gathering.waits());
  find(7);
  CHECK_FALSE(gathering.waits());  // few
  find(1);
  std::this_thread::sleep_for(1ms);
  CHECK_FALSE(gathering.waits());  // many, but not within a short time
  find(1'000'000);                 // so many that it is a short time wherever this runs
  const auto begun = Spin::Clock::now();
  CHECK(gathering.waits());
  CHECK(Spin::Clock::now() - begun >= 1us);
  CHECK_FALSE(gathering.waits());  // none came
  find(100);
  std::this_thread::sleep_for(1ms);  // as a driver takes its time for each
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

TEST_CASE("a spin goes on, up to another limit") {
  Spin spin(1us);
  const auto begun = Spin::Clock::now();
  while (spin.once()) {
  }
  CHECK(spin.go_on(5ms));
  while (spin.once()) {
  }
  CHECK(Spin::Clock::now() - begun >= 5ms);
  CHECK_FALSE(spin.go_on(5ms));
}

TEST_CASE("a mark is outstanding until its number is written") {
  LastMark mark;
  CHECK_FALSE(mark.is_outstanding());
  uint64_t word = 4, another = 0;
  mark.note(&word, 5);
  CHECK(mark.is_outstanding());
  word = 5;
  CHECK_FALSE(mark.is_outstanding());
  mark.note(&another, 1);
  CHECK(mark.is_outstanding());
}

TEST_CASE("lanes are for several threads that launch more than gets done") {
  LanePressure pressure;
  // Threads in turn, `turn` launches each.
  const auto adds = [&](unsigned n, unsigned n_threads, unsigned turn = 1) {
    bool is_high = false;
    for (unsigned i = 0; i < n; ++i) is_high = pressure.add(i / turn % n_threads);
    return is_high;
  };
  CHECK_FALSE(adds(10'000, 1));
  CHECK(pressure.is_none(0));
  CHECK_FALSE(pressure.is_none(1));
  (void)pressure.add(1);
  CHECK_FALSE(pressure.is_none(1));   // it has come to the other one just now
  CHECK_FALSE(adds(10'000, 2, 500));  // now the one, now the other
  for (int i = 0; i < 1000; ++i) {    // several, and all gets done
    CHECK_FALSE(adds(10, 8));
    pressure.relieve();
  }
  CHECK(adds(10'000, 8, 256));
  for (int i = 0; i < 1000; ++i) pressure.relieve();  // a moment's rest
  CHECK(adds(1, 8));
  CHECK(adds(3000, 1));  // of one thread that has filled the ring
  CHECK_FALSE(pressure.is_none(0));
  CHECK_FALSE(adds(10'000, 1));
  CHECK(adds(10'000, 2));
  for (int i = 0; i < 1000; ++i) {  // hardly anything between what only the reader does
    (void)adds(4, 2);
    pressure.interrupt();
  }
  CHECK_FALSE(adds(4, 2));
  CHECK(adds(10'000, 2));
  for (int i = 0; i < 1000; ++i) {
    (void)adds(1, 2);
    pressure.relieve();
  }
  CHECK_FALSE(adds(1, 2));
  CHECK(adds(10'000, 3));
  pressure.end();
  CHECK_FALSE(adds(1, 3));
}
