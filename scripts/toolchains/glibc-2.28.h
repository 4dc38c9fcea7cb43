// Included first in every source when addons are built for publishing. They use the C++ library of a newer compiler and
// glibc 2.31, but may use nothing newer than glibc 2.28. This file handles each difference.
#pragma once

#include <bits/c++config.h>

// Exists since glibc 2.32, and is used by the statically linked objects of the C++ library. Zero means that there may
// be several threads.
extern "C" {
__attribute__((weak, used, visibility("hidden"))) char __libc_single_threaded = 0;
}

// These functions exist since glibc 2.30. Without them, the library waits on the system clock and then checks the
// steady clock.
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
#undef _GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK
#undef _GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK

// New versions since glibc 2.29 omit the SVID error wrappers. The oldest versions return the same results.
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
