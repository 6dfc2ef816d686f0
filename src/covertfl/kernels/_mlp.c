/* The inner loops of mlp.py: local training of perceptrons.

   A call receives all jobs and a counter that several threads share; it takes the next job until
   none is left, with the interpreter's lock released.  One thread runs a job from start to end, so
   that its result does not depend on the number of threads.  Arrays come through the buffer protocol;
   their sizes are checked here, and row and class numbers before they are used. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define HAS_X86 1
#endif

#define INLINE inline __attribute__((always_inline, unused))
#define GOLDEN 0x9E3779B97F4A7C15u
#define LAYER_STRIDE 0x9E3779B9u
/* Rows of one forward pass in predictions. */
#define PORTION 48

typedef Py_ssize_t idx;

static INLINE idx least(idx a, idx b) { return a < b ? a : b; }
static INLINE idx most(idx a, idx b) { return a > b ? a : b; }

/* A linear layer; bias_from is negative without biases. */
typedef struct {
    idx in, out, weights_from, bias_from;
} layer;

/* A rectifier or a dropout before layer `place`. */
typedef struct {
    idx place, number;
    int is_dropout;
    uint32_t threshold;
    float scale;
} gate_;

typedef struct {
    layer *layers;
    gate_ *gates;
    idx num_layers, num_gates, num_weights;
    int is_binary;
} net;

enum { SGD, ADAM, GRADIENT };

/* The optimizer; step_size, root_scale and share change from step to step. */
typedef struct {
    int kind;
    float lr, momentum, decay, shrink, beta2, keep_first, keep_second, eps;
    float step_size, root_scale, share;
    double lr_exact, beta1_exact, beta2_exact;
} rule;

typedef struct {
    const float *weights, *features;
    const void *labels;
    const int64_t *rows;
    float *result;
    idx num_examples, num_rows, batch_size;
    uint64_t seed;
    int gradient;
} job;

/* The memory of one thread: packed weights and optimizer state, and for each layer its inputs and
   outputs, the derivatives of the loss by its outputs (deltas), and those of the gates after it. */
typedef struct {
    float *weights, *first, *second, *strip, *flipped, *taken;
    idx *packed, *ld;
    const float ***inputs, **delta_rows;
    float **values, **deltas, **gates;
    int *is_gated;
    idx num_packed, taken_ld;
    void *pointers, *numbers;
} workspace;

typedef struct {
    idx (*pad)(idx outputs);
    void (*repack)(const net *, const workspace *, float *, float *, int);
    void (*run_job)(const net *, workspace *, const rule *, const job *);
    void (*predict_rows)(const net *, workspace *, const float *, idx, idx, float *);
} kernel;

static INLINE uint64_t mix_long(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static INLINE uint32_t mix_word(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

/* Derivatives of the mean loss by the outputs of the last layer. */
static void differentiate_loss(const net *n, workspace *s, const void *labels, const int64_t *rows,
                               idx count)
{
    idx last = n->num_layers - 1, out = n->layers[last].out, ld = s->ld[last];
    float share = 1.0f / (float)count;
    for (idx b = 0; b < count; b++) {
        const float *output = s->values[last] + b * ld;
        float *delta = s->deltas[last] + b * ld;
        if (n->is_binary) {
            float label = ((const float *)labels)[rows[b]];
            float tail = expf(-fabsf(output[0]));
            float prob = output[0] >= 0.0f ? 1.0f / (1.0f + tail) : tail / (1.0f + tail);
            delta[0] = (prob - label) * share;
            continue;
        }
        float top = output[0], sum = 0.0f;
        for (idx j = 1; j < out; j++)
            top = output[j] > top ? output[j] : top;
        for (idx j = 0; j < out; j++)
            sum += delta[j] = expf(output[j] - top);
        float factor = share / sum;
        for (idx j = 0; j < out; j++)
            delta[j] *= factor;
        delta[((const int64_t *)labels)[rows[b]]] -= share;
    }
}

#define JOINED(a, b) a##_##b
#define NAME_OF(a, b) JOINED(a, b)

#define VL 4
#define NAME(x) NAME_OF(x, plain)
#include "_mlp_job.h"

#ifdef HAS_X86
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define VL 8
#define NAME(x) NAME_OF(x, avx2)
#include "_mlp_job.h"
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
#include "_mlp_job.h"
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

/* Distance of rows: a multiple of 128 would map too many of them to one cache set. */
static idx space_out(idx width) { return width % 128 == 0 ? width + 16 : width; }

static float *reserve(idx count)
{
    return aligned_alloc(64, ((size_t)count * sizeof(float) + 127) / 64 * 64);
}

static void release(const net *n, workspace *s)
{
    free(s->weights);
    free(s->first);
    free(s->second);
    free(s->strip);
    free(s->flipped);
    free(s->taken);
    free((void *)s->delta_rows);
    for (idx l = 0; l < n->num_layers && s->pointers; l++) {
        free(s->values[l]);
        free(s->deltas[l]);
        free(s->gates[l]);
        free((void *)s->inputs[l]);
    }
    free(s->pointers);
    free(s->numbers);
}

/* Allocate memory for batches of at most `rows`; return 0 if there is not enough. */
static int allocate(const net *n, const kernel *k, workspace *s, idx rows, int training)
{
    idx num = n->num_layers, flipped = 1;
    memset(s, 0, sizeof(*s));
    s->pointers = calloc((size_t)(4 * num), sizeof(void *));
    s->numbers = calloc((size_t)(3 * num), sizeof(idx));
    if (!s->pointers || !s->numbers)
        return 0;
    s->inputs = s->pointers;
    s->values = (float **)s->pointers + num;
    s->deltas = (float **)s->pointers + 2 * num;
    s->gates = (float **)s->pointers + 3 * num;
    s->packed = s->numbers;
    s->ld = (idx *)s->numbers + num;
    s->is_gated = (int *)((idx *)s->numbers + 2 * num);
    int fits = 1;
    idx widest = 0, change_inputs = 0;
    for (idx g = 0; g < n->num_gates; g++) {
        if (n->gates[g].place == 0)
            change_inputs = 1;
        else
            s->is_gated[n->gates[g].place - 1] = 1;
    }
    for (idx l = 0; l < num; l++) {
        idx width = k->pad(n->layers[l].out);
        s->ld[l] = space_out(width);
        s->packed[l] = s->num_packed;
        s->num_packed += width * (n->layers[l].in + 1);
        widest = most(widest, width);
        if (l > 0)
            flipped = most(flipped, n->layers[l].out * k->pad(n->layers[l].in));
        s->inputs[l] = calloc((size_t)most(rows, 1), sizeof(float *));
        s->values[l] = reserve(rows * s->ld[l]);
        fits = fits && s->inputs[l] && s->values[l];
        if (!training)
            continue;
        s->deltas[l] = reserve(rows * s->ld[l]);
        fits = fits && s->deltas[l];
        if (s->deltas[l])
            memset(s->deltas[l], 0, (size_t)(rows * s->ld[l]) * sizeof(float));
        if (s->is_gated[l]) {
            s->gates[l] = reserve(rows * s->ld[l]);
            fits = fits && s->gates[l];
        }
    }
    s->weights = reserve(s->num_packed);
    fits = fits && s->weights;
    s->taken_ld = space_out(n->layers[0].in);
    if (change_inputs || s->taken_ld != n->layers[0].in) {
        s->taken = reserve(rows * s->taken_ld);
        fits = fits && s->taken;
    }
    if (training) {
        s->first = reserve(s->num_packed);
        s->second = reserve(s->num_packed);
        s->strip = reserve(rows * widest);
        s->flipped = reserve(flipped);
        s->delta_rows = calloc((size_t)rows, sizeof(float *));
        fits = fits && s->first && s->second && s->strip && s->flipped && s->delta_rows;
    }
    for (idx l = 0; fits && l + 1 < num; l++)
        for (idx b = 0; b < rows; b++)
            s->inputs[l + 1][b] = s->values[l] + b * s->ld[l];
    return fits;
}

#include "_mlp_input.h"

/* Treat subnormal numbers (below 1e-38) as 0 during a job: on some processors they are a hundred times
   slower.  Return the mode of the calling thread, to be restored. */
static unsigned flush_subnormals(void)
{
#ifdef HAS_X86
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
    return mode;
#else
    return 0;
#endif
}

static void restore_mode(unsigned mode)
{
#ifdef HAS_X86
    _mm_setcsr(mode);
#else
    (void)mode;
#endif
}

static idx claim(int64_t *counter) { return (idx)__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

static void run_requests(const net *n, const rule *r, request *requests, idx num, int64_t *counter,
                         const kernel *k)
{
    workspace s;
    int fault = 0;
    idx number, position = 0, batch = 1;
    for (idx i = 0; i < num; i++)
        batch = most(batch, least(requests[i].job.batch_size, requests[i].job.num_rows));
    PyThreadState *state = PyEval_SaveThread();
    unsigned mode = flush_subnormals();
    if (!allocate(n, k, &s, batch, 1))
        fault = 3;
    number = 0;
    while (!fault && (number = claim(counter)) < num) {
        fault = find_fault(n, &requests[number].job, &position);
        if (!fault)
            k->run_job(n, &s, r, &requests[number].job);
    }
    release(n, &s);
    restore_mode(mode);
    PyEval_RestoreThread(state);
    if (fault)
        report_fault(n, &requests[least(number, num - 1)].job, fault, number, position);
}

/* run(layers, gates, options, is_binary, jobs, counter, widest): run jobs until none is left. */
static PyObject *run(PyObject *self, PyObject *args)
{
    Py_buffer layers, gates, options, counter;
    PyObject *jobs;
    int is_binary;
    idx widest;
    if (!PyArg_ParseTuple(args, "y*y*y*iOw*n", &layers, &gates, &options, &is_binary, &jobs, &counter,
                          &widest))
        return NULL;
    net n = {0};
    rule r;
    n.is_binary = is_binary;
    idx num = PyList_Check(jobs) ? PyList_Size(jobs) : -1, read = 0;
    request *requests = calloc((size_t)most(num, 1), sizeof(request));
    if (num < 0 || counter.len != (idx)sizeof(int64_t))
        PyErr_SetString(PyExc_ValueError, "jobs must be a list and counter one number");
    else if (!requests)
        PyErr_NoMemory();
    else if (read_net(&layers, &gates, &n) && read_rule(&options, &r)) {
        while (read < num && read_request(PyList_GetItem(jobs, read), &n, &requests[read], read))
            read++;
        if (read == num && num > 0)
            run_requests(&n, &r, requests, num, counter.buf, choose(widest));
    }
    for (idx i = 0; requests && i <= least(read, num - 1); i++)
        for (int v = 0; v < 5; v++)
            PyBuffer_Release(&requests[i].views[v]);
    free(requests);
    free_net(&n);
    PyBuffer_Release(&layers);
    PyBuffer_Release(&gates);
    PyBuffer_Release(&options);
    PyBuffer_Release(&counter);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* predict(layers, gates, weights, features, outputs, counter, widest): find the outputs of portions of
   the rows until none is left. */
static PyObject *predict(PyObject *self, PyObject *args)
{
    Py_buffer layers, gates, weights, features, outputs, counter;
    idx widest;
    if (!PyArg_ParseTuple(args, "y*y*y*y*w*w*n", &layers, &gates, &weights, &features, &outputs,
                          &counter, &widest))
        return NULL;
    net n = {0};
    if (read_net(&layers, &gates, &n)) {
        idx size = (idx)sizeof(float), out = n.layers[n.num_layers - 1].out;
        idx num = features.len / (n.layers[0].in * size);
        int is_short = 0;
        if (weights.len != n.num_weights * size || features.len != num * n.layers[0].in * size ||
            outputs.len != num * out * size || counter.len != (idx)sizeof(int64_t))
            PyErr_SetString(PyExc_ValueError, "arrays do not fit the model");
        else {
            const kernel *k = choose(widest);
            workspace s;
            PyThreadState *state = PyEval_SaveThread();
            unsigned mode = flush_subnormals();
            is_short = !allocate(&n, k, &s, PORTION, 0);
            if (!is_short) {
                k->repack(&n, &s, weights.buf, s.weights, 0);
                for (idx from; (from = claim(counter.buf) * PORTION) < num;)
                    k->predict_rows(&n, &s, features.buf, from, least(PORTION, num - from),
                                    outputs.buf);
            }
            release(&n, &s);
            restore_mode(mode);
            PyEval_RestoreThread(state);
        }
        if (is_short)
            PyErr_NoMemory();
    }
    free_net(&n);
    PyBuffer_Release(&layers);
    PyBuffer_Release(&gates);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&features);
    PyBuffer_Release(&outputs);
    PyBuffer_Release(&counter);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"run", run, METH_VARARGS, "Run jobs until none is left."},
    {"predict", predict, METH_VARARGS, "Find the outputs of portions of the rows until none is left."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_mlp", "Inner loops of the kernel for perceptrons.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__mlp(void) { return PyModuleDef_Init(&module); }
