/* What the compiled kernels share: jobs, the optimizer, losses, and reading what Python passes. */

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

/* What a model expects and returns. */
typedef struct {
    idx inputs, outputs, num_weights;
    int is_binary;
} shape;

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

/* Derivatives of the mean loss of `total` rows by the outputs of `count` of them, ld apart. */
static void differentiate_loss(const shape *n, const float *outputs, float *deltas, idx ld,
                               const void *labels, const int64_t *rows, idx count, idx total)
{
    idx out = n->outputs;
    float share = 1.0f / (float)total;
    for (idx b = 0; b < count; b++) {
        const float *output = outputs + b * ld;
        float *delta = deltas + b * ld;
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

/* Set what changes from step to step; powers holds those of the betas, 1 before the first step. */
static INLINE void begin_step(rule *r, const job *j, idx rows, double *powers)
{
    if (j->gradient) {
        r->kind = GRADIENT;
        r->share = (float)((double)rows / (double)j->num_rows);
    } else if (r->kind == ADAM) {
        powers[0] *= r->beta1_exact;
        powers[1] *= r->beta2_exact;
        r->step_size = (float)(r->lr_exact / (1.0 - powers[0]));
        r->root_scale = (float)(1.0 / sqrt(1.0 - powers[1]));
    }
}

#define JOINED(a, b) a##_##b
#define NAME_OF(a, b) JOINED(a, b)

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

/* Read the optimizer: name (0 sgd, 1 adam, 2 adamw), lr, momentum, beta1, beta2, eps, weight decay. */
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

static int read_request(PyObject *tuple, const shape *n, request *q, idx number)
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
        q->views[1].len == j->num_examples * n->inputs * (idx)sizeof(float))
        return 1;
    PyErr_Format(PyExc_ValueError, "arrays of job %zd do not fit the model", number);
    return 0;
}

/* Find the position of the first row number (1) or label (2) of a job that does not exist. */
static int find_fault(const shape *n, const job *j, idx *position)
{
    for (idx b = 0; b < j->num_rows; b++) {
        *position = b;
        if (j->rows[b] < 0 || j->rows[b] >= j->num_examples)
            return 1;
        if (n->is_binary)
            continue;
        int64_t label = ((const int64_t *)j->labels)[j->rows[b]];
        if (label < 0 || label >= n->outputs)
            return 2;
    }
    return 0;
}

static void report_fault(const shape *n, const job *j, int fault, idx number, idx position)
{
    if (fault == 3)
        PyErr_NoMemory();
    else if (fault == 1)
        PyErr_Format(PyExc_ValueError, "rows of job %zd must lie between 0 and %zd, got %lld", number,
                     j->num_examples - 1, (long long)j->rows[position]);
    else
        PyErr_Format(PyExc_ValueError, "labels of job %zd must lie between 0 and %zd, got %lld", number,
                     n->outputs - 1,
                     (long long)((const int64_t *)j->labels)[j->rows[position]]);
}
