// SPDX-License-Identifier: Apache-2.0
// Managed memory: one pointer for the program and the GPU, whose driver has ordinary memory there.
// Its pages move at the program's calls: up before work that may read them is given to a stream,
// back when the program touches them (managed_pager.h) after all that work is done. To the program
// CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS is 0, which is what makes that right.
//
// Lock order: mutex_, then what giving work to a stream takes; never a context's mutex.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "objects.h"
#include "shadow_pages.h"

namespace kvgpu::guest {

struct FromDevice;

class ManagedMemory {
 public:
  static ManagedMemory& get();

  // Before memory of a context is added: makes the stream that moves its pages.
  static CUresult prepare(Context& context);
  static Stream* mover_of(const Context& context);
  // Memory of cuMemAllocManaged at `begin`, whole pages of a device allocation at `allocated`, all
  // zeroes. False: this process has no memory for it.
  [[nodiscard]] bool add(Context& context, uint64_t begin, uint64_t bytes, uint64_t allocated,
                         unsigned attach);
  // A module's variable, which others may share pages with.
  [[nodiscard]] bool add_variable(Context& context, wire::Handle module, uint64_t address,
                                  uint64_t bytes);
  // The driver's own address of what begins there; 0: nothing does.
  uint64_t remove(uint64_t begin);
  void forget_context(const Context& context);
  void forget_module(wire::Handle module);

  // While work is given to the stream: what the program has of the memory that this work may touch
  // goes to the GPU first, and nothing of it comes back before the work is in the ring, where who
  // waits sees it.
  class Giving {
   public:
    explicit Giving(const Stream& stream) {
      if (is_used()) status_ = get().give(stream, &is_counted_);
    }
    ~Giving() {
      if (is_counted_) get().n_giving_.fetch_sub(1, std::memory_order_release);
    }
    Giving(const Giving&) = delete;
    Giving& operator=(const Giving&) = delete;
    CUresult status() const { return status_; }

   private:
    CUresult status_ = CUDA_SUCCESS;
    bool is_counted_ = false;
  };
  // All of these bytes, wherever work runs.
  CUresult give_range(uint64_t address, uint64_t bytes);
  // After a host function, which may have written and behind which there may be work already.
  void after_host_function();
  static bool is_used() { return is_used_.load(std::memory_order_relaxed); }
  // After the program has waited: small allocations, and those that it wants here, are accessible
  // to system calls, too, where all work is done.
  static void after_wait() {
    if (is_used()) get().bring_back();
  }
  void want_here(uint64_t address, bool wanted);

  void attach(uint64_t begin, unsigned flags, const Stream& stream);

  // The program has touched this address. False: it is none of ours.
  bool bring_back(uint64_t address, bool in_host_function);
  // Can the address be ours? For signal handlers.
  static bool may_hold(uint64_t address) {
    return address >= lowest_.load(std::memory_order_relaxed) &&
           address < highest_.load(std::memory_order_relaxed);
  }

 private:
  struct Part {
    uint64_t bytes;
    wire::Handle module = 0;
  };
  struct Area {
    ShadowPages pages;
    Context* context;
    uint64_t allocated = 0;
    unsigned attach = CU_MEM_ATTACH_GLOBAL;
    wire::Handle stream = 0;  // which it is attached to
    bool is_wanted_here = false;
    std::map<uint64_t, Part> parts{};  // what in these pages is ours, by address
    std::vector<std::byte> fetched{};  // what the GPU has, where that is known

    void keep_fetched();
    bool is_as_fetched() const;
  };
  using Areas = std::map<uint64_t, Area>;  // by their first page

  // Calls visit(begin, bytes) with what the parts have of [from, to).
  template <typename Visit>
  static CUresult each_part(const Area& area, uint64_t from, uint64_t to, Visit visit);

  // Holding mutex_.
  Area* find(uint64_t address);
  Area* insert(uint64_t begin, uint64_t bytes, PageState state, Context& context);
  void erase(Areas::iterator at);
  static bool is_for(const Area& area, const Stream& stream);
  CUresult move_to_gpu(const std::function<bool(const Area&)>& is_wanted);
  static CUresult upload(Area& area, const BlockRun& run, Stream& mover);
  static CUresult download(Area& area, uint64_t from, uint64_t to);
  static void add_copies(const Area& area, uint64_t from, uint64_t to,
                         std::vector<FromDevice>* copies);
  static bool is_small(const Area& area);
  void fetch(Area& area, const BlockRun& run);

  CUresult give(const Stream& stream, bool* is_counted);
  // Is work on its way to the ring?
  bool is_giving() const { return n_giving_.load(std::memory_order_acquire) != 0; }
  void bring_back();
  bool bring_back(const Context& context, const std::vector<Area*>& areas);
  static void wait_for_stream(wire::Handle stream);

  static inline std::atomic<bool> is_used_{false};
  static inline std::atomic<uint64_t> lowest_{~0ull}, highest_{0};

  std::mutex mutex_;
  std::condition_variable may_give_;
  bool is_held_ = false;  // work waits until a page has come back
  uint64_t n_given_ = 0;  // times that work was given
  // Up under mutex_; down: release by ~Giving(), the record being in the ring; acquire by
  // is_giving().
  std::atomic<uint64_t> n_giving_{0};
  Areas areas_;
  std::set<uint64_t> here_;  // areas of which the program has something
};

}  // namespace kvgpu::guest
