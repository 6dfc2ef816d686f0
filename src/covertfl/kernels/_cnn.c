/* The inner loops of cnn/cpu.py: local training of small convolutional networks.

   As in `_mlp.c`, a call receives all jobs and a counter that several threads share, and one thread
   runs a job from start to end.  A batch goes through the network in portions of PORTION images, and
   through the convolutions image by image, so that what is passed on stays in the caches; the gradient
   is summed over all of them before the optimizer's step. */

#include "_jobs.h"

/* One weighted layer with its rectifier, pooling and dropout; bias_from is negative without biases. */
typedef struct {
    idx height, width, channels, kernel_height, kernel_width, out, weights_from, bias_from, pool, number;
    /* Outputs before pooling; floats in a row of a window and in a row of the images; taps. */
    idx out_height, out_width, pixels, run, row_step, depth;
    /* Floats that come in, pixels after pooling, floats that go out, for each image. */
    idx size_in, pooled, size_out;
    /* The inputs of a pooled pixel, a patch: rows, floats in a row, floats; floats of a window with rows
       as long; floats from one output's window of weights to the next, and zeros before each. */
    idx patch_height, patch_width, patch, window, apart, lead;
    int is_rectified, is_dropped, is_linear;
    uint32_t threshold;
    float scale;
} block;

/* source: for each weight, block by block and (output, tap), then biases, its place in the vector. */
typedef struct {
    block *blocks;
    idx num_blocks, first_linear;
    const int64_t *source;
    shape shape;
} net;

/* The memory of one thread: packed weights, optimizer state and gradient; for each block its inputs,
   the derivatives by them (deltas), those of its gates and the places of its maxima, by image.  Blocks
   with pooling have their gradient in sums and windows of their weights in flipped. */
typedef struct {
    float *weights, *first, *second, *gradient, *y, *outputs, *last, *patches;
    float **inputs, **deltas, **gates, **flipped, **sums;
    int32_t **which;
    idx **base, **taps, *packed, *ld;
    idx num_packed;
    void **held;
    idx num_held;
    int is_short;
} workspace;

typedef struct {
    idx (*pad)(idx outputs);
    void (*repack)(const net *, const workspace *, float *, float *, int);
    void (*run_job)(const net *, workspace *, const rule *, const job *);
    void (*predict_rows)(const net *, workspace *, const float *, idx, idx, float *);
} kernel;

/* Place in the image of the patch of pooled pixel p. */
static inline idx start_of_patch(const block *f, idx p)
{
    idx width = f->out_width / f->pool;
    return f->pool * (p / width * f->row_step + p % width * f->channels);
}

#define JOB "_cnn_job.h"
#include "_targets.h"

/* Floats after the end of an array that vectors may touch. */
#define SLACK 32
/* Arrays of a workspace, and of each of its blocks. */
#define ARRAYS 8
#define BLOCK_ARRAYS 8
#define BLOCK_TABLES 10

/* Return memory of the workspace for `count` floats, integers or pointers, set to zero. */
static void *hold(workspace *s, idx count, size_t size)
{
    size_t bytes = ((size_t)(count + SLACK) * size + 63) / 64 * 64;
    void *found = s->held ? aligned_alloc(64, bytes) : NULL;
    if (!found) {
        s->is_short = 1;
        return NULL;
    }
    memset(found, 0, bytes);
    return s->held[s->num_held++] = found;
}

static void release(const net *n, workspace *s)
{
    for (idx i = 0; i < s->num_held; i++)
        free(s->held[i]);
    free(s->held);
}

/* Allocate the tables of pointers and numbers, one entry for each block. */
static int allocate_tables(const net *n, workspace *s)
{
    idx num = n->num_blocks;
    memset(s, 0, sizeof(*s));
    s->held = calloc((size_t)(ARRAYS + BLOCK_TABLES + BLOCK_ARRAYS * num), sizeof(void *));
    s->inputs = hold(s, num, sizeof(void *));
    s->deltas = hold(s, num, sizeof(void *));
    s->gates = hold(s, num, sizeof(void *));
    s->flipped = hold(s, num, sizeof(void *));
    s->sums = hold(s, num, sizeof(void *));
    s->which = hold(s, num, sizeof(void *));
    s->base = hold(s, num, sizeof(void *));
    s->taps = hold(s, num, sizeof(void *));
    s->packed = hold(s, num, sizeof(idx));
    s->ld = hold(s, num, sizeof(idx));
    return !s->is_short;
}

/* Fill the places of a block's pixels in an image, and of its taps relative to a pixel. */
static void fill_places(const block *f, workspace *s, idx b, idx pixels)
{
    for (idx p = 0; s->base[b] && p < pixels; p++)
        s->base[b][p] = f->is_linear ? p * f->size_in
                                     : p / f->out_width * f->row_step + p % f->out_width * f->channels;
    for (idx t = 0; s->taps[b] && t < f->depth; t++)
        s->taps[b][t] = t / f->run * f->row_step + t % f->run;
}

/* Allocate memory for batches of at most `rows`; return 0 if there is not enough. */
static int allocate(const net *n, const kernel *k, workspace *s, idx rows, int training)
{
    size_t real = sizeof(float);
    idx images = least(rows, PORTION), largest = 0, patches = 0, num = n->num_blocks;
    if (!allocate_tables(n, s))
        return 0;
    for (idx b = 0; b < num; b++) {
        const block *f = &n->blocks[b];
        idx pixels = f->is_linear ? images : f->pixels, stored = images * f->pooled;
        s->ld[b] = k->pad(f->out);
        s->packed[b] = s->num_packed;
        s->num_packed += s->ld[b] * (f->depth + 1);
        largest = most(largest, pixels * s->ld[b]);
        s->base[b] = hold(s, pixels, sizeof(idx));
        s->taps[b] = hold(s, f->depth, sizeof(idx));
        fill_places(f, s, b, pixels);
        s->inputs[b] = hold(s, images * f->size_in, real);
        if (!training)
            continue;
        if (b + 1 < num)
            s->gates[b] = hold(s, stored * s->ld[b], real);
        if (f->pool > 1) {
            s->which[b] = hold(s, stored * s->ld[b], sizeof(int32_t));
            s->sums[b] = hold(s, f->out * k->pad(f->window), real);
            patches = most(patches, f->pooled * f->patch + f->lead);
        }
        if (b > 0) {
            s->deltas[b] = hold(s, b < n->first_linear ? f->size_in : images * f->size_in, real);
            s->flipped[b] = hold(s, f->out * (f->pool > 1 ? f->apart
                                                          : f->kernel_height * k->pad(f->run)), real);
        }
    }
    s->y = hold(s, largest, real);
    s->outputs = hold(s, images * s->ld[num - 1], real);
    s->weights = hold(s, s->num_packed, real);
    if (training) {
        s->patches = hold(s, patches, real);
        s->last = hold(s, images * s->ld[num - 1], real);
        s->first = hold(s, s->num_packed, real);
        s->second = hold(s, s->num_packed, real);
        s->gradient = hold(s, s->num_packed, real);
    }
    return !s->is_short;
}

#include "_cnn_input.h"
#include "_run.h"

/* run(blocks, rates, source, options, is_binary, jobs, counter, widest): run jobs until none is left. */
static PyObject *run(PyObject *self, PyObject *args)
{
    Py_buffer blocks, rates, source, options, counter;
    PyObject *jobs;
    int is_binary;
    idx widest;
    if (!PyArg_ParseTuple(args, "y*y*y*y*iOw*n", &blocks, &rates, &source, &options, &is_binary, &jobs,
                          &counter, &widest))
        return NULL;
    net n = {0};
    rule r;
    n.shape.is_binary = is_binary;
    if (read_net(&blocks, &rates, &source, &n) && read_rule(&options, &r))
        run_list(&n, &r, jobs, &counter, widest);
    free(n.blocks);
    PyBuffer_Release(&blocks);
    PyBuffer_Release(&rates);
    PyBuffer_Release(&source);
    PyBuffer_Release(&options);
    PyBuffer_Release(&counter);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* predict(blocks, rates, source, weights, features, outputs, counter, widest): find the outputs of
   portions of the rows until none is left. */
static PyObject *predict(PyObject *self, PyObject *args)
{
    Py_buffer blocks, rates, source, weights, features, outputs, counter;
    idx widest;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*w*w*n", &blocks, &rates, &source, &weights, &features,
                          &outputs, &counter, &widest))
        return NULL;
    net n = {0};
    if (read_net(&blocks, &rates, &source, &n))
        predict_portions(&n, &weights, &features, &outputs, &counter, widest);
    free(n.blocks);
    PyBuffer_Release(&blocks);
    PyBuffer_Release(&rates);
    PyBuffer_Release(&source);
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
    PyModuleDef_HEAD_INIT, "_cnn", "Inner loops of the kernel for convolutional networks.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__cnn(void) { return PyModuleDef_Init(&module); }
