/* The recursion of backward_induction.py, equation (7).

   All arrays are C-contiguous and passed through the buffer protocol; their sizes are checked here,
   their contents by the caller.  Nothing is fused or summed in another order, so that the results
   are the same on every machine. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

typedef Py_ssize_t idx;

static int has_size(const Py_buffer *view, idx count, idx item, const char *name)
{
    if (view->len == count * item)
        return 1;
    PyErr_Format(PyExc_ValueError, "%s must hold %zd numbers", name, count);
    return 0;
}

/* Write the cost of obfuscating in one oracle state, sum_o' P(o, o') V(o', y), by backlog y. */
static void look_ahead(const double *restrict probs, const double *restrict value,
                       double *restrict later, idx num_oracle, idx num_levels)
{
    for (idx y = 0; y < num_levels; y++)
        later[y] = probs[0] * value[y];
    for (idx next = 1; next < num_oracle; next++) {
        const double *row = value + next * num_levels;
        if (probs[next] == 0.0)
            continue;
        for (idx y = 0; y < num_levels; y++)
            later[y] += probs[next] * row[y];
    }
}

/* Replace the cost of obfuscating by the cheaper one, and write where learning is cheaper by more
   than a tie.  Descending, because learning at y looks at the cost of obfuscating at y - 1. */
static void choose(double *later, unsigned char *learn, idx num_levels, double privacy, double g,
                   double keep)
{
    for (idx y = num_levels - 1; y > 0; y--) {
        double cost = privacy + (g * later[y - 1] + (1.0 - g) * later[y]);
        learn[y] = cost < keep * later[y];
        later[y] = cost < later[y] ? cost : later[y];
    }
    learn[0] = 0;
}

/* induct(transition, success, privacy, values, learn, rounds, num_oracle, num_levels, num_kept,
          tolerance, per_round, is_convex): solve (7) for n = 1 .. rounds.  The values V_n go to
   values[n % num_kept], which holds V_0 at 0 when called; a relative difference up to tolerance, or
   n * per_round if that is more, is a tie. */
static PyObject *induct(PyObject *self, PyObject *args)
{
    Py_buffer transition_view, success_view, privacy_view, values_view, learn_view;
    idx rounds, num_oracle, num_levels, num_kept;
    double tolerance, per_round;
    int is_convex;
    if (!PyArg_ParseTuple(args, "y*y*y*w*w*nnnnddp", &transition_view, &success_view, &privacy_view,
                          &values_view, &learn_view, &rounds, &num_oracle, &num_levels, &num_kept,
                          &tolerance, &per_round, &is_convex))
        return NULL;
    const double *transition = transition_view.buf, *success = success_view.buf;
    const double *privacy = privacy_view.buf;
    idx num = num_oracle * num_levels;
    int fits = has_size(&transition_view, num_oracle * num_oracle, sizeof(double), "transition") &&
               has_size(&success_view, num_oracle, sizeof(double), "success") &&
               has_size(&privacy_view, num_oracle, sizeof(double), "privacy") &&
               has_size(&values_view, num_kept * num, sizeof(double), "values") &&
               has_size(&learn_view, rounds * num, 1, "learn");
    if (fits && (num_oracle < 1 || num_levels < 1 || num_kept < 2)) {
        PyErr_SetString(PyExc_ValueError, "there must be a state, and room for two values");
        fits = 0;
    }
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        for (idx n = 1; n <= rounds; n++) {
            const double *value = (double *)values_view.buf + (n - 1) % num_kept * num;
            double *better = (double *)values_view.buf + n % num_kept * num;
            unsigned char *learn = (unsigned char *)learn_view.buf + (n - 1) * num;
            double tie = (double)n * per_round > tolerance ? (double)n * per_round : tolerance;
            for (idx o = 0; o < num_oracle; o++) {
                double *later = better + o * num_levels;
                unsigned char *row = learn + o * num_levels;
                look_ahead(transition + o * num_oracle, value, later, num_oracle, num_levels);
                choose(later, row, num_levels, privacy[o], success[o], 1.0 - tie);
                /* Theorem 2: what is chosen at some backlog is at every larger one. */
                for (idx y = 1; is_convex && y < num_levels; y++)
                    row[y] |= row[y - 1];
            }
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&transition_view);
    PyBuffer_Release(&success_view);
    PyBuffer_Release(&privacy_view);
    PyBuffer_Release(&values_view);
    PyBuffer_Release(&learn_view);
    if (!fits)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"induct", induct, METH_VARARGS, "Write the values and the actions of a finite horizon."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_induction", "Backward induction on a finite horizon.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__induction(void) { return PyModuleDef_Init(&module); }
