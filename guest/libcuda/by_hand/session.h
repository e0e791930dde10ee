// SPDX-License-Identifier: Apache-2.0
// The process's session with its worker: connection, mapped block, the two rings, waiting, deferred
// errors.
//
// Trusts the host: it is the VM's. Lock order: command_mutex_ or error_mutex_, then event_mutex_,
// then one of the others. Never destroyed; a forked child has none (fork_child()).
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cuda_api.h"
#include "freed_memory.h"
#include "kvgpu/calls.h"
#include "kvgpu/control.h"
#include "kvgpu/layout.h"
#include "kvgpu/opcodes.gen.h"
#include "kvgpu/ring.h"
#include "log.h"
#include "objects.h"
#include "short_lock.h"
#include "trace.h"

struct msghdr;

namespace kvgpu::guest {

// Out values of a reply go here.
struct ReplyBuffer {
  void* data = nullptr;
  uint32_t capacity_bytes = 0;
  uint32_t len_bytes = 0;  // what came
};

struct DeviceState {
  wire::DeviceInfo info;
  Context* primary;
};

class Session {
 public:
  static Session& get() {
    Session* const made = made_.load(std::memory_order_acquire);
    return made != nullptr ? *made : make();
  }

  // cuInit: connects, maps, asks for the devices. Idempotent; what failed once is tried again at
  // the next call.
  CUresult open();
  static bool is_open() { return open_.load(std::memory_order_acquire); }
  bool is_forked_child() const { return forked_.load(std::memory_order_relaxed); }

  // The error that a call must return before it does anything: a deferred one, or the session's
  // end. Work of any thread may have been skipped with the failing call, so each thread is told of
  // each deferred error once; the first one that finds it acknowledges it. A thread whose first
  // call comes later is told, too, unless everybody who gave work before has been.
  CUresult pending_error() {
    if (!is_open()) [[unlikely]]
      return CUDA_ERROR_NOT_INITIALIZED;
    return is_told() ? CUDA_SUCCESS : take_error();
  }

  // A hint, of who is about to give work.
  void expect_record() const { commands_.expect_record(); }

  // Neither that nor a host function in the way.
  bool lets_go_on() const { return is_open() && is_told() && !thread_.runs_callback; }

  // The error of a context that is broken.
  CUresult fault() const {
    const uint64_t word = load_acquire(host_page_->error_word);  // pairs as in is_told()
    if (!ErrorWord::sticky(word)) [[likely]]
      return CUDA_SUCCESS;
    return static_cast<CUresult>(ErrorWord::error(word));
  }
  // What never goes away: that, or the session's end.
  CUresult lasting_error() const {
    const CUresult error = fault();
    return error != CUDA_SUCCESS ? error : ended_error();
  }

  // Fire and forget; with KVGPU_SYNC=1 the record's own result.
  template <typename... Parts>
  CUresult send(wire::Op op, int device, Parts... parts) {
    return post(op, device, Carries::NO_WORK, parts...);
  }
  // Waits for the reply.
  template <typename... Parts>
  CUresult call(wire::Op op, int device, ReplyBuffer* out, Parts... parts) {
    return ask(op, device, out, Carries::NO_WORK, parts...);
  }
  // The same for work of the GPU. What a thread gives after work of its own was skipped must not be
  // executed before it has been told: then this sends nothing and returns the deferred error.
  template <typename... Parts>
  [[gnu::always_inline]] CUresult send_work(wire::Op op, int device, const Parts&... parts) {
    return post(op, device, Carries::WORK, parts...);
  }
  // The same of work whose end the program may wait for by a number of this record.
  template <typename... Parts>
  CUresult send_marked_work(wire::Op op, int device, Parts... parts) {
    return post(op, device, Carries::MARKED_WORK, parts...);
  }
  template <typename... Parts>
  CUresult call_work(wire::Op op, int device, Parts... parts) {
    return ask(op, device, nullptr, Carries::WORK, parts...);
  }

  // What a stream frees of a pool, and what the same stream allocates of it (freed_memory.h).
  CUresult free_async(const FreedBlock& block);
  std::optional<uint64_t> take_freed(wire::Handle stream, wire::Handle pool, uint64_t bytes);

  // Has the host this record? An older one may not.
  [[gnu::always_inline]] bool speaks(wire::Op op) const {
    return wire::minor_of(op) == 1 || wire::minor_of(op) <= minor_;
  }

  // Tells the session's log on the host what this program misses; nothing where the host is older.
  void report_refused(const char* entry_point);

  // ---- progress (docs/architecture.md, "Completion")
  uint32_t allocate_word(uint64_t* first_number);  // N_PROGRESS_WORDS: none free
  void free_word(uint32_t word, uint64_t last_number);
  // Whose context is gone: nobody will write its number any more.
  void settle_word(uint32_t word, uint64_t last_number);
  bool reached(uint32_t word, uint64_t number) const {
    // acquire: pairs with the GPU's write; what it wrote before is visible
    const bool is_reached = load_acquire(progress_[word]) >= number;
    if (weakly_ordered_) load_fence();
    return is_reached;
  }
  // What a call answers that has waited for work. That the GPU has come so far says nothing where
  // earlier work was skipped and another thread has been told.
  CUresult finished() {
    thread_.has_work = false;
    return pending_error();
  }
  // NOT_READY: not yet. Errors: the number was lost with a failed record.
  CUresult query(uint32_t word, uint64_t number);
  CUresult wait(uint32_t word, uint64_t number);
  // Will this number never be written?
  bool is_lost(uint32_t word, uint64_t number) { return lost_error(word, number) != CUDA_SUCCESS; }
  // For waits outside: replies, host functions, the end of the session.
  void look_around() {
    pump();
    check_connection();
  }

  // Byte-stream form: from here on both sides use [address, address + bytes) of the session's
  // memory, or no longer do. Nothing where the memory is one.
  CUresult share(uint64_t address, uint64_t bytes) { return tell_share(address, bytes, 1); }
  CUresult unshare(uint64_t address, uint64_t bytes) { return tell_share(address, bytes, 0); }

  bool is_byte_stream() const { return is_byte_stream_; }

  std::vector<DeviceState>& devices() { return devices_; }
  DeviceState* find_device(CUdevice device) {  // null: there is none
    const bool is_known = device >= 0 && static_cast<size_t>(device) < devices_.size();
    return is_known ? &devices_[static_cast<size_t>(device)] : nullptr;
  }
  int driver_version() const { return driver_version_; }
  std::byte* slab() const { return block_ + SLAB_OFF; }
  uint64_t slab_address() const { return reinterpret_cast<uint64_t>(slab()); }
  int region_fd() const { return region_fd_; }

  // A graph that kernels of any other graph may launch has kernels that may print.
  std::atomic<bool> device_graphs_print{false};

  // ---- host functions
  using HostFunction = std::function<void(CUresult status)>;
  // Returns the id for the worker. It is forgotten after its run.
  uint64_t add_host_function(HostFunction function);
  void drop_host_function(uint64_t id);  // its record was not sent, or failed at once
  // Of a graph: forgotten when nobody keeps it and no launch that runs it is under way. The caller
  // is the first who keeps it.
  uint64_t add_graph_function(CUhostFn function, void* user);
  void keep_function(uint64_t id);
  void release_function(uint64_t id);
  [[nodiscard]] bool find_graph_function(uint64_t id, CUDA_HOST_NODE_PARAMS* found);
  // A launch that runs each of these once.
  void expect_callbacks(const std::vector<GraphExec::HostNode>& nodes);
  void expect_no_callbacks(const std::vector<GraphExec::HostNode>& nodes);  // of one that failed
  // Of a user object: once, when the worker asks for it, which may be never.
  uint64_t add_destructor(HostFunction function);
  void drop_destructor(uint64_t id);  // the worker never will
  static bool in_callback() { return thread_.runs_callback; }

  CUresult ended_error() const { return ended_.load(std::memory_order_relaxed); }

 private:
  struct Pending {
    ReplyBuffer* out;
    std::atomic<bool> done{false};  // release by dispatch(), acquire by who waits
    CUresult result = CUDA_SUCCESS;
    bool is_deferred = false;  // skipped: the result is the session's deferred error
    uint32_t time = 0;         // what the worker took, as the reply says it
    uint32_t len_bytes = 0;    // of the reply
  };
  struct Expected {
    uint64_t call_id;
    Pending* pending;
  };
  struct HostEntry {
    HostFunction function;  // of a stream; of a graph:
    CUDA_HOST_NODE_PARAMS graph_function{};
    uint64_t n_keepers = 0, n_expected = 0;
    bool is_destructor = false;
    bool is_over() const { return n_keepers == 0 && n_expected == 0; }
  };
  uint64_t add_entry(HostEntry entry);  // holding callback_mutex_
  struct Lost {                         // numbers that will never be written: (from, to]
    uint64_t from, to;
    CUresult error;
  };
  static constexpr size_t MAX_LOST = 16;  // ranges of a word; the oldest become one

  static constexpr uint64_t NEW_THREAD = ~0ull;
  struct Thread {
    uint64_t told = NEW_THREAD;  // what it knows of deferred errors: the error word
    bool has_work = false;       // given, and not waited for
    bool runs_callback = false;
    uint16_t number = 0;  // among the process's threads; of more than 65,536 two may share one
  };
  struct ThreadEnd {
    ~ThreadEnd();
  };

  // Does the thread know all errors that there are?
  bool is_told() const {
    // acquire: pairs with the worker's release in Poison::fail()
    return load_acquire(host_page_->error_word) == thread_.told &&
           ended_.load(std::memory_order_relaxed) == CUDA_SUCCESS;
  }

  static Session& make();
  static inline std::atomic<Session*> made_{nullptr};  // release by make(), acquire by get()

  static CUresult too_new(wire::Op op);

  CUresult open_locked();
  CUresult connect();
  [[nodiscard]] ssize_t receive_answer(msghdr* message);
  CUresult greet();
  CUresult map(const control::Opened& opened);
  void map_registers(int fd);
  CUresult refused(const char* frame, size_t len_bytes);
  CUresult take_error();
  void join_threads();
  void leave_threads();
  CUresult acknowledge(uint64_t word, CUresult error);
  void mark_lost(CUresult error);
  CUresult lost_error(uint32_t word, uint64_t number);  // SUCCESS: not lost
  void forget_connection();

  enum class Carries { WORK, MARKED_WORK, NO_WORK };

  template <typename... Parts>
  [[gnu::always_inline]] CUresult post(wire::Op op, int device, Carries what,
                                       const Parts&... parts) {
    if (every_call_waits_) [[unlikely]]
      return ask(op, device, nullptr, what, parts...);
    if (!speaks(op)) return too_new(op);
    wire::Header header{};
    header.opcode = static_cast<uint16_t>(op);
    header.flags = wire::NOREPLY;
    return submit(&header, device, what, parts...);
  }
  template <typename... Parts>
  CUresult ask(wire::Op op, int device, ReplyBuffer* out, Carries what, Parts... parts) {
    if (!speaks(op)) return too_new(op);
    expect_record();
    Pending pending{out};
    wire::Header header{};
    header.opcode = static_cast<uint16_t>(op);
    if (Trace::is_on()) [[unlikely]]
      header.flags = wire::TIMED;
    header.call_id = expect(&pending);
    const CUresult result = submit(&header, device, what, parts...);
    return result == CUDA_SUCCESS ? wait_reply(header.call_id, &pending)
                                  : abandon(header.call_id, result);
  }
  // Part of who calls it, where the sizes of the parts are known, and the thread's own words are at
  // hand.
  template <typename... Parts>
  [[gnu::always_inline]] CUresult submit(wire::Header* header, int device, Carries what,
                                         const Parts&... parts) {
    const uint32_t len_bytes = sizeof *header + (0 + ... + parts.len_bytes);
    if (len_bytes > wire::MAX_RECORD_BYTES) return CUDA_ERROR_NOT_SUPPORTED;
    header->target = wire::make_target(0, static_cast<uint32_t>(device), thread_.number);
    {
      std::unique_lock lock(command_mutex_);
      for (;;) {
        if (what != Carries::NO_WORK) {
          if (const CUresult bad = begin_work(lock)) return bad;
        }
        if (!freed_.empty()) [[unlikely]] {
          const bool is_first = what == Carries::WORK && (header->flags & wire::NOREPLY) != 0 &&
                                FreedMemory::may_precede(static_cast<wire::Op>(header->opcode));
          const CUresult bad = is_first ? CUDA_SUCCESS : write_freed();
          if (bad != CUDA_SUCCESS) return bad;
        }
        if (commands_.reserve(len_bytes)) [[likely]]
          break;
        // Others may have been told of errors, or have freed memory, meanwhile.
        if (const CUresult bad = wait_for_room(len_bytes, &lock)) return bad;
      }
      commands_.write(*header, parts...);
    }
    if (Trace::is_on()) [[unlikely]]
      Trace::sent(len_bytes);
    if (logs(Level::TRACE)) [[unlikely]] {
      log(Level::TRACE, "opcode %u, %u bytes, call %llu", header->opcode, len_bytes,
          static_cast<unsigned long long>(header->call_id));
    }
    kick_if_asleep();
    return CUDA_SUCCESS;
  }
  // These hold command_mutex_. The thread gives work: it has been told of what was skipped.
  [[gnu::always_inline]] CUresult begin_work(std::unique_lock<ShortLock>& lock) {
    while (thread_.told != acknowledged_) [[unlikely]] {
      lock.unlock();
      if (const CUresult bad = take_error()) return bad;
      lock.lock();
    }
    thread_.has_work = true;
    return CUDA_SUCCESS;
  }
  CUresult write_freed();
  // Room is reserved after it. `lock`, held then, too, is free meanwhile: where all wait for room,
  // each has its turn, for the worker may take what several threads give side by side.
  CUresult wait_for_room(uint32_t len_bytes, std::unique_lock<ShortLock>* lock = nullptr);
  void kick_if_asleep();  // after what was committed, and command_mutex_ given back
  void kick();
  CUresult tell_share(uint64_t address, uint64_t bytes, uint64_t on);

  uint64_t expect(Pending* pending);
  Pending* take_pending(uint64_t call_id);
  CUresult wait_reply(uint64_t call_id, Pending* pending);
  CUresult reply_result(const Pending& pending);
  CUresult abandon(uint64_t call_id, CUresult result);

  // Takes what has come on the event ring, if no other thread is doing so; with `wanted` no more
  // than that reply and what is before it.
  void pump(const Pending* wanted = nullptr);
  void dispatch(const wire::Header& header, const std::byte* body, uint32_t len_bytes);
  // Notices the end of the session.
  void check_connection();
  void check_worker();
  void end(CUresult error, const char* reason);
  void run_callbacks();
  void await_callbacks(std::unique_lock<std::mutex>& lock);

  static void fork_child();
  static void at_load();

  bool every_call_waits_ = false;  // set before open_
  std::mutex open_mutex_;
  static constinit std::atomic<bool> open_;  // release by open(), acquire by is_open()
  std::atomic<int> n_opening_{0};            // threads in open()
  std::atomic<bool> forked_{false};
  std::atomic<CUresult> ended_{CUDA_SUCCESS};
  int socket_ = -1;
  int region_fd_ = -1;
  int kick_fd_ = -1;  // on the worker's host only
  // BAR 0 of the VM's device, with the doorbell. Null, and no kick_fd_: kicks go by the socket.
  std::byte* registers_ = nullptr;
  uint32_t doorbell_ = 0;  // what rings ours
  int worker_fd_ = -1;     // on the worker's host only: readable once the worker has ended
  std::atomic<bool> detached_{false};  // kvgpud has left, the worker has not
  uint32_t session_id_ = 0;
  std::byte* block_ = nullptr;
  HostPage* host_page_ = nullptr;
  GuestPage* guest_page_ = nullptr;
  // Release by the GPU (or by dispatch() for PROGRESS records), acquire by queries and waits.
  uint64_t* progress_ = nullptr;
  std::vector<uint64_t> told_progress_;  // the words, where progress comes as records
  bool progress_by_records_ = false;
  bool weakly_ordered_ = false;  // the region's memory is write-combining
  bool is_byte_stream_ = false;  // the host has other memory: an agent carries what changes
  std::vector<DeviceState> devices_;
  int driver_version_ = 0;
  uint16_t minor_ = 1;  // of the protocol, that both sides speak
  uint32_t features_ = 0;

  // Lines of their own: who waits for the lock looks at it all the time, and what comes before it
  // is read by all.
  alignas(64) ShortLock command_mutex_;
  alignas(64) Producer commands_;
  // Of the ring's 256 KiB, for one of several threads that wait for room.
  static constexpr uint64_t SHARE_BYTES = 16 << 10;
  FreedMemory freed_;  // what is still to be written there; under command_mutex_, too
  std::atomic<uint64_t> kicked_{0};

  alignas(64) std::mutex event_mutex_;
  Consumer events_;
  std::mutex pending_mutex_;
  std::vector<Expected> pending_;  // few: of each thread that waits
  uint64_t next_call_id_ = 1;

  static constinit thread_local Thread thread_;
  std::mutex error_mutex_;
  uint64_t acknowledged_ = 0;  // error word; under command_mutex_, too
  uint64_t known_to_all_ = 0;
  // Threads that have made a call, and those of them who are still to be told of acknowledged_. One
  // that ends and may leave lost work behind is counted for ever.
  size_t n_threads_ = 0, n_untold_ = 0;
  uint16_t n_joined_ = 0;  // all that there have been
  std::mutex word_mutex_;
  std::vector<uint64_t> word_last_;  // number last asked for, by word
  std::deque<uint32_t> free_words_;
  std::atomic<bool> any_lost_{false};  // release by mark_lost(), acquire by queries
  std::unordered_map<uint32_t, std::vector<Lost>> lost_;  // sorted

  std::mutex callback_mutex_;
  std::condition_variable callback_wanted_;
  std::unordered_map<uint64_t, HostEntry> host_functions_;
  std::deque<wire::Callback> callbacks_;
  uint64_t next_host_function_ = 1;
  uint64_t expected_callbacks_ = 0;
  uint64_t n_destructors_ = 0;
  bool callback_thread_runs_ = false;

 public:
  void note_issued(uint32_t word, uint64_t number) {
    std::atomic_ref<uint64_t>(word_last_[word]).store(number, std::memory_order_relaxed);
  }
};

}  // namespace kvgpu::guest
