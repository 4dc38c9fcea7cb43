# The kernels, compiled by nvcc into one fat binary in the addon: sm_80, sm_90a, and PTX for later GPUs.
# MOSAIC_CUDA_ARCHITECTURES=90a in the environment compiles for one of them only, in half the time.
set(KERNEL_SOURCES
  native/kernels/elementwise.cu native/kernels/reduce.cu native/kernels/rows.cu
  native/kernels/attend_mma.cu native/kernels/attend_hopper.cu
  native/kernels/attend_float.cu native/kernels/attend_backward_float.cu)

find_program(NVCC nvcc HINTS /usr/local/cuda/bin)

# kernel_image(target sources…)
function(kernel_image target)
  if(NOT NVCC)
    message(NOTICE "note: nvcc was not found: ${target} has no CUDA kernels, and opening a GPU fails with that reason")
    return()
  endif()
  # GPU machine code is the same for every host, so builds for several platforms share it.
  if(MOSAIC_KERNEL_FATBIN)
    set(image ${MOSAIC_KERNEL_FATBIN})
  else()
    set(image ${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin)
    compile_kernels(${target} ${image} ${ARGN})
  endif()
  execute_process(COMMAND ${NVCC} --version OUTPUT_VARIABLE version)
  string(REGEX MATCH "release ([0-9.]+)" version "${version}")
  set_source_files_properties(native/device/image.cc PROPERTIES OBJECT_DEPENDS ${image})
  target_compile_definitions(${target} PRIVATE MOSAIC_WITH_KERNELS MOSAIC_KERNEL_IMAGE="${image}"
    MOSAIC_KERNEL_COMPILER="${CMAKE_MATCH_1}")
endfunction()

# compile_kernels(target image sources…)
function(compile_kernels target image)
  # The registers and spills that ptxas reports, for test/budgets.test.ts.
  set(usage ${CMAKE_CURRENT_SOURCE_DIR}/build-emulated/ptxas.txt)
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/build-emulated)
  set(all ${CMAKE_CURRENT_BINARY_DIR}/all-kernels.cu)
  file(WRITE ${all}.new "")
  foreach(source ${ARGN})
    file(APPEND ${all}.new "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n")
    list(APPEND sources ${CMAKE_CURRENT_SOURCE_DIR}/${source})
  endforeach()
  file(COPY_FILE ${all}.new ${all} ONLY_IF_DIFFERENT)
  file(GLOB headers ${CMAKE_CURRENT_SOURCE_DIR}/native/kernels/*)
  foreach(name kernel_enums view)
    list(APPEND headers ${CMAKE_CURRENT_SOURCE_DIR}/../runtime/include/mosaic/${name}.h)
  endforeach()
  set(code_80 -gencode=arch=compute_80,code=[sm_80,compute_80])
  set(code_90a -gencode=arch=compute_90a,code=sm_90a)
  set(architectures $ENV{MOSAIC_CUDA_ARCHITECTURES})
  if(NOT architectures)
    set(architectures 80 90a)
  endif()
  foreach(architecture ${architectures})
    if(NOT code_${architecture})
      message(FATAL_ERROR "MOSAIC_CUDA_ARCHITECTURES: expected 80, 90a or 80;90a, received ${architectures}")
    endif()
    list(APPEND code ${code_${architecture}})
  endforeach()
  add_custom_command(OUTPUT ${image} DEPENDS ${all} ${sources} ${headers}
    COMMAND sh -c "\"$@\" 2> ${usage} || { cat ${usage} >&2; exit 1; }" nvcc
      ${NVCC} -std=c++20 -O3 --threads 2 -Xptxas -v -fatbin -o ${image} ${all}
      -I${CMAKE_CURRENT_SOURCE_DIR}/native -I${CMAKE_CURRENT_SOURCE_DIR}/../runtime/include
      ${code}
    COMMENT "Compiling CUDA kernels" VERBATIM)
  add_custom_target(${target}_kernels DEPENDS ${image})
  add_dependencies(${target} ${target}_kernels)
endfunction()
