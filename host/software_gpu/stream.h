// SPDX-License-Identifier: Apache-2.0
// Streams and events. Each stream has a thread that runs its operations in order; what an operation
// waits for in other streams is a list of points (stream, number).
// Locks: Context::order_mutex before Queue's.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace software_gpu {

struct Context;
struct Capture;
struct GraphNode;
struct GreenContext;
struct NodeParams;
class SharedEvent;

/// A unit of work on a stream, or a node of a graph.
struct Operation {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::function<CUresult(Context&)> run;
  std::shared_ptr<const NodeParams> params;  // what a graph node can be asked for
};

class Queue;

/// The moment when a stream has done its first `number` operations.
struct Point {
  std::shared_ptr<Queue> queue;
  uint64_t number = 0;
  bool reached() const;
  void wait() const;
};

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  explicit Queue(Context& context) : context_(context) {}
  /// Add work that starts after `after`; returns its end.
  Point push(Operation operation, std::vector<Point> after);
  Point end();
  bool reached(uint64_t number) const { return n_done_.load(std::memory_order_acquire) >= number; }
  void wait(uint64_t number);
  /// NVIDIA's driver 580 blocks the caller of about the 1,021st call behind a stream that waits.
  bool is_full() const { return n_pushed_ - n_done_ >= LIMIT; }
  void wait_for_room();
  /// No more work comes: the thread ends after the last operation.
  void close();

 private:
  struct Item {
    Operation operation;
    std::vector<Point> after;
  };
  static constexpr uint64_t LIMIT = 1020;
  void work();
  Context& context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  std::atomic<uint64_t> n_pushed_{0};
  std::atomic<uint64_t> n_done_{0};
  bool has_thread_ = false, closed_ = false;
};

struct Stream {
  static constexpr int LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5;  // as on an H200
  Stream(Context& context_, unsigned flags_, int priority_, GreenContext* green_ = nullptr);
  ~Stream() { queue->close(); }
  Context& context;
  const unsigned flags;
  int priority;               // under order_mutex; nothing runs sooner for it
  GreenContext* const green;  // null: of the context itself
  const uint64_t id;
  const std::shared_ptr<Queue> queue;
  bool is_legacy = false;
  std::map<CUstreamAttrID, CUstreamAttrValue> attributes;  // that were set; under order_mutex
  bool is_blocking() const { return !is_legacy && (flags & CU_STREAM_NON_BLOCKING) == 0; }
  std::shared_ptr<Capture> capture;       // under Context::order_mutex
  std::vector<GraphNode*> capture_front;  // what the next captured operation depends on
};

struct Event {
  explicit Event(Context& context_, unsigned flags_) : context(context_), flags(flags_) {}
  /// One recording; `time_ns` is set when it happens.
  struct Record {
    Point point;
    std::atomic<uint64_t> time_ns{0};
  };
  Context& context;
  const unsigned flags;
  std::shared_ptr<Record> last;      // under Context::order_mutex, as all below
  std::shared_ptr<Capture> capture;  // when last recorded in a capture
  std::vector<GraphNode*> capture_front;
  std::shared_ptr<SharedEvent> shared;  // of an interprocess event: what it is in all processes
};

uint64_t now_ns();
/// True on a driver thread that runs a host function, where CUDA calls are not permitted.
bool& in_host_function();

}  // namespace software_gpu
