# Toolchain for what runs in guests: zig's clang, libc++ (linked statically) and the symbols of glibc 2.17, so that
# CentOS 7, Ubuntu 16 and whatever is younger can load it.
include("${CMAKE_CURRENT_LIST_DIR}/find_zig.cmake")
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_CXX_COMPILER ${KVGPU_ZIG_CXX})
set(CMAKE_CXX_FLAGS_INIT -fomit-frame-pointer)  # zig keeps it otherwise: 10 ns of a 160 ns launch
# zig remembers by itself what it has compiled.
set(CMAKE_CXX_COMPILER_LAUNCHER "")
