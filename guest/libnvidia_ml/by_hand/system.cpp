// SPDX-License-Identifier: Apache-2.0
// The library itself: its life, its versions, the words for its errors.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string>

#include "answers.h"

using namespace kvgpu::nvml;

namespace {

constexpr int CUDA_VERSION_SERVED = 13000;  // what guest/libcuda implements

constexpr const char* WORDS[] = {
    // by nvmlReturn_t; programs compare some of them
    "Success",
    "Uninitialized",
    "Invalid Argument",
    "Not Supported",
    "Insufficient Permissions",
    "Already Initialized",
    "Not Found",
    "Insufficient Size",
    "Insufficient External Power",
    "Driver Not Loaded",
    "Timeout",
    "Interrupt Request Issue",
    "NVML Shared Library Not Found",
    "Function Not Found",
    "Corrupted infoROM",
    "GPU is lost",
    "GPU requires reset",
    "GPU access blocked by the operating system",
    "Driver/library version mismatch",
    "In use by another client",
    "Insufficient Memory",
    "No data",
    "vGPU ECC not supported",
    "Insufficient Resources",
    "Invalid Frequency",
    "Argument version mismatch",
    "Requested functionality has been deprecated",
    "System is not in ready state",
    "No supported GPUs were found",
    "Resource not in correct state to perform requested operation",
    "Reset type is not supported for given device",
};

nvmlReturn_t first_report(std::shared_ptr<const Report>* report) {
  Library& library = Library::get();
  if (!library.is_initialised()) return NVML_ERROR_UNINITIALIZED;
  if (library.n_devices() == 0) return NVML_ERROR_NOT_SUPPORTED;
  return library.report(library.handle(0), Freshness::ANY, report);
}

}  // namespace

nvmlReturn_t nvmlInit(void) { return Library::get().init(); }
nvmlReturn_t nvmlInit_v2(void) { return Library::get().init(); }
nvmlReturn_t nvmlInitWithFlags(unsigned int) { return Library::get().init(); }
nvmlReturn_t nvmlShutdown(void) { return Library::get().shutdown(); }

const char* nvmlErrorString(nvmlReturn_t result) {
  const auto code = static_cast<size_t>(result);
  return code < std::size(WORDS) ? WORDS[code] : "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  std::shared_ptr<const Report> report;
  if (const nvmlReturn_t bad = first_report(&report)) return bad;
  if (report->head.driver_release[0] == '\0') return NVML_ERROR_NOT_SUPPORTED;
  return copy_text(report->head.driver_release, version, length);
}

// Natively it needs no nvmlInit.
nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned int length) {
  std::shared_ptr<const Report> report;
  std::string release;
  if (first_report(&report) == NVML_SUCCESS) release = report->head.driver_release;
  return copy_text("13." + (release.empty() ? "0" : release), version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* cudaDriverVersion) {
  std::shared_ptr<const Report> report;
  if (const nvmlReturn_t bad = first_report(&report)) return bad;
  if (cudaDriverVersion == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const int hosts = report->head.cuda_version;
  *cudaDriverVersion = hosts <= 0 ? CUDA_VERSION_SERVED : std::min(hosts, CUDA_VERSION_SERVED);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* cudaDriverVersion) {
  return nvmlSystemGetCudaDriverVersion_v2(cudaDriverVersion);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char* name, unsigned int length) {
  if (const nvmlReturn_t bad = refuse(NVML_SUCCESS)) return bad;
  if (name == nullptr || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
  const std::string path = "/proc/" + std::to_string(pid) + "/cmdline";
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NVML_ERROR_NOT_FOUND;
  std::array<char, 4096> command{};
  const ssize_t n = ::read(fd, command.data(), command.size() - 1);
  close(fd);
  if (n <= 0) return NVML_ERROR_NOT_FOUND;
  // What does not fit is cut off, as natively.
  const std::string_view first(command.data());
  return copy_text(first.substr(0, length - 1), name, length);
}

nvmlReturn_t nvmlSystemGetHicVersion(unsigned int* hwbcCount, nvmlHwbcEntry_t*) {
  if (const nvmlReturn_t bad = refuse(NVML_SUCCESS)) return bad;
  if (hwbcCount == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *hwbcCount = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlUnitGetCount(unsigned int* unitCount) {
  if (const nvmlReturn_t bad = refuse(NVML_SUCCESS)) return bad;
  if (unitCount == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *unitCount = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int* deviceCount) {
  if (deviceCount == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *deviceCount = 0;
  return NVML_SUCCESS;
}
