# Builds published addons with the host's compiler of Debian or Ubuntu and the headers and libraries of an older Debian,
# so that they load on hosts as old as decision 0045 requires. scripts/release/prebuilds.mjs sets the environment:
# MOSAIC_TRIPLE ("aarch64-linux-gnu"), MOSAIC_PROCESSOR, MOSAIC_PLATFORM ("linux-arm64") and MOSAIC_SYSROOT.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $ENV{MOSAIC_PROCESSOR})
set(CMAKE_CXX_COMPILER $ENV{MOSAIC_TRIPLE}-g++)
set(CMAKE_SYSROOT $ENV{MOSAIC_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(NAPI_PLATFORM $ENV{MOSAIC_PLATFORM})

# Only these directories are searched, in this order, because a cross-compiler would search those of its own libc first.
# The C++ library is the compiler's, linked statically. The C library is the sysroot's.
function(print variable option)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} ${option} OUTPUT_VARIABLE output
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${variable} ${output} PARENT_SCOPE)
endfunction()
print(version -dumpversion)
print(intrinsics -print-file-name=include)
set(cxx /usr/$ENV{MOSAIC_TRIPLE}/include/c++/${version})  # directory of a cross-compiler
set(directories ${cxx} ${cxx}/$ENV{MOSAIC_TRIPLE})
if(NOT EXISTS ${cxx})
  set(directories /usr/include/c++/${version} /usr/include/$ENV{MOSAIC_TRIPLE}/c++/${version})
endif()
set(include ${CMAKE_SYSROOT}/usr/include)
list(APPEND directories ${intrinsics} ${include}/$ENV{MOSAIC_TRIPLE} ${include})
list(TRANSFORM directories PREPEND "-isystem ")
list(JOIN directories " " directories)
set(CMAKE_CXX_FLAGS_INIT "-nostdinc ${directories} -include ${CMAKE_CURRENT_LIST_DIR}/glibc-2.28.h")

set(flags "-B${CMAKE_SYSROOT}/usr/lib/$ENV{MOSAIC_TRIPLE}")
foreach(directory usr/lib/$ENV{MOSAIC_TRIPLE} lib/$ENV{MOSAIC_TRIPLE})
  string(APPEND flags " -L${CMAKE_SYSROOT}/${directory}")
endforeach()
set(CMAKE_MODULE_LINKER_FLAGS_INIT "${flags} -Wl,--no-undefined-version")
set(CMAKE_EXE_LINKER_FLAGS_INIT "${flags}")
