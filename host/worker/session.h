// SPDX-License-Identifier: Apache-2.0
// One guest process's session: what the reader, the executors and the handlers share.
//
// Trusts nothing in the region: records are copied once, handles and ranges are looked
// up. Locks: none is held while another is taken, but for those of host memory. During a driver
// call only those, a Watch, creation_mutex_, a ReadyContext's and those of the extents are held.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "activity.h"
#include "backlog.h"
#include "blobs.h"
#include "callbacks.h"
#include "conditions.h"
#include "device_order.h"
#include "device_resources.h"
#include "driver.h"
#include "event_ring.h"
#include "executor.h"
#include "handles.h"
#include "host_memory.h"
#include "images.h"
#include "kvgpu/calls.h"
#include "kvgpu/layout.h"
#include "lanes.h"
#include "last_mark.h"
#include "links.h"
#include "output.h"
#include "poison.h"
#include "pool.h"
#include "ready_context.h"
#include "task.h"
#include "virtual_memory.h"
#include "watcher.h"

namespace kvgpu::worker {

class Control;
class ProgressWatch;

void prepare_driver_thread(const DriverTable& driver);

struct SessionConfig {
  uint32_t session_id = 0;
  uint64_t region_bytes = 0;
  uint64_t block_offset = 0;
  uint64_t window = 0;
  int region_fd = -1;
  int kick_fd = -1;
  int wake_fd = -1;  // byte-stream form: of the end that empties the event ring
};

enum class ExitStatus { ENDED = 0, FAILED = 1, VIOLATION = 3 };

// Ends the process, which is the session. The driver frees all that it had; nothing is unwound on
// purpose.
[[noreturn]] void end_session(const std::string& reason, ExitStatus status);

class Session {
 public:
  Session(const SessionConfig& config, std::byte* block, const DriverTable* driver, int n_devices,
          Control* control);

  // The process's one session.
  static Session& current();

  // Starts the threads that execute records, where they are others than the reader's, and watch for
  // faults.
  void start();
  // Runs until the session ends; does not return.
  [[noreturn]] void read_commands();

  // The same in single steps, for who has no threads (tests/fuzz). The next record of the ring is
  // checked and handed to its executor; the next record of any executor runs. False: there is none.
  bool read_command();
  bool execute_one();

  const DriverTable* const driver;
  const int n_devices;
  HandleTable handles;
  Blobs blobs;
  Links links;
  Images images;
  VirtualMemory virtual_memory;
  HostMemory host_memory{this};
  ReadyContext ready_context;
  std::atomic<uint32_t> n_launch_graphs{0};     // of all streams (launch_graph.h)
  std::vector<wire::DeviceInfo> known_devices;  // from when the worker waited; else to be asked for
  DeviceResources device_resources;
  Conditions conditions;
  Activity activity;
  std::atomic<bool> ending{false};
  std::byte* const block;
  HostPage* const host_page;
  Poison poison;
  Dependencies dependencies;
  EventRing events;
  Callbacks callbacks;
  Output output;
  std::atomic<bool> has_references{false};  // to textures and surfaces; written by who names one
  std::atomic<uint16_t> guest_minor{0};     // of the protocol; written by hello()
  std::atomic<bool> is_kicked_directly{false};  // no kick can be lost; written by hello()
  ProgressWatch* progress = nullptr;            // where the guest cannot see what the GPU writes
  Watcher watcher;
  LastMark last_mark;
  Control* const control;
  const SessionConfig config;

  // What a graph's kernel node has taken over from its function or context when it was made is
  // older than that, once this is another number.
  [[nodiscard]] uint64_t n_function_changes() const {
    // acquire: pairs with the release in note_function_change()
    const uint64_t n_told = n_function_changes_.load(std::memory_order_acquire);
    return n_told + handles.n_gone(wire::Kind::FUNCTION);
  }
  // After the driver has been told of one.
  void note_function_change() {
    // release: pairs with the acquire in n_function_changes()
    n_function_changes_.fetch_add(1, std::memory_order_release);
  }

  // Makes the context current on this thread.
  [[nodiscard]] CUresult enter(wire::Handle context);
  [[nodiscard]] CUresult enter(const Context& context);
  // Of the stream; and makes the stream itself, where it is new or its creation has failed late:
  // without another try no number of it would ever be written.
  [[nodiscard]] CUresult enter(Stream& stream);

  // Delivers what kernels have printed. The driver has it when somebody waits in it, here for
  // nothing.
  [[nodiscard]] CUresult print(const Context& context);
  // Before the guest hears of a fault.
  void print_last_words();

  // A record that breaks the protocol ends the session.
  [[noreturn]] CUresult violation(const Task& task);

  // Makes progress words, slab and extents known to the driver, once, when the first context
  // exists.
  [[nodiscard]] CUresult register_session_memory(const Context& context);
  // Before a context ends: if it is the one they were made in they would go with it.
  void end_registrations(const Context& going);
  // Makes the context current in which session memory is registered.
  [[nodiscard]] CUresult enter_registered();
  // Ends a context that is in no table any more. Session memory is registered in one context for
  // all: that one is kept, without the guest's memory, until it is the last. `arrays`: what it had.
  struct Arrays {
    std::vector<CUarray> plain;
    std::vector<CUmipmappedArray> mipmapped;
  };
  [[nodiscard]] CUresult retire_context(const Context& context, wire::Handle handle,
                                        const Arrays& arrays);
  [[nodiscard]] CUresult add_extent(uint64_t region_off, uint64_t len_bytes);
  // Session memory at another address than its own, which is mapped there.
  [[nodiscard]] CUresult add_registered(uint64_t address, uint64_t len_bytes);
  void remove_registered(uint64_t address);

  // Device memory that the guest owns: an address that goes to the driver as a copy's source or
  // destination lies in here, or is session memory. The worker's own memory has addresses, too.
  struct DeviceRange {
    uint64_t bytes = 0;
    wire::Handle context = 0;  // with which it goes; 0: none
    bool of_graph = false;     // at its address for good, whether it is allocated just now or not
    bool is_mapping = false;   // of cuMemMap: what adjoins is one piece of memory
    wire::Handle module = 0;   // or library, whose variable it is
  };
  void add_device_range(uint64_t address, const DeviceRange& range);
  DeviceRange remove_device_range(uint64_t address);  // 0 bytes: none; a graph's stays
  std::vector<uint64_t> forget_device_ranges(wire::Handle context);  // returns where they began
  void forget(wire::Handle handle);  // of what the driver has ended, and what goes with it
  void add_mapping(uint64_t address, uint64_t bytes);
  // Those that lie in [address, address + bytes), with their sizes; they are forgotten.
  std::vector<std::pair<uint64_t, uint64_t>> take_mappings(uint64_t address, uint64_t bytes);
  // Is any part of [address, address + bytes) one of them?
  [[nodiscard]] bool overlaps_mapping(uint64_t address, uint64_t bytes) const;
  [[nodiscard]] bool is_guest_memory(uint64_t address, uint64_t len_bytes) const;
  // How much there is of it on each device; of a graph's memory nobody knows whether it is there.
  std::vector<uint64_t> device_bytes() const;
  // Of all devices together, now and at most.
  std::pair<uint64_t, uint64_t> memory_and_peak() const;

  // Does [address, address + len) lie in the slab or in one extent?
  [[nodiscard]] bool is_session_memory(uint64_t address, uint64_t len_bytes) const;

  uint64_t address_of(uint64_t region_off) const { return config.window + region_off; }
  std::byte* slab() const { return block + SLAB_OFF; }
  uint64_t* progress_word(uint64_t index) const;  // null: no such word

  // Driver 580's linker keeps some of its state in the thread: after calls for one link by several
  // threads its next compilation crashes or hangs. All of them are made by one.
  CUresult link(const std::function<CUresult()>& call);

  // Have the executors done what they had been given when the record was read?
  [[nodiscard]] bool have_done(const DeviceSeqs& before) const;
  // Waits until they have.
  void wait_for_others(const DeviceSeqs& before) const;
  // Executes some of what is held and may go by now, of all that the executor's thread has: what it
  // holds itself may wait for that. False: there is none.
  bool release_some(Executor& executor);

 private:
  void uncount(const DeviceRange& range);  // from device_ranges_
  CUresult register_range(uint64_t address, uint64_t len_bytes);
  void handle_record(Task& task);  // whose header has been read
  void number(Task* task);
  void take_body(Task* task, std::byte* to);
  void read_launches(const Task& first, Executor& executor);
  [[nodiscard]] bool are_several_at_work(const Task& task, Executor& executor);
  void give_each_a_thread();
  bool release_some_of_all();
  bool holds_any();
  void hand_over(Task task, Executor& executor);
  void handle_direct(const Task& task);
  bool looks_on(Spin* spin) const;
  void sleep_until_kicked();

  Consumer commands_;
  Pool pool_;
  Pool linker_;
  std::vector<std::unique_ptr<Executor>> executors_;
  DeviceOrder device_order_;
  // As long as one device does nearly all the work, all records are executed by the thread that
  // reads them: a hop to another one would cost each launch that is waited for its time, and a
  // second processor. But for launches of several threads that are too many for one (lanes.h).
  bool executes_here_ = false;
  std::unique_ptr<Lanes> lanes_;  // of that device, once it has work
  // The others' work: how much, since which record.
  static constexpr uint32_t MUCH_ELSEWHERE = 256, ELSEWHERE_WITHIN = 4096;
  uint32_t n_elsewhere_ = 0;
  uint64_t elsewhere_since_ = 0;
  uint64_t seq_ = 0;
  uint32_t launching_thread_ = 0;  // of the last run
  uint64_t others_seq_ = 0;        // of the last record of another thread than that
  uint64_t n_sleeps_ = 0;
  std::atomic<uint64_t> n_function_changes_{0};
  std::mutex creation_mutex_;  // of streams
  mutable std::mutex extents_mutex_;
  std::map<uint64_t, uint64_t> extents_;  // address -> bytes
  mutable std::mutex device_ranges_mutex_;
  std::map<uint64_t, DeviceRange> device_ranges_;
  uint64_t memory_bytes_ = 0, peak_memory_bytes_ = 0;  // of device_ranges_
  bool registered_ = false;
  uint64_t registered_in_ = 0;  // serial number of the context
  std::vector<Context> kept_;   // see retire_context(); under extents_mutex_
};

// Was the record sent to the executor of the context's device?
inline bool is_for_device(const Task& task, const Context& context) {
  return context.device == static_cast<int>(wire::target_device(task.header.target));
}

}  // namespace kvgpu::worker
