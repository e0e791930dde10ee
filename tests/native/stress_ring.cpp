// SPDX-License-Identifier: Apache-2.0
// stress_ring [--threads] N: N records of mixed lengths through a ring between two processes (two
// threads under TSan, which does not see across processes). The consumer checks the order and every
// byte. Exit status 1 on the first difference.
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "kvgpu/layout.h"
#include "kvgpu/ring.h"

using namespace kvgpu;

namespace {

constexpr uint32_t MAX_BODY_WORDS = 64;
constexpr uint32_t LONG_EVERY = 1024;  // one record in so many is of the greatest length
constexpr uint32_t HEADER_WORDS = sizeof(wire::Header) / sizeof(uint64_t);
constexpr uint32_t LONGEST_WORDS = (wire::MAX_RECORD_BYTES - sizeof(wire::Header)) / 8;
constexpr int SPINS_BEFORE_YIELD = 200;  // both ends may share a core

struct Shared {
  alignas(64) uint64_t credit;
  alignas(64) std::byte ring[COMMAND_RING_BYTES];
};

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint32_t body_words(uint64_t number) {
  const uint64_t random = mix(number);
  if (random % LONG_EVERY == 0) return LONGEST_WORDS;
  return static_cast<uint32_t>(random >> 32) % (random & 1 ? MAX_BODY_WORDS : 5);
}

class Patience {
 public:
  void wait() {
    if (++n_spins_ % SPINS_BEFORE_YIELD == 0) {
      sched_yield();
    } else {
      cpu_relax();
    }
  }

 private:
  int n_spins_ = 0;
};

bool produce(Shared& shared, uint64_t n) {
  Producer producer(shared.ring, sizeof shared.ring, &shared.credit);
  Patience patience;
  uint64_t body[LONGEST_WORDS];
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t n_words = body_words(i);
    for (uint32_t w = 0; w < n_words; ++w) body[w] = mix(i + w);
    wire::Header header{};
    header.opcode = static_cast<uint16_t>(i);
    header.call_id = i;
    while (!producer.reserve(sizeof header + n_words * 8)) {
      if (producer.error() != RingError::NONE) {
        fprintf(stderr, "producer: %s at record %llu\n", to_string(producer.error()),
                static_cast<unsigned long long>(i));
        return false;
      }
      patience.wait();
    }
    producer.write(header, Part{body, n_words * 8});
  }
  return true;
}

bool same(const uint64_t* record, const wire::Header& header, uint64_t i) {
  const uint32_t n_words = body_words(i);
  if (header.call_id != i || header.opcode != static_cast<uint16_t>(i)) return false;
  if (header.len_bytes != sizeof header + n_words * 8) return false;
  const uint64_t* body = record + HEADER_WORDS;
  for (uint32_t w = 0; w < n_words; ++w) {
    if (body[w] != mix(i + w)) return false;
  }
  return true;
}

bool consume(Shared& shared, uint64_t n) {
  Consumer consumer(shared.ring, sizeof shared.ring, &shared.credit);
  Patience patience;
  uint64_t record[wire::MAX_RECORD_BYTES / 8];
  for (uint64_t i = 0; i < n; ++i) {
    wire::Header header;
    while (!consumer.peek(&header)) {
      if (consumer.error() != RingError::NONE) {
        fprintf(stderr, "consumer: %s at record %llu\n", to_string(consumer.error()),
                static_cast<unsigned long long>(i));
        return false;
      }
      if (consumer.unpublished()) consumer.publish();
      patience.wait();
    }
    consumer.take(header, record);
    if (!same(record, header, i)) {
      fprintf(stderr, "consumer: record %llu is not what was sent\n",
              static_cast<unsigned long long>(i));
      return false;
    }
  }
  return true;
}

bool run_processes(Shared& shared, uint64_t n) {
  const pid_t child = fork();
  if (child < 0) {
    perror("fork");
    return false;
  }
  if (child == 0) _exit(produce(shared, n) ? 0 : 1);
  const bool consumed = consume(shared, n);
  if (!consumed) kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  return consumed && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool run_threads(Shared& shared, uint64_t n) {
  bool produced = false;
  std::thread producer([&] { produced = produce(shared, n); });
  const bool consumed = consume(shared, n);
  if (!consumed) _exit(1);  // the producer waits for a consumer that has left
  producer.join();
  return produced;
}

}  // namespace

int main(int argc, char** argv) {
  const bool threads = argc == 3 && strcmp(argv[1], "--threads") == 0;
  char* end = nullptr;
  const uint64_t n = argc >= 2 ? strtoull(argv[argc - 1], &end, 10) : 0;
  if (n == 0 || *end != 0 || argc > 3 || (argc == 3 && !threads)) {
    fprintf(stderr, "usage: stress_ring [--threads] N\n");
    return 2;
  }
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    perror("mmap");
    return 1;
  }
  Shared& shared = *new (memory) Shared;
  const auto begun = std::chrono::steady_clock::now();
  if (!(threads ? run_threads(shared, n) : run_processes(shared, n))) return 1;
  const std::chrono::duration<double> took_s = std::chrono::steady_clock::now() - begun;
  printf("figure: %llu records between two %s, %.1f million records/s\n",
         static_cast<unsigned long long>(n), threads ? "threads" : "processes",
         static_cast<double>(n) / took_s.count() / 1e6);
  return 0;
}
