# guest/ as a build of its own with cmake/zig.cmake, into the folder that it would have here; its library as a target
# of this build.
include(ExternalProject)
set(_library "${CMAKE_BINARY_DIR}/guest/libcuda/libcuda.so.1")
ExternalProject_Add(guest
  SOURCE_DIR "${CMAKE_SOURCE_DIR}/guest"
  BINARY_DIR "${CMAKE_BINARY_DIR}/guest"
  PREFIX "${CMAKE_BINARY_DIR}/guest_steps"
  CMAKE_ARGS "-DCMAKE_TOOLCHAIN_FILE=${CMAKE_SOURCE_DIR}/cmake/zig.cmake"
             "-DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE}"
             "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=${CMAKE_CXX_FLAGS_RELWITHDEBINFO}" "-DKVGPU_CUDA_ROOT=${KVGPU_CUDA_ROOT}"
             "-DKVGPU_PROTOCOL_OLDER=${KVGPU_PROTOCOL_OLDER}"
  BUILD_ALWAYS ON  # its own ninja knows what has changed
  BUILD_BYPRODUCTS "${_library}"
  USES_TERMINAL_BUILD ON
  INSTALL_COMMAND ""
  TEST_COMMAND "")
add_library(cuda_shim SHARED IMPORTED GLOBAL)
set_target_properties(cuda_shim PROPERTIES IMPORTED_LOCATION "${_library}" IMPORTED_SONAME libcuda.so.1)
add_dependencies(cuda_shim guest)
