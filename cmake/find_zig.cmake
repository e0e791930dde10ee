# KVGPU_ZIG: the compiler that came as a wheel.
file(GLOB _zigs "${CMAKE_CURRENT_LIST_DIR}/../.venv/lib/python3.*/site-packages/ziglang/zig")
if(NOT _zigs)
  message(FATAL_ERROR "no zig in .venv: run `make setup`")
endif()
list(GET _zigs 0 KVGPU_ZIG)
set(KVGPU_ZIG_CXX "${KVGPU_ZIG}" c++ -target x86_64-linux-gnu.2.17)
