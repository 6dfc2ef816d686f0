/* The inner loops of exact_sum.py: weighted sums of vectors that lose nothing.

   Every sum or difference below must be rounded to double precision and nowhere else: no fused
   products, no wider registers.  Arrays come through the buffer protocol; their sizes are checked
   here. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "sums must be rounded to their own precision"
#endif

/* Coordinates whose remainders are looked at together. */
#define CHUNK 1024
/* A wide number: 64-bit limbs in two's complement, the lowest first, in units of 2^-UNIT. */
#define LIMBS 8
#define UNIT 213
/* Coordinates from which the interpreter's lock is released. */
#define MANY 8192

#define INLINE inline __attribute__((always_inline, unused))

typedef Py_ssize_t idx;
typedef unsigned __int128 wide_word;

/* Add weight * values to high + low.  What is left over is exact as well; return whether there is
   any. */
static INLINE int add_chunk(const float *restrict values, double weight, double *restrict high,
                            double *restrict low, double *restrict left, idx num)
{
    uint64_t found = 0;
    for (idx i = 0; i < num; i++) {
        double term = weight * (double)values[i];
        double before = high[i], sum = before + term, part = sum - before;
        double rest = (before - (sum - part)) + (term - part);
        double under = low[i], lower = under + rest, share = lower - under;
        double over = (under - (lower - share)) + (rest - share);
        uint64_t bits;
        memcpy(&bits, &over, sizeof(bits));
        found |= bits << 1; /* -0.0 is nothing */
        high[i] = sum;
        low[i] = lower;
        left[i] = over;
    }
    return found != 0;
}

static int add_plain(const float *values, double weight, double *high, double *low, double *left,
                     idx num)
{
    return add_chunk(values, weight, high, low, left, num);
}

#if defined(__x86_64__)
/* The same operations on wider vectors, with the same results: none is fused. */
__attribute__((target("avx2"))) static int add_avx2(const float *values, double weight, double *high,
                                                    double *low, double *left, idx num)
{
    return add_chunk(values, weight, high, low, left, num);
}

__attribute__((target("avx512f,avx512dq"))) static int add_avx512(const float *values, double weight,
                                                                 double *high, double *low,
                                                                 double *left, idx num)
{
    return add_chunk(values, weight, high, low, left, num);
}
#endif

typedef int (*adder)(const float *, double, double *, double *, double *, idx);

static adder choose(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        return add_avx512;
    if (__builtin_cpu_supports("avx2"))
        return add_avx2;
#endif
    return add_plain;
}

/* A vector in parts: the first of those that are left, and the coordinate at which it begins. */
typedef struct {
    const Py_buffer *part;
    idx begin;
} source;

/* Return some coordinates of a vector, in `joined` where they are not in one part, or where bytes
   from a client put them at an odd address. */
static const float *read_chunk(source *vector, idx from, idx num, float *joined)
{
    for (idx got = 0; got < num;) {
        idx size = vector->part->len / (idx)sizeof(float), at = from + got - vector->begin;
        if (at >= size) {
            vector->begin += size;
            vector->part++;
            continue;
        }
        const char *found = (const char *)vector->part->buf + at * (idx)sizeof(float);
        idx there = size - at < num - got ? size - at : num - got;
        if (there == num && (uintptr_t)found % sizeof(float) == 0)
            return (const float *)found;
        memcpy(joined + got, found, there * sizeof(float));
        got += there;
    }
    return joined;
}

/* Add chunk by chunk, all vectors to each: its sums stay in the cache.  Return the first step that
   leaves something over. */
static idx add_steps(source *vectors, const double *weights, idx number, double *high, double *low,
                     double *left, idx step, idx size)
{
    adder add_one = choose();
    float joined[CHUNK];
    for (idx from = step / number * CHUNK; from < size; from += CHUNK) {
        idx num = size - from < CHUNK ? size - from : CHUNK;
        for (idx i = step % number; i < number; i++, step++) {
            const float *values = read_chunk(vectors + i, from, num, joined);
            if (add_one(values, weights[i], high + from, low + from, left, num))
                return step;
        }
    }
    return step;
}

/* Add a multiple of 2^-UNIT to a wide number. */
static void add_wide(uint64_t *limbs, double term)
{
    if (term == 0.0 || !isfinite(term))
        return;
    int exponent;
    double scaled = ldexp(frexp(fabs(term), &exponent), 53);
    int shift = exponent - 53 + UNIT, place = shift / 64;
    if (shift < 0 || place > LIMBS - 2)
        return; /* no sum of 32-bit floats comes here */
    wide_word value = (wide_word)(uint64_t)scaled << (shift % 64);
    uint64_t parts[2] = {(uint64_t)value, (uint64_t)(value >> 64)};
    uint64_t carry = 0;
    for (idx i = place; i < LIMBS; i++) {
        uint64_t part = i - place < 2 ? parts[i - place] : 0, old = limbs[i];
        if (term > 0.0) {
            wide_word sum = (wide_word)old + part + carry;
            limbs[i] = (uint64_t)sum;
            carry = (uint64_t)(sum >> 64);
        } else {
            wide_word difference = (wide_word)old - part - carry;
            limbs[i] = (uint64_t)difference;
            carry = (uint64_t)(difference >> 64) & 1;
        }
    }
}

/* Return the double nearest to a wide number, the even one of two. */
static double round_wide(uint64_t *limbs)
{
    int is_negative = (int)(limbs[LIMBS - 1] >> 63);
    uint64_t carry = 1;
    for (idx i = 0; is_negative && i < LIMBS; i++) {
        limbs[i] = ~limbs[i] + carry;
        carry = carry && limbs[i] == 0;
    }
    idx top = LIMBS - 1;
    while (top >= 0 && limbs[top] == 0)
        top--;
    if (top < 0)
        return 0.0;
    int empty = __builtin_clzll(limbs[top]);
    uint64_t lead = limbs[top] << empty, rest = top > 0 ? limbs[top - 1] : 0;
    if (empty > 0)
        lead |= rest >> (64 - empty);
    rest = empty > 0 ? rest << empty : rest;
    for (idx i = 0; i < top - 1; i++)
        rest |= limbs[i];
    /* The lowest bit stands for all that follow: 53 of the 64 are kept. */
    double rounded = ldexp((double)(lead | (rest != 0)), (int)(64 * top) - empty - UNIT);
    return is_negative ? -rounded : rounded;
}

static int refuse_sizes(void)
{
    PyErr_SetString(PyExc_ValueError, "arrays do not have the same length");
    return 0;
}

/* Find where each vector begins among parts; return whether all have as many coordinates. */
static int divide_parts(const Py_buffer *parts, idx num_parts, source *vectors, idx number, idx size)
{
    idx place = 0;
    for (idx i = 0; i < number; i++) {
        idx length = 0;
        vectors[i] = (source){parts + place, 0};
        while (length < size && place < num_parts)
            length += parts[place++].len / (idx)sizeof(float);
        if (length != size)
            return 0;
    }
    return place == num_parts;
}

/* add(parts, weights, high, low, left, step): add vectors, each in parts of at least one
   coordinate, from a step on.  A step adds a chunk of one vector; those of a chunk follow each
   other.  Return the first step that leaves something over, in `left`, or the number of steps. */
static PyObject *add(PyObject *self, PyObject *args)
{
    PyObject *list;
    Py_buffer weights, high, low, left;
    idx step, got = 0;
    if (!PyArg_ParseTuple(args, "O!y*w*w*w*n", &PyList_Type, &list, &weights, &high, &low, &left,
                          &step))
        return NULL;
    idx num_parts = PyList_Size(list), number = weights.len / (idx)sizeof(double);
    idx size = high.len / (idx)sizeof(double);
    Py_buffer *parts = PyMem_Calloc(num_parts + 1, sizeof(Py_buffer));
    source *vectors = PyMem_Calloc(number + 1, sizeof(source));
    if (!parts || !vectors)
        PyErr_NoMemory();
    else
        while (got < num_parts &&
               !PyObject_GetBuffer(PyList_GetItem(list, got), parts + got, PyBUF_SIMPLE))
            got++;
    if (!PyErr_Occurred()) {
        if (!divide_parts(parts, num_parts, vectors, number, size) || low.len != high.len ||
            left.len != CHUNK * (idx)sizeof(double) || step < 0)
            refuse_sizes();
        else if (number) {
            PyThreadState *state = size < MANY ? NULL : PyEval_SaveThread();
            step = add_steps(vectors, weights.buf, number, high.buf, low.buf, left.buf, step, size);
            if (state)
                PyEval_RestoreThread(state);
        }
    }
    for (idx i = 0; i < got; i++)
        PyBuffer_Release(parts + i);
    PyMem_Free(parts);
    PyMem_Free(vectors);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&high);
    PyBuffer_Release(&low);
    PyBuffer_Release(&left);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(step);
}

/* spill(left, wide): add what was left over, as many as there are wide numbers. */
static PyObject *spill(PyObject *self, PyObject *args)
{
    Py_buffer left, wide;
    if (!PyArg_ParseTuple(args, "y*w*", &left, &wide))
        return NULL;
    idx size = wide.len / (LIMBS * (idx)sizeof(uint64_t));
    const double *terms = left.buf;
    uint64_t *limbs = wide.buf;
    if (left.len < size * (idx)sizeof(double))
        refuse_sizes();
    else
        for (idx i = 0; i < size; i++)
            if (terms[i] != 0.0)
                add_wide(limbs + LIMBS * i, terms[i]);
    PyBuffer_Release(&left);
    PyBuffer_Release(&wide);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* settle(wide, high, low): turn sums in three parts into the doubles nearest to them, in `high`. */
static PyObject *settle(PyObject *self, PyObject *args)
{
    Py_buffer wide, high, low;
    if (!PyArg_ParseTuple(args, "y*w*y*", &wide, &high, &low))
        return NULL;
    idx size = high.len / (idx)sizeof(double);
    const uint64_t *limbs = wide.buf;
    double *upper = high.buf;
    const double *lower = low.buf;
    if (low.len != high.len || wide.len != size * LIMBS * (idx)sizeof(uint64_t))
        refuse_sizes();
    else
        for (idx i = 0; i < size; i++) {
            uint64_t sum[LIMBS];
            memcpy(sum, limbs + LIMBS * i, sizeof(sum));
            add_wide(sum, upper[i]);
            add_wide(sum, lower[i]);
            if (isfinite(upper[i])) /* otherwise the vectors were not */
                upper[i] = round_wide(sum);
        }
    PyBuffer_Release(&wide);
    PyBuffer_Release(&high);
    PyBuffer_Release(&low);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* divide(high, low, total, mean): write (high + low) / total as 32-bit floats, zeros without sign. */
static PyObject *divide(PyObject *self, PyObject *args)
{
    Py_buffer high, low, mean;
    double total;
    if (!PyArg_ParseTuple(args, "y*y*dw*", &high, &low, &total, &mean))
        return NULL;
    idx size = mean.len / (idx)sizeof(float);
    const double *upper = high.buf, *lower = low.buf;
    float *written = mean.buf;
    if (high.len != size * (idx)sizeof(double) || low.len != high.len)
        refuse_sizes();
    else {
        PyThreadState *state = size < MANY ? NULL : PyEval_SaveThread();
        for (idx i = 0; i < size; i++)
            written[i] = (float)((upper[i] + lower[i]) / total) + 0.0f;
        if (state)
            PyEval_RestoreThread(state);
    }
    PyBuffer_Release(&high);
    PyBuffer_Release(&low);
    PyBuffer_Release(&mean);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"add", add, METH_VARARGS, "Add weighted vectors up to the first step that leaves something."},
    {"spill", spill, METH_VARARGS, "Add what was left over to wide numbers."},
    {"settle", settle, METH_VARARGS, "Round sums with wide numbers to doubles."},
    {"divide", divide, METH_VARARGS, "Divide sums by their total weight."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_sum", "Inner loops of exact sums.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__sum(void) { return PyModuleDef_Init(&module); }
