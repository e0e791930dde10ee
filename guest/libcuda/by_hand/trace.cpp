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
#include "settings.h"

namespace kvgpu::guest {

namespace {

using Clock = std::chrono::steady_clock;

// What the calling thread's call has come to so far.
struct Traffic {
  uint64_t n_round_trips = 0, n_timed = 0, host_us = 0, n_bytes = 0;
};
thread_local Traffic traffic;

struct Output {
  bool is_of_child = false;
  bool has_failed = false;
  std::mutex mutex;  // guards the entries' sums, too
  int text_fd = -1, chrome_fd = -1;
  Clock::time_point begun = Clock::now();
  TracedEntry* entries = nullptr;  // those that were called
};
Output* the_output = nullptr;

Output& output() {
  static std::once_flag once;
  std::call_once(once, [] { the_output = new Output; });
  return *the_output;
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
      if (argument.value == 0) {
        *text += "null";
      } else {
        append_quoted(text, reinterpret_cast<const char*>(argument.value));
      }
      return;
    case TracedArgument::Kind::ADDRESS:
      append(text, "\"0x%llx\"", static_cast<unsigned long long>(argument.value));
      return;
    case TracedArgument::Kind::INTEGER:
      append(text, "%lld", static_cast<long long>(argument.value));
      return;
    case TracedArgument::Kind::NUMBER:  // JSON knows neither nan nor inf
      append(text, "\"%g\"", std::bit_cast<double>(argument.value));
      return;
    case TracedArgument::Kind::STRUCT:
      *text += "\"{}\"";
      return;
  }
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

// Emptied, and nobody else's until the process ends. EWOULDBLOCK: another one writes there.
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

bool open_files(Output* out, const std::string& path) {
  const std::string own = path + "." + std::to_string(getpid());
  std::string name = out->is_of_child ? own : path;
  out->text_fd = open_locked(name);
  if (out->text_fd < 0 && errno == EWOULDBLOCK) out->text_fd = open_locked(name = own);
  if (out->text_fd >= 0) out->chrome_fd = open_locked(name += ".json");
  if (out->chrome_fd >= 0) return true;
  log(Level::ERROR, "KVGPU_TRACE: %s cannot be written: %s. Mend it; CUDA is not started",
      name.c_str(), std::strerror(errno));
  return false;
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

struct FinishedCall {
  const TracedEntry& entry;
  CUresult result;
  int thread;
  double begun_us, took_us;
  Traffic traffic;
  std::string arguments;
};

std::string line_of(const FinishedCall& call) {
  std::string line;
  append(&line, "%.3f\t%d\t%s\t%s\t%d\t%.2f\t", call.begun_us / 1e3, call.thread, call.entry.name,
         call.entry.call_class, call.result, call.took_us);
  if (call.traffic.n_timed == 0) {
    line += '-';
  } else {
    append(&line, "%llu", static_cast<unsigned long long>(call.traffic.host_us));
  }
  append(&line, "\t%llu\t%llu\t", static_cast<unsigned long long>(call.traffic.n_round_trips),
         static_cast<unsigned long long>(call.traffic.n_bytes));
  return line + call.arguments + "\n";
}

// "Complete events" of the Trace Event Format.
std::string event_of(const FinishedCall& call) {
  std::string event;
  append(&event,
         ",\n{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"ts\": %.3f, \"dur\": %.3f, ",
         call.entry.name, call.entry.call_class, call.begun_us, call.took_us);
  append(&event, "\"pid\": %d, \"tid\": %d, \"args\": {\"result\": %d, \"host us\": %llu, ",
         getpid(), call.thread, call.result, static_cast<unsigned long long>(call.traffic.host_us));
  append(&event, "\"round trips\": %llu, \"bytes\": %llu, \"arguments\": ",
         static_cast<unsigned long long>(call.traffic.n_round_trips),
         static_cast<unsigned long long>(call.traffic.n_bytes));
  return event + call.arguments + "}}";
}

}  // namespace

bool Trace::decide() {
  const struct Deciding {
    Deciding() { n_deciding_.fetch_add(1, std::memory_order_relaxed); }
    ~Deciding() { n_deciding_.fetch_sub(1, std::memory_order_relaxed); }
  } deciding;
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  if (state_.load(std::memory_order_relaxed) != State::UNDECIDED) return !out.has_failed;
  const std::string& path = settings().trace;
  out.has_failed = !path.empty() && !open_files(&out, path);
  if (path.empty() || out.has_failed) {
    state_.store(State::OFF, std::memory_order_relaxed);
    return !out.has_failed;
  }
  write_all(out.text_fd,
            "# ms since the start, thread, call, class, result, guest us, host us (-: not known), "
            "round trips, bytes, arguments\n");
  std::string head = "[\n{\"name\": \"process_name\", \"ph\": \"M\", ";
  append(&head, "\"pid\": %d, \"args\": {\"name\": ", getpid());
  append_quoted(&head, program_invocation_short_name);
  write_all(out.chrome_fd, head + "}}");
  state_.store(State::ON, std::memory_order_relaxed);
  return true;
}

void Trace::begin_anew_in_child() {
  // What that thread of the parent holds it never releases here.
  if (is_deciding()) state_.store(State::OFF, std::memory_order_relaxed);
  if (!is_on()) return;
  Output& parents = *the_output;
  close(parents.text_fd);
  close(parents.chrome_fd);
  for (TracedEntry* entry = parents.entries; entry != nullptr; entry = entry->next) {
    *entry = {entry->name, entry->call_class, entry->parameters, entry->next};
  }
  // Another thread of the parent may have held the lock of the one there was.
  the_output = new Output;
  the_output->is_of_child = true;
  state_.store(State::UNDECIDED, std::memory_order_relaxed);
}

// What comes later, from other libraries' destructors, is not in it.
__attribute__((destructor)) void finish_trace() {
  if (!Trace::is_on()) return;
  Trace::state_.store(Trace::State::OFF, std::memory_order_relaxed);
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  std::vector<const TracedEntry*> entries;
  for (const TracedEntry* entry = out.entries; entry != nullptr; entry = entry->next) {
    entries.push_back(entry);
  }
  write_all(out.text_fd, table(std::move(entries)));
  write_all(out.chrome_fd, "\n]\n");
}

void Trace::sent(uint32_t len_bytes) { traffic.n_bytes += len_bytes; }

void Trace::answered(uint32_t len_bytes, uint32_t time) {
  ++traffic.n_round_trips;
  traffic.n_bytes += len_bytes;
  if (time == 0) return;
  ++traffic.n_timed;
  traffic.host_us += time - 1;
}

void Trace::copied(uint64_t len_bytes) {
  if (is_on()) [[unlikely]]
    traffic.n_bytes += len_bytes;
}

TracedCall::TracedCall() {
  if (!Trace::is_on()) (void)Trace::decide();
  traffic = {};
  begun_ = Clock::now();
}

void TracedCall::finish(TracedEntry& entry, CUresult result, const TracedArgument* arguments,
                        size_t n) {
  if (!Trace::is_on()) return;
  const Clock::time_point ended = Clock::now();
  Output& out = output();
  const FinishedCall call{entry,
                          result,
                          static_cast<int>(syscall(SYS_gettid)),  // glibc 2.17 has no gettid()
                          us(begun_ - out.begun),
                          us(ended - begun_),
                          traffic,
                          arguments_of(entry, arguments, n)};
  const std::string line = line_of(call), event = event_of(call);
  const std::lock_guard lock(out.mutex);
  if (entry.n_calls++ == 0) {
    entry.next = out.entries;
    out.entries = &entry;
  }
  entry.total_ns += static_cast<uint64_t>((ended - begun_).count());
  entry.host_us += call.traffic.host_us;
  entry.n_round_trips += call.traffic.n_round_trips;
  entry.n_bytes += call.traffic.n_bytes;
  write_all(out.text_fd, line);
  write_all(out.chrome_fd, event);
}

}  // namespace kvgpu::guest
