# Compiler flags per instruction set. The only files that may have them are the ones named *_avx2.cc and *_avx512.cc.
#   mosaic_isa_flags(native/gemm/gemm_avx2.cc native/gemm/gemm_avx512.cc …)
set(MOSAIC_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(MOSAIC_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c -mprefer-vector-width=512)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND MOSAIC_FLAGS_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)  # its own headers: GCC bug 105593
endif()

function(mosaic_isa_flags)
  foreach(file ${ARGN})
    foreach(isa avx2 avx512)
      if(file MATCHES "_${isa}\\.cc$" AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
        set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${MOSAIC_FLAGS_${isa}}")
      endif()
    endforeach()
  endforeach()
endfunction()
