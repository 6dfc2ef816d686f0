/* The file JOB for each instruction set, and the choice among them while the program runs. */

#define VL 4
#define NAME(x) NAME_OF(x, plain)
#include JOB
#include "_vectors_end.h"

#ifdef HAS_X86
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define VL 8
#define NAME(x) NAME_OF(x, avx2)
#include JOB
#include "_vectors_end.h"
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx2,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx2,fma,prefer-vector-width=512")
#endif
#define VL 16
#define NAME(x) NAME_OF(x, avx512)
#include JOB
#include "_vectors_end.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

/* The kernel for the widest vectors of the processor, of at most `widest` floats. */
static const kernel *choose(idx widest)
{
#ifdef HAS_X86
    __builtin_cpu_init();
    if (widest >= 16 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        return &kernel_avx512;
    if (widest >= 8 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &kernel_avx2;
#endif
    return &kernel_plain;
}
