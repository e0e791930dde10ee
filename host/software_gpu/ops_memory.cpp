// SPDX-License-Identifier: Apache-2.0
// Loads, stores, fences. Every access is atomic on its own (a plain instruction on the CPU), so
// that programs that race as GPU programs may are defined here too.
#include <cstring>
#include <string>

#include "decoder.h"
#include "map.h"

namespace software_gpu {

void full_fence() {
  // A read-modify-write orders everything on x86 and, unlike a fence, is understood by TSan.
  static std::atomic<int> word;
  word.fetch_add(0, std::memory_order_seq_cst);
}

namespace {

/// Signed values are extended to the slot, because the register may be wider than the type.
template <class T>
uint64_t extended(T value) {
  if constexpr (std::is_signed_v<T>)
    return static_cast<uint64_t>(static_cast<int64_t>(value));
  else
    return value;
}

template <class T>
void load(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t* a = block.row(in.a);
  const uint64_t offset = static_cast<uint64_t>(in.imm);
  for_each(lanes, [&](uint32_t i) {
    const char* from = block.resolve(in, i, a[i] + offset, sizeof(T), sizeof(T));
    if (from)
      d[i] = extended<T>(__atomic_load_n(reinterpret_cast<const T*>(from), __ATOMIC_ACQUIRE));
  });
}

/// Volatile, relaxed or acquire: who reads again what the register holds already polls.
template <class T>
void load_strong(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t* a = block.row(in.a);
  const uint64_t offset = static_cast<uint64_t>(in.imm);
  bool changed = false;
  for_each(lanes, [&](uint32_t i) {
    const char* from = block.resolve(in, i, a[i] + offset, sizeof(T), sizeof(T));
    if (!from) return;
    const uint64_t value =
        extended<T>(__atomic_load_n(reinterpret_cast<const T*>(from), __ATOMIC_ACQUIRE));
    changed |= value != d[i];
    d[i] = value;
  });
  if (!changed) block.poll();
}

template <class T>
void store(Block& block, const Instruction& in, const Lanes& lanes) {
  const uint64_t* a = block.row(in.a);
  const uint64_t* b = block.row(in.b);
  const uint64_t offset = static_cast<uint64_t>(in.imm);
  for_each(lanes, [&](uint32_t i) {
    char* to = block.resolve(in, i, a[i] + offset, sizeof(T), sizeof(T));
    if (to) __atomic_store_n(reinterpret_cast<T*>(to), static_cast<T>(b[i]), __ATOMIC_RELEASE);
  });
}

template <class T>
void load_vector(Block& block, const Instruction& in, const Lanes& lanes) {
  const uint64_t* a = block.row(in.a);
  const std::vector<Row>& rows = block.vector(in);
  const uint64_t offset = static_cast<uint64_t>(in.imm);
  const uint32_t n_bytes = static_cast<uint32_t>(sizeof(T) * rows.size());
  bool changed = !in.strong;
  for_each(lanes, [&](uint32_t i) {
    const char* from = block.resolve(in, i, a[i] + offset, n_bytes, n_bytes);
    if (!from) return;
    uint64_t values[4] = {};  // a destination may be the address register
    for (size_t k = 0; k < rows.size(); ++k)
      values[k] =
          extended<T>(__atomic_load_n(reinterpret_cast<const T*>(from) + k, __ATOMIC_ACQUIRE));
    for (size_t k = 0; k < rows.size(); ++k) {
      uint64_t& slot = block.row(rows[k])[i];
      changed |= slot != values[k];
      slot = values[k];
    }
  });
  if (!changed) block.poll();
}

template <class T>
void store_vector(Block& block, const Instruction& in, const Lanes& lanes) {
  const uint64_t* a = block.row(in.a);
  const std::vector<Row>& rows = block.vector(in);
  const uint64_t offset = static_cast<uint64_t>(in.imm);
  const uint32_t n_bytes = static_cast<uint32_t>(sizeof(T) * rows.size());
  for_each(lanes, [&](uint32_t i) {
    char* to = block.resolve(in, i, a[i] + offset, n_bytes, n_bytes);
    if (!to) return;
    for (size_t k = 0; k < rows.size(); ++k)
      __atomic_store_n(reinterpret_cast<T*>(to) + k, static_cast<T>(block.row(rows[k])[i]),
                       __ATOMIC_RELEASE);
  });
}

/// A kernel's parameter: the same for all threads, its place checked when decoded.
template <class T>
void load_parameter(Block& block, const Instruction& in, const Lanes& lanes) {
  T value;
  memcpy(&value, reinterpret_cast<const char*>(block.launch().parameters.data()) + in.imm,
         sizeof value);
  const uint64_t slot = extended<T>(value);
  uint64_t* d = block.row(in.dst);
  for_each(lanes, [=](uint32_t i) { d[i] = slot; });
}

/// Parameters of called functions lie in rows; `imm` is the bit position in the slot.
template <class T>
void load_row(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t* a = block.row(in.a);
  const int64_t shift = in.imm;
  for_each(lanes, [=](uint32_t i) { d[i] = extended<T>(static_cast<T>(a[i] >> shift)); });
}

template <class T>
void store_row(Block& block, const Instruction& in, const Lanes& lanes) {
  uint64_t* d = block.row(in.dst);
  const uint64_t* b = block.row(in.b);
  const int64_t shift = in.imm;
  const uint64_t mask = static_cast<uint64_t>(std::make_unsigned_t<T>(-1)) << shift;
  for_each(lanes, [=](uint32_t i) { d[i] = (d[i] & ~mask) | (b[i] << shift & mask); });
}

struct Handlers {
  Handler load, load_strong, store, load_vector, store_vector, load_parameter, load_row, store_row;
};

template <class T>
constexpr Handlers HANDLERS = {load<T>,         load_strong<T>,    store<T>,    load_vector<T>,
                               store_vector<T>, load_parameter<T>, load_row<T>, store_row<T>};

const Handlers* handlers(Type type) {
  switch (type) {
    case Type::S8:
      return &HANDLERS<int8_t>;
    case Type::S16:
      return &HANDLERS<int16_t>;
    case Type::S32:
      return &HANDLERS<int32_t>;
    case Type::PRED:
    case Type::NONE:
      return nullptr;
    default:
      break;
  }
  switch (size_bytes(type)) {
    case 1:
      return &HANDLERS<uint8_t>;
    case 2:
      return &HANDLERS<uint16_t>;
    case 4:
      return &HANDLERS<uint32_t>;
    default:
      return &HANDLERS<uint64_t>;
  }
}

Type take_memory_modifiers(Decoding& d) {
  Modifiers& m = d.modifiers;
  d.out.releases = m.take("release");
  for (const char* strong : {"volatile", "relaxed", "acquire", "mmio"})
    d.out.strong |= m.take(strong);
  d.out.strong |= d.out.releases;
  m.take("weak");
  m.ignore({"cta", "gpu", "sys", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt"});
  m.ignore({"L1::evict_normal", "L1::evict_last", "L1::evict_first", "L1::evict_unchanged",
            "L1::no_allocate"});
  m.ignore({"L2::64B", "L2::128B", "L2::256B"});
  m.ignore({"global", "const"});
  if (m.take("shared")) d.out.space = Space::SHARED;
  if (m.take("local")) d.out.space = Space::LOCAL;
  d.out.n_vector = m.take_vector();
  return m.take_type();
}

void set_access(Decoding& d, Access access, Type type) {
  d.out.access = access;
  d.out.access_bytes = static_cast<uint8_t>(size_bytes(type) * d.out.n_vector);
}

/// True when the access was to a parameter and is decoded.
bool decode_parameter_access(Decoding& d, const Handlers& handlers, Type type, bool is_load) {
  const ptx::Operand& address = d.operand(is_load ? 0 + 1 : 0);
  const ptx::Operand& value = d.operand(is_load ? 0 : 1);
  const bool has_name = address.kind != ptx::Operand::Kind::TEXEL && !address.name.empty();
  const Symbol* symbol = has_name ? d.decoder.find(address.name) : nullptr;
  if (!symbol ||
      (symbol->kind != Symbol::Kind::ENTRY_PARAMETER && symbol->kind != Symbol::Kind::ROWS))
    return false;
  const Symbol target = *symbol;
  const std::vector<ptx::Operand> elements =
      d.out.n_vector > 1 ? value.elements : std::vector<ptx::Operand>{value};
  const uint32_t element_bytes = size_bytes(type);
  for (size_t k = 0; k < elements.size(); ++k) {
    Instruction out = d.out;
    const uint64_t offset = static_cast<uint64_t>(address.value) + k * element_bytes;
    if (offset > MAX_PARAMETER_BYTES) d.fail("beyond the parameters");
    if (target.kind == Symbol::Kind::ENTRY_PARAMETER) {
      const uint64_t position = target.value + offset;
      if (!is_load) d.fail("a kernel's parameters cannot be written");
      if (position + element_bytes > d.decoder.function().parameter_bytes)
        d.fail("beyond the kernel's parameters");
      out.imm = static_cast<int64_t>(position);
      out.handler = handlers.load_parameter;
    } else {
      if (offset % 8 + element_bytes > 8 || offset / 8 >= target.n_rows)
        d.fail("beyond the parameter");
      const Row row = static_cast<Row>(target.value + offset / 8);
      out.imm = static_cast<int64_t>(offset % 8 * 8);
      out.handler = is_load ? handlers.load_row : handlers.store_row;
      (is_load ? out.a : out.dst) = row;
    }
    if (is_load)
      out.dst = d.decoder.destination(elements[k]);
    else
      out.b = d.decoder.value(elements[k], type);
    if (k + 1 < elements.size())
      d.decoder.emit(out);
    else
      d.out = out;
  }
  return true;
}

void decode_load(Decoding& d) {
  const bool parameter = d.modifiers.take("param") || d.modifiers.take("param::entry") ||
                         d.modifiers.take("param::func");
  const Type type = take_memory_modifiers(d);
  const Handlers* h = handlers(type);
  if (!h) d.fail("this type is not supported");
  if (parameter && decode_parameter_access(d, *h, type, true)) return;
  set_access(d, Access::READ, type);
  d.decoder.address(d.operand(1), &d.out);
  if (d.out.n_vector > 1) {
    d.out.extra = d.decoder.add_vector(d.operand(0), type, true);
    d.out.handler = h->load_vector;
    if (d.operand(0).elements.size() != d.out.n_vector) d.fail("wrong number of elements");
  } else {
    d.set_dst();
    d.out.handler = d.out.strong ? h->load_strong : h->load;
  }
}

void decode_store(Decoding& d) {
  const bool parameter = d.modifiers.take("param") || d.modifiers.take("param::func");
  const Type type = take_memory_modifiers(d);
  const Handlers* h = handlers(type);
  if (!h) d.fail("this type is not supported");
  if (parameter) {
    if (!decode_parameter_access(d, *h, type, false)) d.fail("unknown parameter");
    return;
  }
  set_access(d, Access::WRITE, type);
  d.decoder.address(d.operand(0), &d.out);
  if (d.out.n_vector > 1) {
    d.out.extra = d.decoder.add_vector(d.operand(1), type, false);
    d.out.handler = h->store_vector;
    if (d.operand(1).elements.size() != d.out.n_vector) d.fail("wrong number of elements");
  } else {
    d.out.b = d.value(1, type);
    d.out.handler = h->store;
  }
}

/// cp.async: `b` and `d` are the source and its offset, `mode` says how many bytes there are, zeros
/// follow. It is done when it is issued, so nothing remains to be waited for.
void copy_async(Block& block, const Instruction& in, const Lanes& lanes) {
  const uint64_t* a = block.row(in.a);
  const uint64_t* b = block.row(in.b);
  const uint64_t* offset = block.row(in.d);
  const uint32_t n_bytes = in.access_bytes, n_source_bytes = in.mode;
  Instruction source = in;
  source.space = Space::GENERIC;
  for_each(lanes, [&](uint32_t i) {
    alignas(16) char bytes[16] = {};
    char* to = block.resolve(in, i, a[i] + static_cast<uint64_t>(in.imm), n_bytes, n_bytes);
    if (!to) return;
    if (n_source_bytes != 0) {
      const char* from = block.resolve(source, i, b[i] + offset[i], n_source_bytes, n_bytes);
      if (!from) return;
      for (uint32_t k = 0; k < n_source_bytes; ++k)
        bytes[k] = __atomic_load_n(from + k, __ATOMIC_RELAXED);
    }
    for (uint32_t k = 0; k < n_bytes; k += 4)
      __atomic_store_n(reinterpret_cast<uint32_t*>(to + k),
                       *reinterpret_cast<const uint32_t*>(bytes + k), __ATOMIC_RELEASE);
  });
}

void fence(Block&, const Instruction&, const Lanes&) { full_fence(); }
void nothing(Block&, const Instruction&, const Lanes&) {}

uint8_t number(Decoding& d, size_t i, int64_t max) {
  const ptx::Operand& operand = d.operand(i);
  if (operand.kind != ptx::Operand::Kind::INTEGER || operand.value < 0 || operand.value > max)
    d.fail("a size must be a number here, and at most " + std::to_string(max));
  return static_cast<uint8_t>(operand.value);
}

void decode_copy(Decoding& d) {
  Modifiers& m = d.modifiers;
  m.take("async");
  d.out.handler = nothing;
  for (const char* waiting : {"commit_group", "wait_group", "wait_all"})
    if (m.take(waiting)) return;
  const bool only_16 = m.take("cg");
  m.ignore({"ca", "shared", "shared::cta", "global", "L2::64B", "L2::128B", "L2::256B"});
  const uint8_t n_bytes = number(d, 2, 16);
  if (n_bytes != 16 && (only_16 || (n_bytes != 4 && n_bytes != 8))) d.fail("not such a size");
  d.out.mode = d.n_operands() > 3 ? number(d, 3, n_bytes) : n_bytes;
  Instruction source;
  d.decoder.address(d.operand(1), &source);
  d.out.b = source.a;
  d.out.d = d.decoder.constant(static_cast<uint64_t>(source.imm));
  d.decoder.address(d.operand(0), &d.out);
  d.out.space = Space::SHARED;
  d.out.access = Access::WRITE;
  d.out.access_bytes = n_bytes;
  d.out.handler = copy_async;
}

void decode_fence(Decoding& d) {
  d.modifiers.ignore({"cta", "gl", "sys", "gpu", "sc", "acq_rel", "acquire", "release"});
  d.out.handler = fence;
  d.out.access = Access::FENCE;
}

void decode_prefetch(Decoding& d) {
  d.modifiers.ignore({"global", "local", "L1", "L2", "L2::evict_last", "L2::evict_normal"});
  d.out.handler = nothing;
}

}  // namespace

void add_memory_operations(OperationTable* table) {
  (*table)["ld"] = (*table)["ldu"] = decode_load;
  (*table)["st"] = decode_store;
  (*table)["membar"] = (*table)["fence"] = decode_fence;
  (*table)["cp"] = decode_copy;
  (*table)["prefetch"] = (*table)["prefetchu"] = decode_prefetch;
}

}  // namespace software_gpu
