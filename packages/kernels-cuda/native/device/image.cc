#include "device/module.h"

#if defined(MOSAIC_WITH_KERNELS)

// The output file of nvcc, unchanged.
asm(".section .rodata\n"
    ".balign 64\n"
    "mosaicKernelImage: .incbin \"" MOSAIC_KERNEL_IMAGE "\"\n"
    ".previous\n");
extern "C" const unsigned char mosaicKernelImage[];

const void* mosaic::cuda::kernelImage() { return mosaicKernelImage; }
const char* mosaic::cuda::kernelCompiler() { return MOSAIC_KERNEL_COMPILER; }

#else

const void* mosaic::cuda::kernelImage() { return nullptr; }
const char* mosaic::cuda::kernelCompiler() { return "?"; }

#endif
