/* The end of what `_vectors.h` defines, before the next instruction set. */

#undef vec
#undef unaligned
#undef LOAD
#undef STORE
#undef VL
#undef NAME
