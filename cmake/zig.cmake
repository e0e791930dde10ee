# Toolchain for what runs in guests: zig's clang, libc++ (linked statically) and the symbols of glibc 2.17, so that
# CentOS 7, Ubuntu 16 and whatever is younger can load it.
file(GLOB _zig "${CMAKE_CURRENT_LIST_DIR}/../.venv/lib/python3.*/site-packages/ziglang/zig")
if(NOT _zig)
  message(FATAL_ERROR "no zig in .venv: run `make setup`")
endif()
list(GET _zig 0 _zig)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_CXX_COMPILER "${_zig}" c++ -target x86_64-linux-gnu.2.17)
set(CMAKE_CXX_FLAGS_INIT -fomit-frame-pointer)  # zig keeps it otherwise: 10 ns of a 160 ns launch
# zig remembers by itself what it has compiled.
set(CMAKE_CXX_COMPILER_LAUNCHER "")
