// SPDX-License-Identifier: Apache-2.0
#include "builtins.h"

#include <cstdio>
#include <cstring>

#include "condition.h"

namespace software_gpu {
namespace {

/// Formats one printf call of one thread. Arguments lie in local memory as C would promote them.
class Formatter {
 public:
  Formatter(Block& block, const Instruction& in, uint32_t lane, uint64_t arguments)
      : block_(block), in_(in), lane_(lane), at_(arguments) {
    in_.space = Space::GENERIC;
  }

  bool format(const std::string& format, std::string* out) {
    for (size_t i = 0; i < format.size();) {
      if (format[i] != '%') {
        out->push_back(format[i++]);
      } else if (i + 1 < format.size() && format[i + 1] == '%') {
        out->push_back('%');
        i += 2;
      } else if (!conversion(format, &i, out)) {
        return false;
      }
    }
    return true;
  }

 private:
  bool argument(uint32_t n_bytes, uint64_t* value) {
    at_ = (at_ + n_bytes - 1) / n_bytes * n_bytes;
    const char* from = block_.resolve(in_, lane_, at_, n_bytes, 1);
    if (!from) return false;
    *value = 0;
    memcpy(value, from, n_bytes);
    at_ += n_bytes;
    return true;
  }

  bool conversion(const std::string& format, size_t* i, std::string* out) {
    std::string spec = "%";
    bool is_long = false;
    for (++*i; *i < format.size(); ++*i) {
      const char c = format[*i];
      if (c == '*') {
        uint64_t width;
        if (!argument(4, &width)) return false;
        spec += std::to_string(static_cast<int32_t>(width));
      } else if (strchr("-+ #0123456789.", c)) {
        spec += c;
      } else if (strchr("lzjh", c)) {
        is_long |= c != 'h';
      } else {
        break;
      }
    }
    const char kind = *i < format.size() ? format[(*i)++] : '\0';
    return print(spec, kind, is_long, out);
  }

  bool print(const std::string& spec, char kind, bool is_long, std::string* out) {
    uint64_t value;
    const auto emit = [&](auto typed, const char* suffix) {
      const std::string one = spec + suffix;
      const int length = snprintf(nullptr, 0, one.c_str(), typed);
      if (length < 0) return false;
      std::string text(static_cast<size_t>(length) + 1, '\0');
      snprintf(text.data(), text.size(), one.c_str(), typed);
      out->append(text, 0, static_cast<size_t>(length));
      return true;
    };
    const std::string modified = std::string(is_long ? "ll" : "") + kind;
    if (kind && strchr("di", kind)) {
      if (!argument(is_long ? 8 : 4, &value)) return false;
      if (is_long) return emit(static_cast<long long>(value), modified.c_str());
      return emit(static_cast<int>(value), modified.c_str());
    }
    if (kind && strchr("uoxX", kind)) {
      if (!argument(is_long ? 8 : 4, &value)) return false;
      if (is_long) return emit(static_cast<unsigned long long>(value), modified.c_str());
      return emit(static_cast<unsigned>(value), modified.c_str());
    }
    if (kind == 'c') return argument(4, &value) && emit(static_cast<int>(value), "c");
    if (kind == 'p') return argument(8, &value) && emit(reinterpret_cast<void*>(value), "p");
    if (kind && strchr("fFeEgGaA", kind)) {
      if (!argument(8, &value)) return false;
      double number;
      memcpy(&number, &value, sizeof number);
      return emit(number, modified.substr(modified.size() - 1).c_str());
    }
    if (kind == 's') {
      std::string inner;
      if (!argument(8, &value) || !block_.read_string(in_, lane_, value, &inner)) return false;
      return emit(inner.c_str(), "s");
    }
    out->append(spec);
    if (kind) out->push_back(kind);
    return true;
  }

  Block& block_;
  Instruction in_;
  uint32_t lane_;
  uint64_t at_;
};

void print_formatted(Block& block, const Instruction& in, const Call& call, const Lanes& lanes) {
  const uint64_t* format_row = block.row(call.arguments[0]);
  const uint64_t* argument_row = block.row(call.arguments[1]);
  uint64_t* result = call.results.empty() ? nullptr : block.row(call.results[0]);
  bool ok = true;
  std::string all;
  for_each(lanes, [&](uint32_t lane) {
    std::string format;
    if (!ok || !block.read_string(in, lane, format_row[lane], &format)) {
      ok = false;
      return;
    }
    ok = Formatter(block, in, lane, argument_row[lane]).format(format, &all);
    if (result) result[lane] = 1;
  });
  block.launch().printed->append(all);
}

// "(1,2,3)" as "[1,2,3]".
std::string in_brackets(std::string name) {
  name.front() = '[';
  name.back() = ']';
  return name;
}

void fail_assertion(Block& block, const Instruction& in, const Call& call, const Lanes& lanes) {
  const uint32_t lane = lanes.contiguous ? lanes.first : lanes.list[0];
  std::string message, file, function;
  const auto text = [&](size_t i, std::string* to) {
    return block.read_string(in, lane, block.row(call.arguments[i])[lane], to);
  };
  if (!text(0, &message) || !text(1, &file) || !text(3, &function)) return;
  const uint32_t line = static_cast<uint32_t>(block.row(call.arguments[2])[lane]);
  const std::string place = file + ":" + std::to_string(line) + ": " + function;
  const std::string failed = "Assertion `" + message + "` failed.";
  for_each(lanes, [&](uint32_t failing) {  // as driver 580 says it
    std::fprintf(stderr, "%s: block: %s, thread: %s %s\n", place.c_str(),
                 in_brackets(block.name()).c_str(), in_brackets(block.thread_name(failing)).c_str(),
                 failed.c_str());
  });
  block.fault(in, lane, CUDA_ERROR_ASSERT, place + ": " + failed);
}

/// The threads of a warp set it one after another, as they do when they store to one word.
void set_conditional(Block& block, const Instruction& in, const Call& call, const Lanes& lanes) {
  const uint64_t* handles = block.row(call.arguments[0]);
  const uint64_t* values = block.row(call.arguments[1]);
  for_each(lanes, [&](uint32_t lane) {
    if (!set_condition(handles[lane], static_cast<uint32_t>(values[lane])))
      block.fault(in, lane, CUDA_ERROR_LAUNCH_FAILED, "cudaGraphSetConditional of no condition");
  });
}

void allocate(Block& block, const Call& call, const Lanes& lanes) {
  const uint64_t* sizes = block.row(call.arguments[0]);
  uint64_t* results = block.row(call.results[0]);
  for_each(lanes,
           [&](uint32_t lane) { results[lane] = block.launch().heap->allocate(sizes[lane]); });
}

void release(Block& block, const Instruction& in, const Call& call, const Lanes& lanes) {
  const uint64_t* addresses = block.row(call.arguments[0]);
  for_each(lanes, [&](uint32_t lane) {
    if (addresses[lane] != 0 && !block.launch().heap->free(addresses[lane]))
      block.fault(in, lane, CUDA_ERROR_ILLEGAL_ADDRESS, "free of what malloc has not given");
  });
}

}  // namespace

void run_builtin(Block& block, const Instruction& in, const Call& call, const Lanes& lanes) {
  if (call.builtin == Builtin::VPRINTF) print_formatted(block, in, call, lanes);
  if (call.builtin == Builtin::ASSERTFAIL) fail_assertion(block, in, call, lanes);
  if (call.builtin == Builtin::MALLOC) allocate(block, call, lanes);
  if (call.builtin == Builtin::FREE) release(block, in, call, lanes);
  if (call.builtin == Builtin::SET_CONDITIONAL) set_conditional(block, in, call, lanes);
}

}  // namespace software_gpu
