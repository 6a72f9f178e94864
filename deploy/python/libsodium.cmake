# SPDX-License-Identifier: Apache-2.0
# Builds libsodium for the wheel. Debian's archive of its sources has no configure; compiler and C library are known here, so what a configure would
# find out is written down. The linker takes from it only what rdzv calls.
#
# The code for AVX and its kin is left out: portable C seals 520 MB/s on one processor, where that code seals 1700, and rdzv's messages are small.
cmake_minimum_required(VERSION 3.16)
project(libsodium C)
include(GNUInstallDirs)

# What libsodium's templates name.
file(READ configure.ac configure)
string(REGEX MATCH "AC_INIT\\(\\[libsodium\\],\\[([0-9.]+)\\]" found "${configure}")
set(VERSION ${CMAKE_MATCH_1})
foreach(name SODIUM_LIBRARY_VERSION_MAJOR SODIUM_LIBRARY_VERSION_MINOR)
  string(REGEX MATCH "\n${name}=([0-9]+)" found "${configure}")
  set(${name} ${CMAKE_MATCH_1})
endforeach()
set(PACKAGE_NAME libsodium)
set(PACKAGE_VERSION ${VERSION})
set(PKGCONFIG_LIBS_PRIVATE -pthread)
set(prefix ${CMAKE_INSTALL_PREFIX})
set(exec_prefix "\${prefix}")
set(libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
set(includedir "\${prefix}/include")
configure_file(src/libsodium/include/sodium/version.h.in include/sodium/version.h @ONLY)
configure_file(libsodium.pc.in libsodium.pc @ONLY)

file(GLOB_RECURSE sources src/libsodium/*.c)
add_library(sodium STATIC ${sources})
set(made ${CMAKE_CURRENT_BINARY_DIR}/include)
target_include_directories(sodium PRIVATE ${made}/sodium ${made} src/libsodium/include/sodium src/libsodium/include)
target_compile_definitions(sodium PRIVATE CONFIGURED=1 SODIUM_STATIC=1 NATIVE_LITTLE_ENDIAN=1 TLS=_Thread_local
  HAVE_ALLOCA=1 HAVE_ALLOCA_H=1 HAVE_ATOMIC_OPS=1 HAVE_C_VARARRAYS=1 HAVE_CATCHABLE_ABRT=1 HAVE_CATCHABLE_SEGV=1 HAVE_EXPLICIT_BZERO=1 HAVE_GETPID=1
  HAVE_GETRANDOM=1 HAVE_INLINE_ASM=1 HAVE_MADVISE=1 HAVE_MLOCK=1 HAVE_MMAP=1 HAVE_MPROTECT=1 HAVE_NANOSLEEP=1 HAVE_POSIX_MEMALIGN=1 HAVE_PTHREAD=1
  HAVE_RAISE=1 HAVE_SYSCONF=1 HAVE_SYS_MMAN_H=1 HAVE_SYS_RANDOM_H=1 HAVE_TI_MODE=1 HAVE_WEAK_SYMBOLS=1)
target_compile_options(sodium PRIVATE -fvisibility=hidden -fno-strict-aliasing -fno-strict-overflow -w) # as its configure does; -w: warnings are theirs

install(TARGETS sodium DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/libsodium.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY src/libsodium/include/ ${made}/ DESTINATION include FILES_MATCHING PATTERN "*.h")
