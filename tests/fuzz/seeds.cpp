// SPDX-License-Identifier: Apache-2.0
// seeds FOLDER: writes sessions of a well-behaved guest, from which the fuzzer starts.
#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "cubin.h"
#include "guest.h"
#include "kvgpu/calls.h"
#include "kvgpu/graph_calls.h"
#include "kvgpu/image_calls.h"
#include "kvgpu/layout.h"
#include "kvgpu/memory_calls.h"
#include "kvgpu/module_calls.h"
#include "kvgpu/opcodes.gen.h"
#include "kvgpu/plain_calls.gen.h"
#include "kvgpu/records.h"

using namespace kvgpu;
using namespace kvgpu::fuzz;
using wire::Kind;
using wire::Op;

namespace {

constexpr uint64_t SLAB = WINDOWS[0] + BLOCK_OFFSET + SLAB_OFF;
constexpr uint64_t MEMORY = WINDOWS[0] - DEVICE_WINDOW_BYTES;  // the first allocation
constexpr char KERNEL[] = "kernel";
constexpr char PTX[] = ".version 8.0\n.target sm_80\n.visible .entry kernel() { ret; }\n";

wire::Handle handle(Kind kind, uint32_t index = 1) { return wire::make_handle(kind, 0, index, 1); }
const wire::Handle CONTEXT = handle(Kind::CONTEXT), LEGACY = handle(Kind::STREAM, 0),
                   STREAM = handle(Kind::STREAM), EVENT = handle(Kind::EVENT),
                   MODULE = handle(Kind::MODULE), FUNCTION = handle(Kind::FUNCTION),
                   GRAPH = handle(Kind::GRAPH), EXEC = handle(Kind::GRAPH_EXEC),
                   BLOB = handle(Kind::BLOB);

class Session {
 public:
  template <typename Body>
  Session& say(Op op, const Body& body, const std::string& rest = "", uint16_t flags = 0) {
    Action action{Do::RECORD, 0, static_cast<uint16_t>(op), flags, 0, {}};
    append(&action, &body, sizeof body);
    append(&action, rest.data(), rest.size());
    actions_.push_back(action);
    return *this;
  }
  template <typename Body>
  Session& tell(Op op, const Body& body, const std::string& rest = "") {
    return say(op, body, rest, wire::NOREPLY);
  }
  Session& slab(const std::string& bytes) {
    Action action{Do::SLAB, 0, 0, 0, 0, {}};
    append(&action, bytes.data(), bytes.size());
    actions_.push_back(action);
    return *this;
  }

  Session& begin() {
    return say(Op::HELLO, wire::Hello{})
        .say(Op::cuDevicePrimaryCtxRetain, wire::ContextRetain{CONTEXT, LEGACY, 0, 0, 0, 0})
        .tell(Op::cuStreamCreate, wire::StreamCreate{CONTEXT, STREAM, 1, 1, 0, 0});
  }
  Session& load(Op op, const std::string& image) {
    return slab(image)
        .say(Op::UPLOAD, wire::Upload{BLOB, image.size(), 0, 0, image.size()})
        .say(op, wire::LoadImage{CONTEXT, BLOB, MODULE});
  }

  void write(const std::string& folder, const std::string& name) const {
    const std::string path = folder + "/" + name;
    FILE* const file = std::fopen(path.c_str(), "wb");
    const std::vector<uint8_t> bytes = serialize(actions_);
    if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size() ||
        std::fclose(file) != 0) {
      std::perror(path.c_str());
      std::exit(1);
    }
  }

 private:
  static void append(Action* action, const void* data, size_t n) {
    const auto* bytes = static_cast<const std::byte*>(data);
    action->bytes.insert(action->bytes.end(), bytes, bytes + n);
  }
  std::vector<Action> actions_;
};

Session memory() {
  Session s;
  s.begin().say(Op::cuMemAlloc_v2, wire::MemAlloc{CONTEXT, 1 << 20});
  s.say(Op::cuMemAllocPitch_v2, wire::MemAllocPitch{CONTEXT, 100, 10, 4, 0});
  s.tell(Op::cuMemcpyHtoDAsync_v2, wire::Copy{STREAM, 1, MEMORY, SLAB, 4096});
  s.tell(Op::cuMemcpyDtoDAsync_v2, wire::Copy{STREAM, 0, MEMORY + 8192, MEMORY, 4096});
  s.tell(Op::cuMemsetD8Async, wire::Memset{STREAM, 0, MEMORY, 64, 7, 0});
  s.tell(Op::cuMemsetD16Async, wire::Memset{STREAM, 0, MEMORY, 64, 7, 0});
  s.tell(Op::cuMemsetD32Async, wire::Memset{LEGACY, 0, MEMORY, 64, 7, 0});
  s.tell(Op::cuMemcpyDtoHAsync_v2, wire::Copy{STREAM, 2, SLAB, MEMORY, 4096});
  s.tell(Op::MARK, wire::Mark{STREAM, 3}).say(Op::STREAM_SYNC, wire::StreamRef{STREAM});
  s.say(Op::HEAP_GROW, wire::HeapGrow{EXTENT_ALIGN_BYTES});
  s.say(Op::cuMemGetInfo_v2, wire::cuMemGetInfo_v2_in{CONTEXT});
  s.say(Op::cuMemFree_v2, wire::MemFree{CONTEXT, MEMORY});
  s.say(Op::WAITED, wire::HostSync{CONTEXT});
  s.say(Op::HOST_SYNC, wire::HostSync{CONTEXT}).tell(Op::ACK_ERROR, wire::AckError{1});
  s.tell(Op::cuStreamDestroy_v2, wire::StreamRef{STREAM});
  s.say(Op::cuDevicePrimaryCtxReset, wire::ContextReset{CONTEXT});
  return s;
}

Session kernels(Op load, Op get_function, Op get_global, const std::string& image) {
  constexpr uint32_t N = sizeof KERNEL - 1;
  Session s;
  s.begin().load(load, image);
  s.say(get_function, wire::GetFunction{CONTEXT, MODULE, FUNCTION, N, 0}, KERNEL);
  s.say(get_global, wire::GetGlobal{CONTEXT, MODULE, N, 0}, KERNEL);
  s.say(Op::KERNEL_INFO, wire::KernelInfo{CONTEXT, FUNCTION});
  s.say(Op::cuLibraryGetModule, wire::LibraryModule{CONTEXT, MODULE, handle(Kind::MODULE, 2)});
  wire::Launch launch{STREAM, 1, FUNCTION, {1, 1, 1}, {32, 1, 1}, 0, 16, 0, 0};
  s.tell(Op::cuLaunchKernel, launch, std::string(16, 'p'));
  launch.n_attributes = 1;
  s.tell(Op::cuLaunchKernelEx, launch, std::string(sizeof(wire::LaunchAttribute) + 16, '\0'));
  s.say(Op::cuFuncSetAttribute, wire::SetAttribute{CONTEXT, FUNCTION, 8, 1024, 0, 0});
  s.say(Op::cuKernelSetAttribute, wire::SetAttribute{CONTEXT, FUNCTION, 8, 1024, 0, 0});
  s.tell(Op::ATTRIBUTE_AGAIN, wire::SetAttribute{CONTEXT, FUNCTION, 8, 1024, 0, 1});
  s.say(Op::cuOccupancyMaxActiveBlocksPerMultiprocessor,
        wire::cuOccupancyMaxActiveBlocksPerMultiprocessor_in{CONTEXT, FUNCTION, 32, 0});
  const bool library = load == Op::cuLibraryLoadData;
  if (library) s.say(Op::cuLibraryUnload, wire::cuLibraryUnload_in{CONTEXT, MODULE});
  if (!library) s.say(Op::cuModuleUnload, wire::cuModuleUnload_in{CONTEXT, MODULE});
  return s;
}

Session streams() {
  Session s;
  s.begin().tell(Op::cuEventCreate, wire::EventCreate{CONTEXT, EVENT, 0, 0});
  s.tell(Op::cuEventRecord, wire::RecordEvent{STREAM, 1, EVENT, 0, 0});
  s.tell(Op::cuStreamWaitEvent, wire::WaitEvent{LEGACY, 0, EVENT, 0, 0});
  s.say(Op::EVENT_SYNC, wire::EventRef{CONTEXT, EVENT});
  s.say(Op::cuEventElapsedTime_v2, wire::EventElapsed{CONTEXT, EVENT, EVENT});
  s.tell(Op::cuLaunchHostFunc, wire::HostFunction{STREAM, 0, 1, 1});
  s.tell(Op::cuStreamAddCallback, wire::HostFunction{STREAM, 2, 2, 1});
  s.say(Op::cuStreamBeginCapture_v2, wire::StreamRef{STREAM});
  s.tell(Op::cuMemsetD8Async, wire::Memset{STREAM, 0, SLAB, 64, 7, 0});
  s.say(Op::cuStreamEndCapture, wire::EndCapture{STREAM, GRAPH});
  s.say(Op::cuGraphGetNodes, wire::GraphRef{CONTEXT, GRAPH});
  s.say(Op::cuGraphInstantiateWithFlags, wire::GraphInstantiate{CONTEXT, GRAPH, EXEC, 0});
  s.tell(Op::cuGraphLaunch, wire::LaunchGraph{STREAM, 0, EXEC});
  s.say(Op::cuGraphExecDestroy, wire::cuGraphExecDestroy_in{CONTEXT, EXEC});
  s.say(Op::cuGraphDestroy, wire::cuGraphDestroy_in{CONTEXT, GRAPH});
  s.tell(Op::cuEventDestroy_v2, wire::EventRef{CONTEXT, EVENT});
  s.say(Op::cuCtxSetLimit, wire::cuCtxSetLimit_in{CONTEXT, 0, 4096});
  s.say(Op::cuCtxGetLimit, wire::cuCtxGetLimit_in{CONTEXT, 0});
  return s;
}

template <typename... Bodies>
std::string bytes_of(const Bodies&... bodies) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&bodies), sizeof bodies), ...);
  return bytes;
}

Session graphs() {
  const wire::Handle node = wire::make_handle(Kind::GRAPH_NODE, 0, 1, 0),
                     clone = handle(Kind::GRAPH, 2);
  const wire::MemcpySide side{MEMORY, 0, 0, 0, 64, 1, CU_MEMORYTYPE_DEVICE, 0};
  const wire::MemsetNode memset{MEMORY, 64, 7, 4, 16, 1};
  Session s;
  s.begin().tell(Op::cuEventCreate, wire::EventCreate{CONTEXT, EVENT, 0, 0});
  s.say(Op::cuMemAlloc_v2, wire::MemAlloc{CONTEXT, 1 << 20});
  s.say(Op::cuGraphCreate, wire::GraphCreate{CONTEXT, GRAPH});
  const auto add = [&](uint32_t type, const std::string& body) {
    s.say(Op::cuGraphAddNode_v2, wire::AddGraphNode{CONTEXT, GRAPH, type, 0}, body);
  };
  add(CU_GRAPH_NODE_TYPE_MEMCPY, bytes_of(wire::MemcpyNode{side, side, 64, 1, 1}));
  add(CU_GRAPH_NODE_TYPE_MEMSET, bytes_of(memset));
  add(CU_GRAPH_NODE_TYPE_HOST, bytes_of(wire::HostNode{1}));
  add(CU_GRAPH_NODE_TYPE_EVENT_RECORD, bytes_of(wire::ObjectNode{EVENT}));
  add(CU_GRAPH_NODE_TYPE_EMPTY, "");
  add(CU_GRAPH_NODE_TYPE_MEM_ALLOC,
      bytes_of(wire::MemAllocNode{1 << 20, 0, 0, 0, 1, 0}, wire::MemAccess{0, 3}));
  add(CU_GRAPH_NODE_TYPE_MEM_FREE, bytes_of(wire::MemFreeNode{MEMORY}));
  s.say(Op::cuGraphClone, wire::GraphClone{CONTEXT, GRAPH, clone});
  add(CU_GRAPH_NODE_TYPE_GRAPH, bytes_of(wire::ObjectNode{clone}));
  s.say(Op::GRAPH_LIST, wire::GraphList{CONTEXT, GRAPH, 2, 0, 0});
  s.say(Op::GRAPH_FUNCTIONS, wire::GraphFunctions{CONTEXT, GRAPH, 0});
  s.say(Op::GRAPH_NODE_PARAMS,
        wire::GraphNodeParams{CONTEXT, node, 0, 0, CU_GRAPH_NODE_TYPE_MEMCPY, 0});
  s.say(Op::cuGraphInstantiateWithParams, wire::GraphInstantiate{CONTEXT, GRAPH, EXEC, 0});
  s.say(Op::cuGraphExecNodeSetParams,
        wire::SetGraphNode{CONTEXT, EXEC, node, CU_GRAPH_NODE_TYPE_MEMSET, 0}, bytes_of(memset));
  s.say(Op::cuGraphExecUpdate_v2, wire::ExecUpdate{CONTEXT, EXEC, clone});
  s.tell(Op::cuGraphLaunch, wire::LaunchGraph{STREAM, 0, EXEC}, bytes_of(EVENT));
  s.say(Op::EVENT_QUERY, wire::EventRef{CONTEXT, EVENT});
  const wire::Handle object = handle(Kind::USER_OBJECT, 1), captured = handle(Kind::GRAPH, 3);
  s.say(Op::cuUserObjectCreate, wire::UserObjectCreate{CONTEXT, object, 2, 1, 1});
  s.say(Op::cuGraphRetainUserObject,
        wire::cuGraphRetainUserObject_in{CONTEXT, GRAPH, object, 1, 1});
  s.say(Op::cuStreamBeginCapture_v2, wire::StreamRef{STREAM});
  s.say(Op::cuStreamGetCaptureInfo_v3, wire::CaptureInfo{STREAM, captured, 0});
  const wire::GraphEdge edge{node, 0, {}};
  s.say(Op::cuStreamUpdateCaptureDependencies_v2, wire::CaptureDependencies{STREAM, 1, 1},
        bytes_of(edge));
  s.say(Op::cuStreamEndCapture, wire::EndCapture{STREAM, captured});
  s.say(Op::cuStreamBeginCaptureToGraph, wire::CaptureToGraph{STREAM, GRAPH, 1, 0}, bytes_of(edge));
  s.say(Op::cuStreamEndCapture, wire::EndCapture{STREAM, GRAPH});
  s.say(Op::cuGraphDestroyNode, wire::cuGraphDestroyNode_in{CONTEXT, node});
  s.say(Op::cuGraphExecDestroy, wire::cuGraphExecDestroy_in{CONTEXT, EXEC});
  s.say(Op::cuGraphDestroy, wire::cuGraphDestroy_in{CONTEXT, GRAPH});
  return s;
}

Session images() {
  const wire::Handle array = handle(Kind::ARRAY), mipmap = handle(Kind::ARRAY, 2),
                     level = handle(Kind::ARRAY, 3), reference = handle(Kind::REFERENCE);
  const wire::ArrayCreate shape{CONTEXT, array, 16, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0, 1};
  wire::ArrayCreate mipmapped = shape;
  mipmapped.array = mipmap;
  const wire::MemcpySide there{array, 0, 0, 0, 0, 0, CU_MEMORYTYPE_ARRAY, 0};
  const wire::MemcpySide here{MEMORY, 0, 0, 0, 64, 16, CU_MEMORYTYPE_DEVICE, 0};
  const wire::ImageResource resource{CU_RESOURCE_TYPE_ARRAY, 0, array, 0, 0, 0, 0, 0};
  wire::TensorMapEncode map{};
  map.context = CONTEXT;
  map.rank = 2;
  Session s;
  s.begin().say(Op::cuMemAlloc_v2, wire::MemAlloc{CONTEXT, 1 << 20});
  s.say(Op::cuArray3DCreate_v2, shape);
  s.say(Op::cuMipmappedArrayCreate, mipmapped);
  s.say(Op::cuMipmappedArrayGetLevel, wire::ArrayPart{CONTEXT, mipmap, level, 0, 0});
  s.say(Op::cuMemcpy3DAsync_v2, wire::CopyBox{STREAM, 0, {there, here, 64, 16, 1}});
  s.say(Op::cuTexObjectCreate, wire::TexObjectCreate{CONTEXT, resource, {}, 0, 0, {}});
  s.say(Op::cuSurfObjectCreate, wire::SurfObjectCreate{CONTEXT, resource});
  s.say(Op::cuTexObjectGetResourceDesc, wire::ImageObject{CONTEXT, 1});
  s.say(Op::cuTexObjectDestroy, wire::ImageObject{CONTEXT, 1});
  s.say(Op::cuTexRefCreate, wire::ReferenceRef{CONTEXT, reference});
  s.say(Op::cuTexRefSetArray, wire::cuTexRefSetArray_in{CONTEXT, reference, array, 1});
  s.say(Op::cuTexRefSetAddress_v2, wire::ReferenceAddress{CONTEXT, reference, MEMORY, 4096, 1, 0});
  s.say(Op::cuTensorMapEncodeTiled, map);
  s.say(Op::cuArrayDestroy, wire::cuArrayDestroy_in{CONTEXT, array});
  s.say(Op::cuMipmappedArrayDestroy, wire::cuMipmappedArrayDestroy_in{CONTEXT, mipmap});
  return s;
}

Session mapped_arrays() {
  const wire::Handle array = handle(Kind::ARRAY);
  const uint64_t pool = 77;
  const wire::PhysicalProperties properties{CU_MEM_ALLOCATION_TYPE_PINNED, 0, 0,
                                            CU_MEM_CREATE_USAGE_TILE_POOL, 0, 0};
  wire::ArrayMapping tile{};
  tile.array = array;
  tile.offset[0] = tile.extent[0] = tile.extent[1] = 128;
  tile.extent[2] = 1;
  tile.memory = pool;
  tile.operation = CU_MEM_OPERATION_TYPE_MAP;
  tile.device_mask = 1;
  Session s;
  s.begin().say(Op::cuArray3DCreate_v2,
                wire::ArrayCreate{CONTEXT, array, 512, 512, 0, CU_AD_FORMAT_FLOAT, 1,
                                  CUDA_ARRAY3D_SPARSE, 1});
  s.say(Op::cuMemCreate, wire::PhysicalCreate{pool, 2 << 20, 0, properties});
  s.say(Op::cuMemMapArrayAsync, wire::MapArrays{STREAM, 0, 1}, bytes_of(tile));
  s.say(Op::cuMemRelease, wire::PhysicalRef{pool});
  s.say(Op::cuArrayDestroy, wire::cuArrayDestroy_in{CONTEXT, array});
  return s;
}

// A fat binary with one entry of machine code: no instructions, but a call graph.
std::string fatbin() {
  const std::string cubin = tests::PrintingCubin().image();
  const uint32_t bytes = static_cast<uint32_t>(cubin.size());
  const uint32_t head[] = {0xBA55ED50, 16u << 16 | 1, 64 + bytes, 0};
  const uint32_t entry[16] = {2, 64, bytes, 0};
  std::string image(reinterpret_cast<const char*>(head), sizeof head);
  image.append(reinterpret_cast<const char*>(entry), sizeof entry);
  return image + cubin;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: seeds FOLDER\n");
    return 2;
  }
  memory().write(argv[1], "memory");
  streams().write(argv[1], "streams");
  graphs().write(argv[1], "graphs");
  images().write(argv[1], "images");
  mapped_arrays().write(argv[1], "mapped_arrays");
  kernels(Op::cuLibraryLoadData, Op::cuLibraryGetKernel, Op::cuLibraryGetGlobal, fatbin())
      .write(argv[1], "library");
  kernels(Op::cuModuleLoadData, Op::cuModuleGetFunction, Op::cuModuleGetGlobal_v2,
          std::string(PTX, sizeof PTX))
      .write(argv[1], "module");
  kernels(Op::cuModuleLoadDataEx, Op::cuModuleGetFunction, Op::cuModuleGetGlobal_v2, PTX)
      .write(argv[1], "module_ex");
  return 0;
}
