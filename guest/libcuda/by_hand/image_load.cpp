// SPDX-License-Identifier: Apache-2.0
// Loading images: from memory and from files of the guest, as modules and as libraries.
#include "image_load.h"

#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

#include "generated/api.gen.h"
#include "jit.h"
#include "log.h"
#include "refuse.h"
#include "staging.h"

namespace kvgpu::guest {

namespace {

// What to do about an image that does not load. `text`: its beginning.
void explain(CUresult error, const Call& call, std::string_view text, const std::string& jit_log) {
  const auto* attributes =
      Session::get().devices()[static_cast<size_t>(call.device())].info.attributes;
  const std::string first_line = jit_log.substr(0, jit_log.find('\n'));
  switch (error) {
    case CUDA_ERROR_INVALID_IMAGE:
      log(Level::WARNING,
          "an image is no whole fat binary, cubin or PTX (CUDA_ERROR_INVALID_IMAGE): was the file "
          "cut short or changed? Build or copy it again; `cuobjdump FILE` says whether it is "
          "whole");
      return;
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
      log(Level::WARNING,
          "an image holds no code for this GPU, compute capability %d.%d "
          "(CUDA_ERROR_NO_BINARY_FOR_GPU): build it for sm_%d%d, or with PTX in it",
          attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR],
          attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR],
          attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR],
          attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR]);
      return;
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION: {
      const size_t at = text.find(".version");
      const std::string version(at == text.npos ? "" : text.substr(at, text.find('\n', at) - at));
      log(Level::WARNING,
          "PTX (%s) is of a newer CUDA release than the host's driver, CUDA %d.%d "
          "(CUDA_ERROR_UNSUPPORTED_PTX_VERSION): build it with that release or an older one, or "
          "have the host's driver upgraded",
          version.c_str(), Session::get().driver_version() / 1000,
          Session::get().driver_version() % 1000 / 10);
      return;
    }
    case CUDA_ERROR_INVALID_PTX:
      log(Level::WARNING,
          "PTX does not compile (CUDA_ERROR_INVALID_PTX): %s. All of the compiler's words: "
          "cuModuleLoadDataEx with CU_JIT_ERROR_LOG_BUFFER, or `ptxas FILE`",
          first_line.empty() ? "the driver gives no reason" : first_line.c_str());
      return;
    default:
      return;
  }
}

// Of the session's devices: a library is for all of them.
std::vector<int> majors() {
  std::vector<int> found;
  for (const DeviceState& device : Session::get().devices()) {
    found.push_back(device.info.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR]);
  }
  return found;
}

struct LoadReply {
  wire::LoadedImage image;
  JitOptions::Reply jit;
};

CUresult load(wire::Op op, const ImageBytes& image, bool is_library, JitOptions& jit,
              wire::Handle* handle) {
  const Call call(CaptureRule::ALLOWED, nullptr,
                  is_library ? ContextRule::OPTIONAL : ContextRule::NEEDED);
  if (call.status() != CUDA_SUCCESS) return call.status();
  CUresult result = CUDA_ERROR_INVALID_IMAGE;
  wire::Handle blob;
  if (image.data != nullptr) {
    result = upload(call, loadable_parts(image, majors()).parts, &blob);
  }
  if (result != CUDA_SUCCESS) {
    explain(result, call, {}, {});
    return result;
  }
  if (const CUresult bad = jit.prepare()) return bad;
  Module* const module = tables().modules.create();
  if (module == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  module->is_library = is_library;
  if (!is_library) module->context = &call.context_object();
  LoadReply out{};
  ReplyBuffer buffer{&out, sizeof out};
  const wire::LoadImage body{call.context(), blob, module->handle};
  result = Session::get().call(op, call.device(), &buffer, part(body), part(jit.request()),
                               jit.options());
  jit.finish(out.jit);
  if (result != CUDA_SUCCESS) {
    tables().modules.remove(module->handle);
    explain(result, call, {reinterpret_cast<const char*>(image.data), image.bytes},
            jit.error_log());
    return result;
  }
  module->prints = out.image.prints != 0;
  *handle = module->handle;
  return CUDA_SUCCESS;
}

// Null where it is no image: load() says so.
ImageBytes measured(const void* image) {
  return measure_image(image).value_or(ImageBytes{nullptr, 0});
}
ImageBytes all_of(const std::string& file) {
  return {reinterpret_cast<const std::byte*>(file.data()), file.size() + 1};
}

CUresult load_module(CUmodule* module, const ImageBytes& image, unsigned n, CUjit_option* options,
                     void** values) {
  JitOptions jit;
  if (const CUresult bad = jit.read(n, options, values, true)) return bad;
  wire::Handle handle;
  const CUresult result = load(wire::Op::cuModuleLoadDataEx, image, false, jit, &handle);
  if (result == CUDA_SUCCESS) *module = from_wire<CUmodule>(handle);
  return result;
}

CUresult load_library(CUlibrary* library, const ImageBytes& image, unsigned n,
                      CUjit_option* options, void** values, unsigned n_library_options,
                      const CUlibraryOption* library_options) {
  if (n_library_options != 0 && library_options == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < n_library_options; ++i) {
    // The image is copied in any case.
    if (library_options[i] != CU_LIBRARY_BINARY_IS_PRESERVED) {
      return static_cast<CUresult>(refuse_part("a library option of cuLibraryLoadData"));
    }
  }
  JitOptions jit;
  if (const CUresult bad = jit.read(n, options, values, false)) return bad;
  wire::Handle handle;
  const CUresult result = load(wire::Op::cuLibraryLoadData, image, true, jit, &handle);
  if (result == CUDA_SUCCESS) *library = from_wire<CUlibrary>(handle);
  return result;
}

CUresult link(const std::vector<ImageBytes>& parts, CUlinkState* state, ImageBytes* cubin) {
  if (const CUresult bad = link_create_v2(0, nullptr, nullptr, state)) return bad;
  for (const ImageBytes& part : parts) {
    const CUresult bad =
        link_add_data_v2(*state, CU_JIT_INPUT_FATBINARY, const_cast<std::byte*>(part.data),
                         part.bytes, nullptr, 0, nullptr, nullptr);
    if (bad != CUDA_SUCCESS) return bad;
  }
  void* linked = nullptr;
  size_t bytes = 0;
  const CUresult result = link_complete(*state, &linked, &bytes);
  *cubin = {static_cast<const std::byte*>(linked), bytes};
  return result;
}

// Natively a library without code for this GPU loads, too: it is empty.
bool has_no_code(CUresult loaded, CUlibrary library) {
  unsigned n = 0;
  return loaded == CUDA_ERROR_NO_BINARY_FOR_GPU ||
         (loaded == CUDA_SUCCESS && library_get_kernel_count(&n, library) == CUDA_SUCCESS &&
          n == 0);
}

}  // namespace

namespace {

// The next bytes of an image whose parts follow one another.
class Gather {
 public:
  explicit Gather(std::span<const ImageBytes> parts) : parts_(parts) {}

  // False: not readable.
  [[nodiscard]] bool next(std::byte* to, uint64_t bytes) {
    while (bytes > 0) {
      const ImageBytes& part = parts_.front();
      const uint64_t n = std::min(bytes, part.bytes - offset_);
      if (!copy_from_program(to, part.data + offset_, n)) return false;
      to += n;
      bytes -= n;
      offset_ += n;
      if (offset_ < part.bytes) continue;
      parts_ = parts_.subspan(1);
      offset_ = 0;
    }
    return true;
  }

 private:
  std::span<const ImageBytes> parts_;
  uint64_t offset_ = 0;  // in the first of them
};

}  // namespace

CUresult upload(const Call& call, std::span<const ImageBytes> parts, wire::Handle* blob) {
  uint64_t image_bytes = 0;
  for (const ImageBytes& part : parts) image_bytes += part.bytes;
  if (image_bytes > wire::MAX_IMAGE_BYTES) {
    return static_cast<CUresult>(refuse_part("an image of more than 1 GiB"));
  }
  static std::atomic<uint32_t> next_blob{1};
  const uint32_t number = next_blob++;
  *blob = wire::make_handle(wire::Kind::BLOB, 0, number % wire::MAX_HANDLE_INDEX,
                            number / wire::MAX_HANDLE_INDEX);
  Staging& staging = Staging::get();
  Gather gather(parts);
  for (uint64_t offset = 0; offset < image_bytes;) {
    const uint64_t n = std::min<uint64_t>(image_bytes - offset, Staging::CHUNK_BYTES);
    Staging::Piece piece;
    if (const CUresult bad = staging.allocate(n, &piece)) return bad;
    const bool readable = gather.next(staging.data(piece), n);
    const wire::Upload body{*blob, image_bytes, offset, piece.off, n};
    const CUresult result = readable ? call.sync(wire::Op::UPLOAD, body) : CUDA_ERROR_INVALID_IMAGE;
    staging.release(piece);
    if (result != CUDA_SUCCESS) return result;
    offset += n;
  }
  return CUDA_SUCCESS;
}

CUresult read_file(const char* path, std::string* bytes) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || !text) {
    log(Level::WARNING, "cannot read the image %s (CUDA_ERROR_FILE_NOT_FOUND)", path);
    return CUDA_ERROR_FILE_NOT_FOUND;
  }
  *bytes = std::move(text).str();
  return CUDA_SUCCESS;
}

CUresult module_load_wrapper(CUmodule* module, const void* wrapper) {
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return load_module(module, measured(wrapper), 0, nullptr, nullptr);
}

CUresult module_load_data_ex(CUmodule* module, const void* image, unsigned int numOptions,
                             CUjit_option* options, void** optionValues) {
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // As natively: only libraries are loaded from what nvcc leaves in a program.
  const ImageBytes bytes = is_wrapper(image) ? ImageBytes{nullptr, 0} : measured(image);
  return load_module(module, bytes, numOptions, options, optionValues);
}
CUresult module_load_data(CUmodule* module, const void* image) {
  return module_load_data_ex(module, image, 0, nullptr, nullptr);
}
CUresult module_load_fat_binary(CUmodule* module, const void* fatCubin) {
  return module_load_data(module, fatCubin);
}

CUresult module_load(CUmodule* module, const char* fname) {
  if (module == nullptr || fname == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string file;
  if (const CUresult bad = read_file(fname, &file)) return bad;
  return load_module(module, all_of(file), 0, nullptr, nullptr);
}

CUresult library_load_data(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                           void** jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption* libraryOptions, void**,
                           unsigned int numLibraryOptions) {
  if (library == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto load = [&](const ImageBytes& image) {
    return load_library(library, image, numJitOptions, jitOptions, jitOptionsValues,
                        numLibraryOptions, libraryOptions);
  };
  const CUresult loaded = load(measured(code));
  const std::vector<ImageBytes> parts = prelinked_images(code);
  if (parts.empty() || !has_no_code(loaded, *library)) return loaded;
  CUlinkState state = nullptr;
  ImageBytes cubin;
  const CUresult bad = link(parts, &state, &cubin);
  const CUlibrary empty = *library;
  const CUresult result = bad != CUDA_SUCCESS ? loaded : load(cubin);
  if (bad == CUDA_SUCCESS && loaded == CUDA_SUCCESS) library_unload(empty);
  if (state != nullptr) link_destroy(state);
  return result;
}

CUresult library_load_from_file(CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                                void** jitOptionsValues, unsigned int numJitOptions,
                                CUlibraryOption* libraryOptions, void**,
                                unsigned int numLibraryOptions) {
  if (library == nullptr || fileName == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string file;
  if (const CUresult bad = read_file(fileName, &file)) return bad;
  return load_library(library, all_of(file), numJitOptions, jitOptions, jitOptionsValues,
                      numLibraryOptions, libraryOptions);
}

}  // namespace kvgpu::guest
