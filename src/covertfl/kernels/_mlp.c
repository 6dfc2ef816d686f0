/* The inner loops of mlp.py: local training of perceptrons.

   A call receives all jobs and a counter that several threads share; it takes the next job until
   none is left, with the interpreter's lock released.  One thread runs a job from start to end, so
   that its result does not depend on the number of threads.  Arrays come through the buffer protocol;
   their sizes are checked here, and row and class numbers before they are used. */

#include "_jobs.h"

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
    idx num_layers, num_gates;
    shape shape;
} net;

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

#define JOB "_mlp_job.h"
#include "_targets.h"

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
#include "_run.h"

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
    n.shape.is_binary = is_binary;
    if (read_net(&layers, &gates, &n) && read_rule(&options, &r))
        run_list(&n, &r, jobs, &counter, widest);
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
    if (read_net(&layers, &gates, &n))
        predict_portions(&n, &weights, &features, &outputs, &counter, widest);
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
