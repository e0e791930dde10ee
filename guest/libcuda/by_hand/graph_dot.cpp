// SPDX-License-Identifier: Apache-2.0
// cuGraphDebugDotPrint: the driver writes on the host, the program's file is written here.
#include <algorithm>
#include <cstdio>
#include <string>

#include "generated/api.gen.h"
#include "graphs.h"
#include "staging.h"

namespace kvgpu::guest {

namespace {

CUresult fetch_text(const GraphCall& call, const Graph& graph, unsigned flags, std::string* text) {
  Staging& staging = Staging::get();
  Staging::Piece piece;
  if (const CUresult bad = staging.allocate(Staging::CHUNK_BYTES, &piece)) return bad;
  wire::GraphDotPrinted out;
  CUresult result;
  do {
    const wire::GraphDotPrint body{
        call.context(), graph.handle, text->size(), piece.off, Staging::CHUNK_BYTES, flags, 0};
    result = call.sync(wire::Op::cuGraphDebugDotPrint, body, &out);
    if (result != CUDA_SUCCESS) break;
    const uint64_t n = std::min<uint64_t>(out.n_bytes, Staging::CHUNK_BYTES);
    text->append(reinterpret_cast<const char*>(staging.data(piece)), n);
  } while (out.n_bytes != 0 && text->size() < out.n_all_bytes);
  staging.release(piece);
  return result;
}

}  // namespace

CUresult graph_debug_dot_print(CUgraph hGraph, const char* path, unsigned int flags) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const GraphCall call;
  if (call.status() != CUDA_SUCCESS) return call.status();
  const Graph* const graph = find(hGraph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string text;
  if (const CUresult bad = fetch_text(call, *graph, flags, &text)) return bad;
  std::FILE* const file = std::fopen(path, "w");
  if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool is_closed = std::fclose(file) == 0;
  return is_written && is_closed ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace kvgpu::guest
