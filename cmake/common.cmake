# What every part is built with; included by the main build and by the guest's own.
get_filename_component(KVGPU_ROOT "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# A third of the time of a whole build; clang-tidy is to see each file by itself.
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(_unity OFF)
else()
  set(_unity ON)
endif()
option(KVGPU_UNITY "Compile the files of the large targets several at a time" ${_unity})
include(GNUInstallDirs)
find_package(Threads REQUIRED)

# NVIDIA's headers come from the wheels that requirements.lock pins (`make setup`); never committed.
if(NOT KVGPU_CUDA_ROOT)
  file(GLOB _cuda_roots "${KVGPU_ROOT}/.venv/lib/python3.*/site-packages/nvidia/cu13")
  list(GET _cuda_roots 0 KVGPU_CUDA_ROOT)
endif()
set(KVGPU_CUDA_ROOT "${KVGPU_CUDA_ROOT}" CACHE PATH "Folder that holds include/cuda.h and bin/nvcc")
if(NOT EXISTS "${KVGPU_CUDA_ROOT}/include/cuda.h")
  message(FATAL_ERROR "no include/cuda.h under '${KVGPU_CUDA_ROOT}': run `make setup`, "
                      "or pass -DKVGPU_CUDA_ROOT=<toolkit folder>")
endif()
add_library(cuda_headers INTERFACE)
target_include_directories(cuda_headers SYSTEM INTERFACE "${KVGPU_CUDA_ROOT}/include")

add_library(kvgpu_options INTERFACE)
target_compile_options(kvgpu_options INTERFACE -Wall -Wextra -Werror)
if(KVGPU_SANITIZE)
  target_compile_options(kvgpu_options INTERFACE -fsanitize=${KVGPU_SANITIZE} -fno-omit-frame-pointer
                                                 -fno-sanitize-recover=all)
  target_link_options(kvgpu_options INTERFACE -fsanitize=${KVGPU_SANITIZE})
endif()
target_link_libraries(kvgpu_options INTERFACE Threads::Threads)
