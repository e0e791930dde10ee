// SPDX-License-Identifier: Apache-2.0
// Each line is written at once: after a crash the last calls are what one wants to see.
#include "trace.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "log.h"

namespace kvgpu::guest {

namespace {

using Clock = std::chrono::steady_clock;

// What the calling thread's call has sent so far.
struct Traffic {
  uint64_t n_records = 0, n_round_trips = 0, n_bytes = 0, host_us = 0;
};
thread_local Traffic traffic;

struct Output {
  std::mutex mutex;  // guards the entries' sums, too
  int text_fd = -1, chrome_fd = -1;
  Clock::time_point begun = Clock::now();
  TracedEntry* entries = nullptr;  // those that were called
};
Output& output() {
  static auto& the_output = *new Output;
  return the_output;
}

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n <= 0) return;  // a full disk ends no program
    done += static_cast<size_t>(n);
  }
}

__attribute__((format(printf, 2, 3))) void append(std::string* text, const char* format, ...) {
  char piece[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(piece, sizeof piece, format, arguments);
  va_end(arguments);
  *text += piece;
}

// As a JSON string, at most 100 characters of it.
void append_quoted(std::string* text, const char* words) {
  *text += '"';
  for (size_t i = 0; i < 100 && words[i] != '\0'; ++i) {
    const auto c = static_cast<unsigned char>(words[i]);
    if (c == '"' || c == '\\') *text += '\\';
    if (c >= ' ' && c < 0x7f) *text += static_cast<char>(c);
  }
  *text += '"';
}

void append_value(std::string* text, const TracedArgument& argument) {
  switch (argument.kind) {
    case TracedArgument::Kind::TEXT:
      if (argument.value == 0) break;
      append_quoted(text, reinterpret_cast<const char*>(argument.value));
      return;
    case TracedArgument::Kind::ADDRESS:
      append(text, "\"0x%llx\"", static_cast<unsigned long long>(argument.value));
      return;
    case TracedArgument::Kind::INTEGER:
    case TracedArgument::Kind::NUMBER:
      append(text, "%lld", static_cast<long long>(argument.value));
      return;
    case TracedArgument::Kind::STRUCT:
      break;
  }
  *text += argument.kind == TracedArgument::Kind::TEXT ? "null" : "\"{}\"";
}

// {"name": value, ...}
std::string arguments_of(const TracedEntry& entry, const TracedArgument* arguments, size_t n) {
  std::string text = "{";
  const char* name = entry.parameters;
  for (size_t i = 0; i < n; ++i) {
    const size_t len = std::strcspn(name, " ");
    append(&text, "%s\"%.*s\": ", i == 0 ? "" : ", ", static_cast<int>(len), name);
    append_value(&text, arguments[i]);
    name += len + (name[len] == ' ');
  }
  return text + "}";
}

double us(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

// Its name in the log and in nvidia-smi is the process's; of several that write, each has a file.
int open_locked(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND, 0666);
  if (fd < 0) return -1;
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    errno = EWOULDBLOCK;
    return -1;
  }
  (void)!ftruncate(fd, 0);
  return fd;
}

std::string table(std::vector<const TracedEntry*> entries) {
  std::ranges::sort(entries, std::greater{}, &TracedEntry::total_ns);
  std::string text;
  append(&text, "# %-44s %-10s %9s %12s %12s %12s %9s %12s\n", "call", "class", "calls", "mean us",
         "total ms", "host ms", "trips", "bytes");
  for (const TracedEntry* entry : entries) {
    const double total_us = static_cast<double>(entry->total_ns) / 1e3;
    append(&text, "# %-44s %-10s %9llu %12.2f %12.3f %12.3f %9llu %12llu\n", entry->name,
           entry->call_class, static_cast<unsigned long long>(entry->n_calls),
           total_us / static_cast<double>(entry->n_calls), total_us / 1e3,
           static_cast<double>(entry->host_us) / 1e3,
           static_cast<unsigned long long>(entry->n_round_trips),
           static_cast<unsigned long long>(entry->n_bytes));
  }
  return text;
}

__attribute__((destructor)) void finish_trace() {
  if (!Trace::is_on()) return;
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  std::vector<const TracedEntry*> entries;
  for (const TracedEntry* entry = out.entries; entry != nullptr; entry = entry->next) {
    entries.push_back(entry);
  }
  write_all(out.text_fd, table(std::move(entries)));
  write_all(out.chrome_fd, "{}]\n");
}

}  // namespace

bool Trace::start(const char* path) {
  if (is_on()) return true;
  Output& out = output();
  std::string name = path;
  out.text_fd = open_locked(name);
  if (out.text_fd < 0 && errno == EWOULDBLOCK) {  // another process of this program writes there
    name += "." + std::to_string(getpid());
    out.text_fd = open_locked(name);
  }
  out.chrome_fd = out.text_fd < 0 ? -1 : open_locked(name + ".json");
  if (out.chrome_fd < 0) {
    log(Level::ERROR,
        "KVGPU_TRACE: cannot write %s (%s): choose a file in a folder that may be "
        "written to",
        name.c_str(), std::strerror(errno));
    return false;
  }
  write_all(out.text_fd,
            "# ms since the start, thread, call, class, result, guest us, host us (-: not asked), "
            "round trips, bytes, arguments\n");
  write_all(out.chrome_fd, "[\n");
  on_.store(true, std::memory_order_relaxed);
  return true;
}

void Trace::sent(uint32_t len_bytes) {
  ++traffic.n_records;
  traffic.n_bytes += len_bytes;
}

void Trace::answered(uint32_t len_bytes, uint32_t time) {
  ++traffic.n_round_trips;
  traffic.n_bytes += len_bytes;
  if (time != 0) traffic.host_us += time - 1;
}

TracedCall::TracedCall() : begun_(Clock::now()) { traffic = {}; }

void TracedCall::finish(TracedEntry& entry, CUresult result, const TracedArgument* arguments,
                        size_t n) {
  const Clock::time_point ended = Clock::now();
  const Traffic own = traffic;
  const std::string values = arguments_of(entry, arguments, n);
  Output& out = output();
  const double begun_us = us(begun_ - out.begun), took_us = us(ended - begun_);
  const int thread = static_cast<int>(syscall(SYS_gettid));  // glibc 2.17 has no gettid()
  std::string line, event;
  append(&line, "%.3f\t%d\t%s\t%s\t%d\t%.2f\t", begun_us / 1e3, thread, entry.name,
         entry.call_class, result, took_us);
  if (own.n_round_trips == 0) {
    line += '-';
  } else {
    append(&line, "%llu", static_cast<unsigned long long>(own.host_us));
  }
  append(&line, "\t%llu\t%llu\t", static_cast<unsigned long long>(own.n_round_trips),
         static_cast<unsigned long long>(own.n_bytes));
  line += values + "\n";
  append(&event,
         "{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"ts\": %.3f, \"dur\": %.3f, \"pid\": "
         "%d, "
         "\"tid\": %d, ",
         entry.name, entry.call_class, begun_us, took_us, getpid(), thread);
  append(&event,
         "\"args\": {\"result\": %d, \"host us\": %llu, \"round trips\": %llu, \"bytes\": %llu, ",
         result, static_cast<unsigned long long>(own.host_us),
         static_cast<unsigned long long>(own.n_round_trips),
         static_cast<unsigned long long>(own.n_bytes));
  event += "\"arguments\": " + values + "}},\n";
  const std::lock_guard lock(out.mutex);
  if (entry.n_calls++ == 0) {
    entry.next = out.entries;
    out.entries = &entry;
  }
  entry.total_ns += static_cast<uint64_t>((ended - begun_).count());
  entry.host_us += own.host_us;
  entry.n_round_trips += own.n_round_trips;
  entry.n_bytes += own.n_bytes;
  write_all(out.text_fd, line);
  write_all(out.chrome_fd, event);
}

}  // namespace kvgpu::guest
