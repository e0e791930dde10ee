// SPDX-License-Identifier: Apache-2.0
// bench_driver [--effort SHARE] [--served] SUBJECT: what calls of the driver cost, seen by the
// caller. The same binary measures a native and a remoted GPU. Asserts nothing.
// --served: once for each line on standard input; a line `end` follows the figures.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "bench.h"

namespace {

using Measure = void(const bench::Gpu&, bench::Effort);

// What `start` has to show is that there is a first kernel.
void start(const bench::Gpu& gpu, bench::Effort) {
  gpu.launch();
  MUST(cuStreamSynchronize(nullptr));
  bench::figure("first_kernel", 1, "done");
}

constexpr struct {
  const char* name;
  Measure* measure;
} SUBJECTS[] = {
    {"launch", bench::launches},
    {"wait", bench::waits},
    {"query", bench::queries},
    {"runtime", bench::runtime},
    {"small", bench::small_copies},
    {"pinned", bench::pinned_copies},
    {"pageable", bench::pageable_copies},
    {"memory", bench::memory},
    {"graph", bench::graphs},
    {"threads", bench::threads},
    {"producer", bench::records},
    {"busy", bench::busy},
    {"check", bench::checked},
    {"counted", bench::counted},
    {"counted_copies", bench::counted_copies},
    {"start", start},
};

Measure* find(const char* name) {
  for (const auto& subject : SUBJECTS) {
    if (std::strcmp(subject.name, name) == 0) return subject.measure;
  }
  std::fprintf(stderr, "bench_driver: no subject %s\n", name);
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  double effort = 1;
  bool served = false;
  Measure* measure = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--served") == 0) {
      served = true;
    } else if (std::strcmp(argv[i], "--effort") == 0 && i + 1 < argc) {
      effort = std::atof(argv[++i]);
    } else {
      measure = find(argv[i]);
    }
  }
  if (measure == nullptr) {
    std::fprintf(stderr, "usage: bench_driver [--effort SHARE] [--served] SUBJECT\n");
    return 2;
  }
  const bench::Gpu gpu;
  if (!served) {
    measure(gpu, bench::Effort(effort));
    return 0;
  }
  char line[64];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    measure(gpu, bench::Effort(effort));
    std::puts("end");
    std::fflush(stdout);
  }
  return 0;
}
