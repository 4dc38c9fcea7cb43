// Included before anything else where addons are built for publishing: with the C++ library of a newer compiler, and
// glibc 2.31, of which nothing newer than 2.28 may be used. What is done about each difference is here.
#pragma once

#include <bits/c++config.h>

// Since glibc 2.32, for the objects of the C++ library that are linked in. Zero: there may be several threads.
extern "C" {
__attribute__((weak, used, visibility("hidden"))) char __libc_single_threaded = 0;
}

// Since glibc 2.30. Without it, the library waits on the system's clock and looks at the steady one after that.
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
#undef _GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK
#undef _GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK

// Since glibc 2.29 without wrappers for errors of SVID; results are the same.
#ifdef __x86_64__
#define MOSAIC_GLIBC_OLDEST "GLIBC_2.2.5"
#else
#define MOSAIC_GLIBC_OLDEST "GLIBC_2.17"
#endif
#define MOSAIC_GLIBC_OLD(name) __asm__(".symver " #name ", " #name "@" MOSAIC_GLIBC_OLDEST)
MOSAIC_GLIBC_OLD(exp);
MOSAIC_GLIBC_OLD(exp2);
MOSAIC_GLIBC_OLD(log);
MOSAIC_GLIBC_OLD(log2);
MOSAIC_GLIBC_OLD(pow);
