# Compiler flags per instruction set. Only files named *_<instruction set>.cc are compiled with them.
#   mosaic_isa_sources(sources native/gemm/gemm)    # gemm_scalar.cc, gemm_avx2.cc, … for this architecture
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(MOSAIC_ISAS avx2 avx512 avx512_bf16 amx)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(MOSAIC_ISAS neon neon_bf16)
endif()
set(MOSAIC_FLAGS_avx2 -mavx2 -mfma -mf16c -mprfchw)
set(MOSAIC_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c -mprfchw
    -mprefer-vector-width=512)
set(MOSAIC_FLAGS_avx512_bf16 ${MOSAIC_FLAGS_avx512} -mavx512bf16)
set(MOSAIC_FLAGS_amx ${MOSAIC_FLAGS_avx512_bf16} -mamx-tile -mamx-bf16)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  foreach(isa avx512 avx512_bf16 amx)  # warnings in GCC's own headers: GCC bug 105593
    list(APPEND MOSAIC_FLAGS_${isa} -Wno-uninitialized -Wno-maybe-uninitialized)
  endforeach()
endif()
set(MOSAIC_FLAGS_neon "")  # part of every 64-bit Arm
# No float16 instruction is needed, but GCC 12 emits one for constants of 16-bit lanes, which its assembler rejects
# without +fp16.
set(MOSAIC_FLAGS_neon_bf16 -march=armv8.2-a+fp16+bf16)

function(mosaic_isa_sources variable)
  foreach(stem ${ARGN})
    list(APPEND sources ${stem}_scalar.cc)
    foreach(isa ${MOSAIC_ISAS})
      # An instruction set that adds nothing has no file and uses that of the previous one.
      if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${stem}_${isa}.cc)
        list(APPEND sources ${stem}_${isa}.cc)
        set_source_files_properties(${stem}_${isa}.cc PROPERTIES COMPILE_OPTIONS "${MOSAIC_FLAGS_${isa}}")
      endif()
    endforeach()
  endforeach()
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()
