/* The inner loops of mlp_kernel.py: local training of perceptrons.

   A call is handed all jobs and a counter that several threads share; it takes the next job until
   none is left, with the interpreter's lock released.  A job is done by one thread from beginning to
   end, so that its bits do not depend on the number of threads.  Arrays come through the buffer
   protocol and are checked for size here; row and class numbers too, before they are used. */

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
/* Rows that are predicted at a time. */
#define PORTION 48

typedef Py_ssize_t idx;

static INLINE idx least(idx a, idx b) { return a < b ? a : b; }
static INLINE idx most(idx a, idx b) { return a > b ? a : b; }

/* A linear layer; bias_from is negative where it has none. */
typedef struct {
    idx in, out, weights_from, bias_from;
} layer;

/* A rectifier or a dropout in front of layer `place`. */
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

/* The optimiser; step_size, root_scale and share belong to a step. */
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

/* What one thread works with: packed weights and state, and for each layer its inputs, outputs, the
   slopes of the loss by them, and the slopes of what follows it. */
typedef struct {
    float *weights, *first, *second, *strip, *flipped, *taken;
    idx *packed, *ld;
    const float ***inputs, **slope_rows;
    float **values, **slopes, **gates;
    int *is_gated;
    idx num_packed, taken_ld;
    void *pointers, *numbers;
} room;

typedef struct {
    idx (*pad)(idx outputs);
    void (*repack)(const net *, const room *, float *, float *, int);
    void (*run_job)(const net *, room *, const rule *, const job *);
    void (*predict_rows)(const net *, room *, const float *, idx, idx, float *);
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

/* Slopes of the mean loss by the outputs of the last layer. */
static void find_slopes(const net *n, room *s, const void *labels, const int64_t *rows, idx count)
{
    idx last = n->num_layers - 1, out = n->layers[last].out, ld = s->ld[last];
    float share = 1.0f / (float)count;
    for (idx b = 0; b < count; b++) {
        const float *output = s->values[last] + b * ld;
        float *slope = s->slopes[last] + b * ld;
        if (n->is_binary) {
            float label = ((const float *)labels)[rows[b]];
            float small = expf(-fabsf(output[0]));
            float chance = output[0] >= 0.0f ? 1.0f / (1.0f + small) : small / (1.0f + small);
            slope[0] = (chance - label) * share;
            continue;
        }
        float top = output[0], sum = 0.0f;
        for (idx j = 1; j < out; j++)
            top = output[j] > top ? output[j] : top;
        for (idx j = 0; j < out; j++)
            sum += slope[j] = expf(output[j] - top);
        float factor = share / sum;
        for (idx j = 0; j < out; j++)
            slope[j] *= factor;
        slope[((const int64_t *)labels)[rows[b]]] -= share;
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

/* The widest kernel that the processor has, or a narrower one if asked for. */
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

/* Rows of values that are many to a cache set are kept further apart. */
static idx space_out(idx width) { return width % 128 == 0 ? width + 16 : width; }

static float *reserve(idx count)
{
    return aligned_alloc(64, ((size_t)count * sizeof(float) + 127) / 64 * 64);
}

static void leave_room(const net *n, room *s)
{
    free(s->weights);
    free(s->first);
    free(s->second);
    free(s->strip);
    free(s->flipped);
    free(s->taken);
    free((void *)s->slope_rows);
    for (idx l = 0; l < n->num_layers && s->pointers; l++) {
        free(s->values[l]);
        free(s->slopes[l]);
        free(s->gates[l]);
        free((void *)s->inputs[l]);
    }
    free(s->pointers);
    free(s->numbers);
}

/* Room for batches of at most `rows`; 0 where memory is short. */
static int make_room(const net *n, const kernel *k, room *s, idx rows, int training)
{
    idx num = n->num_layers, flipped = 1;
    memset(s, 0, sizeof(*s));
    s->pointers = calloc((size_t)(4 * num), sizeof(void *));
    s->numbers = calloc((size_t)(3 * num), sizeof(idx));
    if (!s->pointers || !s->numbers)
        return 0;
    s->inputs = s->pointers;
    s->values = (float **)s->pointers + num;
    s->slopes = (float **)s->pointers + 2 * num;
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
        s->slopes[l] = reserve(rows * s->ld[l]);
        fits = fits && s->slopes[l];
        if (s->slopes[l])
            memset(s->slopes[l], 0, (size_t)(rows * s->ld[l]) * sizeof(float));
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
        s->slope_rows = calloc((size_t)rows, sizeof(float *));
        fits = fits && s->first && s->second && s->strip && s->flipped && s->slope_rows;
    }
    for (idx l = 0; fits && l + 1 < num; l++)
        for (idx b = 0; b < rows; b++)
            s->inputs[l + 1][b] = s->values[l] + b * s->ld[l];
    return fits;
}

static void forget_net(net *n)
{
    free(n->layers);
    free(n->gates);
}

/* Read (L, 3) layers (inputs, outputs, 1 with biases) and (G, 4) gates (place, 1 for a dropout, rate,
   number of the dropout). */
static int read_net(const Py_buffer *layers, const Py_buffer *gates, net *n)
{
    const int64_t *sizes = layers->buf;
    const double *gate = gates->buf;
    n->num_layers = layers->len / (3 * (idx)sizeof(int64_t));
    n->num_gates = gates->len / (4 * (idx)sizeof(double));
    n->num_weights = 0;
    n->layers = calloc((size_t)n->num_layers + 1, sizeof(layer));
    n->gates = calloc((size_t)n->num_gates + 1, sizeof(gate_));
    if (!n->layers || !n->gates) {
        PyErr_NoMemory();
        return 0;
    }
    int fits = n->num_layers > 0;
    for (idx l = 0; l < n->num_layers; l++) {
        layer *f = &n->layers[l];
        f->in = (idx)sizes[3 * l];
        f->out = (idx)sizes[3 * l + 1];
        fits = fits && f->in > 0 && f->out > 0 && f->in < 1 << 24 && f->out < 1 << 24 &&
               (l == 0 || f->in == n->layers[l - 1].out);
        f->weights_from = n->num_weights;
        n->num_weights += f->in * f->out;
        f->bias_from = sizes[3 * l + 2] ? n->num_weights : -1;
        n->num_weights += sizes[3 * l + 2] ? f->out : 0;
    }
    for (idx g = 0; g < n->num_gates; g++) {
        gate_ *to = &n->gates[g];
        double rate = gate[4 * g + 2];
        to->place = (idx)gate[4 * g];
        to->is_dropout = gate[4 * g + 1] != 0.0;
        to->number = (idx)gate[4 * g + 3];
        fits = fits && rate >= 0.0 && rate < 1.0 && to->place >= 0 && to->place < n->num_layers;
        to->threshold = fits ? (uint32_t)floor(rate * 4294967296.0) : 0;
        to->scale = (float)(1.0 / (1.0 - rate));
    }
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "the layers do not fit each other");
    return fits;
}

/* Read the optimiser: name (0 sgd, 1 adam, 2 adamw), lr, momentum, beta1, beta2, eps, weight decay. */
static int read_rule(const Py_buffer *options, rule *r)
{
    if (options->len != 7 * (idx)sizeof(double)) {
        PyErr_SetString(PyExc_ValueError, "options must hold 7 numbers");
        return 0;
    }
    const double *o = options->buf;
    memset(r, 0, sizeof(*r));
    r->kind = o[0] == 0.0 ? SGD : ADAM;
    r->lr_exact = o[1];
    r->beta1_exact = o[3];
    r->beta2_exact = o[4];
    r->lr = (float)o[1];
    r->momentum = (float)o[2];
    r->beta2 = (float)o[4];
    r->keep_first = (float)(1.0 - o[3]);
    r->keep_second = (float)(1.0 - o[4]);
    r->eps = (float)o[5];
    r->decay = o[0] == 2.0 ? 0.0f : (float)o[6];
    r->shrink = o[0] == 2.0 ? (float)(1.0 - o[1] * o[6]) : 1.0f;
    return 1;
}

typedef struct {
    Py_buffer views[5];
    job job;
} request;

static int read_request(PyObject *tuple, const net *n, request *q, idx number)
{
    unsigned long long seed;
    if (!PyArg_ParseTuple(tuple, "y*y*y*y*w*nKi", &q->views[0], &q->views[1], &q->views[2],
                          &q->views[3], &q->views[4], &q->job.batch_size, &seed, &q->job.gradient)) {
        memset(q->views, 0, sizeof(q->views));
        return 0;
    }
    job *j = &q->job;
    j->weights = q->views[0].buf;
    j->features = q->views[1].buf;
    j->labels = q->views[2].buf;
    j->rows = q->views[3].buf;
    j->result = q->views[4].buf;
    j->seed = seed;
    idx label = n->is_binary ? (idx)sizeof(float) : (idx)sizeof(int64_t);
    j->num_examples = q->views[2].len / label;
    j->num_rows = q->views[3].len / (idx)sizeof(int64_t);
    idx model = n->num_weights * (idx)sizeof(float);
    if (q->views[0].len == model && q->views[4].len == model && j->batch_size > 0 &&
        q->views[1].len == j->num_examples * n->layers[0].in * (idx)sizeof(float))
        return 1;
    PyErr_Format(PyExc_ValueError, "arrays of job %zd do not fit the model", number);
    return 0;
}

/* The first thing that is wrong with a job's rows: the position of a row number (1) or a label (2)
   that does not exist. */
static int find_fault(const net *n, const job *j, idx *position)
{
    idx classes = n->layers[n->num_layers - 1].out;
    for (idx b = 0; b < j->num_rows; b++) {
        *position = b;
        if (j->rows[b] < 0 || j->rows[b] >= j->num_examples)
            return 1;
        if (n->is_binary)
            continue;
        int64_t label = ((const int64_t *)j->labels)[j->rows[b]];
        if (label < 0 || label >= classes)
            return 2;
    }
    return 0;
}

static void report_fault(const net *n, const job *j, int fault, idx number, idx position)
{
    if (fault == 3)
        PyErr_NoMemory();
    else if (fault == 1)
        PyErr_Format(PyExc_ValueError, "rows of job %zd must lie between 0 and %zd, got %lld", number,
                     j->num_examples - 1, (long long)j->rows[position]);
    else
        PyErr_Format(PyExc_ValueError, "labels of job %zd must lie between 0 and %zd, got %lld", number,
                     n->layers[n->num_layers - 1].out - 1,
                     (long long)((const int64_t *)j->labels)[j->rows[position]]);
}

/* Numbers below 1e-38 count as 0 during a job: some processors take a hundred times longer for them.
   The calling thread gets back the mode it had. */
static unsigned flush_tiny(void)
{
#ifdef HAS_X86
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
    return mode;
#else
    return 0;
#endif
}

static void restore_tiny(unsigned mode)
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
    room s;
    int fault = 0;
    idx number, position = 0, batch = 1;
    for (idx i = 0; i < num; i++)
        batch = most(batch, least(requests[i].job.batch_size, requests[i].job.num_rows));
    PyThreadState *state = PyEval_SaveThread();
    unsigned mode = flush_tiny();
    if (!make_room(n, k, &s, batch, 1))
        fault = 3;
    number = 0;
    while (!fault && (number = claim(counter)) < num) {
        fault = find_fault(n, &requests[number].job, &position);
        if (!fault)
            k->run_job(n, &s, r, &requests[number].job);
    }
    leave_room(n, &s);
    restore_tiny(mode);
    PyEval_RestoreThread(state);
    if (fault)
        report_fault(n, &requests[least(number, num - 1)].job, fault, number, position);
}

/* run(layers, gates, options, is_binary, jobs, counter, widest): carry out jobs until none is left. */
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
    forget_net(&n);
    PyBuffer_Release(&layers);
    PyBuffer_Release(&gates);
    PyBuffer_Release(&options);
    PyBuffer_Release(&counter);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* predict(layers, gates, weights, features, outputs, counter, widest): outputs of portions of the rows
   until none is left. */
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
            room s;
            PyThreadState *state = PyEval_SaveThread();
            unsigned mode = flush_tiny();
            is_short = !make_room(&n, k, &s, PORTION, 0);
            if (!is_short) {
                k->repack(&n, &s, weights.buf, s.weights, 0);
                for (idx from; (from = claim(counter.buf) * PORTION) < num;)
                    k->predict_rows(&n, &s, features.buf, from, least(PORTION, num - from),
                                    outputs.buf);
            }
            leave_room(&n, &s);
            restore_tiny(mode);
            PyEval_RestoreThread(state);
        }
        if (is_short)
            PyErr_NoMemory();
    }
    forget_net(&n);
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
    {"run", run, METH_VARARGS, "Carry out jobs until none is left."},
    {"predict", predict, METH_VARARGS, "Outputs of portions of the rows until none is left."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_mlp", "Inner loops of the kernel of perceptrons.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__mlp(void) { return PyModuleDef_Init(&module); }
