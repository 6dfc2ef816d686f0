/* The inner loops of chain.py: filling, censoring and substituting in a banded chain.

   A band holds row i of a matrix in `width` numbers; column j sits at j - i + below.  All arrays are
   C-contiguous doubles (roots: 64-bit integers) passed through the buffer protocol; their sizes are
   checked here, their contents by the caller.  Only nonnegative numbers are added, multiplied and
   divided until the substitution for the values. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>

/* A class of states that is left less than once in this many rounds counts as closed. */
#define NEVER 1e200
/* Masses are rescaled beyond this. */
#define HUGE_MASS 1e250

typedef Py_ssize_t idx;

static idx least(idx a, idx b) { return a < b ? a : b; }
static idx most(idx a, idx b) { return a > b ? a : b; }

static int has_size(const Py_buffer *view, idx count, idx item, const char *name)
{
    if (view->len == count * item)
        return 1;
    PyErr_Format(PyExc_ValueError, "%s must hold %zd numbers", name, count);
    return 0;
}

/* fill(transition, success, learn, arrived, arrival_probs, band, num_oracle, num_levels, below, width,
        keep): write the transitions of (backlog, oracle) into a band.  The updates that arrive are in
        ascending order and at most num_levels. */
static PyObject *fill(PyObject *self, PyObject *args)
{
    Py_buffer transition_view, success_view, learn_view, arrived_view, probs_view, band_view;
    idx num_oracle, num_levels, below, width;
    double keep;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*w*nnnnd", &transition_view, &success_view, &learn_view,
                          &arrived_view, &probs_view, &band_view, &num_oracle, &num_levels, &below,
                          &width, &keep))
        return NULL;
    const double *transition = transition_view.buf, *success = success_view.buf;
    const double *learn = learn_view.buf, *arrival_probs = probs_view.buf;
    const int64_t *arrived = arrived_view.buf;
    double *band = band_view.buf;
    idx num = num_oracle * num_levels, arrivals = arrived_view.len / (idx)sizeof(int64_t);
    int fits = has_size(&transition_view, num_oracle * num_oracle, sizeof(double), "transition") &&
               has_size(&success_view, num_oracle, sizeof(double), "success") &&
               has_size(&arrived_view, most(arrivals, 1), sizeof(int64_t), "arrived") &&
               has_size(&probs_view, arrivals, sizeof(double), "arrival_probs") &&
               has_size(&learn_view, arrivals * num, sizeof(double), "learn") &&
               has_size(&band_view, num * width, sizeof(double), "band");
    /* Where the farthest moves land must lie inside the band. */
    idx rise = fits ? least((idx)arrived[arrivals - 1], num_levels - 1) : 0;
    if (fits && (below < 2 * num_oracle - 1 || width < below + (rise + 1) * num_oracle)) {
        PyErr_SetString(PyExc_ValueError, "the band is too narrow");
        fits = 0;
    }
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        for (idx entry = 0; entry < num * width; entry++)
            band[entry] = 0.0;
        for (idx y = 0; y < num_levels; y++)
            for (idx o = 0; o < num_oracle; o++)
                for (idx e = 0; e < arrivals; e++) {
                    idx row = y * num_oracle + o, after = y + (idx)arrived[e];
                    double weight = keep * arrival_probs[e], served = 0.0;
                    if (y > 0)
                        served = learn[(o * arrivals + e) * num_levels + y] * success[o];
                    idx stay = least(after, num_levels - 1);
                    idx down = least(after - 1, num_levels - 1);
                    double *entries = band + row * width + below - row;
                    for (idx next = 0; next < num_oracle; next++) {
                        double prob = weight * transition[o * num_oracle + next];
                        entries[stay * num_oracle + next] += (1.0 - served) * prob;
                        if (served > 0.0)
                            entries[down * num_oracle + next] += served * prob;
                    }
                }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&transition_view);
    PyBuffer_Release(&success_view);
    PyBuffer_Release(&learn_view);
    PyBuffer_Release(&arrived_view);
    PyBuffer_Release(&probs_view);
    PyBuffer_Release(&band_view);
    if (!fits)
        return NULL;
    Py_RETURN_NONE;
}

typedef struct {
    double *band, *absorbed, *totals, *leaving;
    idx num, width, below, num_totals;
} chain;

/* Remove state n from the chain on the states first..last; 0 if it never leaves for them. */
static int censor_state(const chain *c, idx n, idx first, idx last)
{
    idx above = c->width - 1 - c->below;
    idx left = most(first, n - c->below), right = least(last, n + above);
    idx top = most(first, n - above), bottom = least(last, n + c->below);
    const double *own = c->band + n * c->width + c->below - n;
    double out = c->absorbed[n];
    for (idx j = left; j <= right; j++)
        out += own[j];
    if (out <= c->totals[n * c->num_totals] / NEVER) {
        c->leaving[n] = 0.0;
        for (idx i = top; i <= bottom; i++) {
            double *entry = c->band + i * c->width + n - i + c->below;
            c->absorbed[i] += *entry;
            *entry = 0.0;
        }
        return 0;
    }
    c->leaving[n] = out;
    for (idx i = top; i <= bottom; i++) {
        double *row = c->band + i * c->width + c->below - i;
        double factor = row[n] / out;
        if (factor == 0.0)
            continue;
        for (idx j = left; j <= right; j++)
            row[j] += factor * own[j];
        for (idx k = 0; k < c->num_totals; k++)
            c->totals[i * c->num_totals + k] += factor * c->totals[n * c->num_totals + k];
        c->absorbed[i] += factor * c->absorbed[n];
    }
    return 1;
}

/* censor(band, absorbed, totals, leaving, roots, num, width, below, num_totals, pivot): censor the
   states from both ends towards the pivot and return the number of closed classes. */
static PyObject *censor(PyObject *self, PyObject *args)
{
    Py_buffer band_view, absorbed_view, totals_view, leaving_view, roots_view;
    chain c;
    idx pivot, num_roots = 0;
    if (!PyArg_ParseTuple(args, "w*w*w*w*w*nnnnn", &band_view, &absorbed_view, &totals_view,
                          &leaving_view, &roots_view, &c.num, &c.width, &c.below, &c.num_totals,
                          &pivot))
        return NULL;
    c.band = band_view.buf;
    c.absorbed = absorbed_view.buf;
    c.totals = totals_view.buf;
    c.leaving = leaving_view.buf;
    int64_t *roots = roots_view.buf;
    int fits = has_size(&band_view, c.num * c.width, sizeof(double), "band") &&
               has_size(&absorbed_view, c.num, sizeof(double), "absorbed") &&
               has_size(&totals_view, c.num * c.num_totals, sizeof(double), "totals") &&
               has_size(&leaving_view, c.num, sizeof(double), "leaving") &&
               has_size(&roots_view, c.num, sizeof(int64_t), "roots");
    if (fits && (pivot < 0 || pivot >= c.num)) {
        PyErr_SetString(PyExc_ValueError, "the pivot must be a state");
        fits = 0;
    }
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        for (idx n = c.num - 1; n > pivot; n--)
            if (!censor_state(&c, n, 0, n - 1))
                roots[num_roots++] = n;
        for (idx n = 0; n <= pivot; n++)
            if (!censor_state(&c, n, n + 1, pivot))
                roots[num_roots++] = n;
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&band_view);
    PyBuffer_Release(&absorbed_view);
    PyBuffer_Release(&totals_view);
    PyBuffer_Release(&leaving_view);
    PyBuffer_Release(&roots_view);
    return fits ? PyLong_FromSsize_t(num_roots) : NULL;
}

/* Substitution runs away from the pivot: pivot, pivot - 1, .., 0, then pivot + 1, .. */
static idx nth_state(idx step, idx pivot) { return step <= pivot ? pivot - step : step; }

/* find_mass(band, leaving, mass, num, width, below, root, pivot): stationary distribution of the closed
   class of a root. */
static PyObject *find_mass(PyObject *self, PyObject *args)
{
    Py_buffer band_view, leaving_view, mass_view;
    idx num, width, below, root, pivot;
    if (!PyArg_ParseTuple(args, "y*y*w*nnnnn", &band_view, &leaving_view, &mass_view, &num, &width,
                          &below, &root, &pivot))
        return NULL;
    const double *band = band_view.buf, *leaving = leaving_view.buf;
    double *mass = mass_view.buf;
    int fits = has_size(&band_view, num * width, sizeof(double), "band") &&
               has_size(&leaving_view, num, sizeof(double), "leaving") &&
               has_size(&mass_view, num, sizeof(double), "mass");
    if (fits && (root < 0 || root >= num || pivot < 0 || pivot >= num)) {
        PyErr_SetString(PyExc_ValueError, "root and pivot must be states");
        fits = 0;
    }
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        idx above = width - 1 - below;
        double total = 1.0;
        for (idx n = 0; n < num; n++)
            mass[n] = 0.0;
        mass[root] = 1.0;
        for (idx step = 0; step < num; step++) {
            idx n = nth_state(step, pivot);
            if (n == root)
                continue;
            idx first = n <= pivot ? n + 1 : most(0, n - above);
            idx last = n <= pivot ? least(pivot, n + below) : n - 1;
            double flow = 0.0;
            for (idx i = first; i <= last; i++)
                flow += mass[i] * band[i * width + n - i + below];
            if (flow <= 0.0 || leaving[n] <= 0.0)
                continue;
            mass[n] = flow / leaving[n];
            total += mass[n];
            if (total > HUGE_MASS) { /* the root is rarely visited */
                for (idx i = 0; i < num; i++)
                    mass[i] /= total;
                total = 1.0;
            }
        }
        total = 0.0;
        for (idx n = 0; n < num; n++)
            total += mass[n];
        for (idx n = 0; n < num; n++)
            mass[n] /= total;
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&band_view);
    PyBuffer_Release(&leaving_view);
    PyBuffer_Release(&mass_view);
    if (!fits)
        return NULL;
    Py_RETURN_NONE;
}

/* find_values(band, totals, leaving, averages, values, num, width, below, num_costs, pivot): relative
   values of each cost, 0 at a root. */
static PyObject *find_values(PyObject *self, PyObject *args)
{
    Py_buffer band_view, totals_view, leaving_view, averages_view, values_view;
    idx num, width, below, num_costs, pivot;
    if (!PyArg_ParseTuple(args, "y*y*y*y*w*nnnnn", &band_view, &totals_view, &leaving_view,
                          &averages_view, &values_view, &num, &width, &below, &num_costs, &pivot))
        return NULL;
    const double *band = band_view.buf, *totals = totals_view.buf;
    const double *leaving = leaving_view.buf, *averages = averages_view.buf;
    double *values = values_view.buf;
    int fits = has_size(&band_view, num * width, sizeof(double), "band") &&
               has_size(&totals_view, num * (num_costs + 1), sizeof(double), "totals") &&
               has_size(&leaving_view, num, sizeof(double), "leaving") &&
               has_size(&averages_view, num_costs, sizeof(double), "averages") &&
               has_size(&values_view, num_costs * num, sizeof(double), "values");
    if (fits && (pivot < 0 || pivot >= num)) {
        PyErr_SetString(PyExc_ValueError, "the pivot must be a state");
        fits = 0;
    }
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        idx above = width - 1 - below;
        for (idx step = 0; step < num; step++) {
            idx n = nth_state(step, pivot);
            idx first = n <= pivot ? n + 1 : most(0, n - below);
            idx last = n <= pivot ? least(pivot, n + above) : n - 1;
            const double *own = band + n * width + below - n;
            const double *total = totals + n * (num_costs + 1);
            for (idx k = 0; k < num_costs; k++) {
                double *value = values + k * num;
                double sum = total[1 + k] - averages[k] * total[0];
                for (idx j = first; j <= last; j++)
                    sum += own[j] * value[j];
                value[n] = leaving[n] > 0.0 ? sum / leaving[n] : 0.0;
            }
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&band_view);
    PyBuffer_Release(&totals_view);
    PyBuffer_Release(&leaving_view);
    PyBuffer_Release(&averages_view);
    PyBuffer_Release(&values_view);
    if (!fits)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"fill", fill, METH_VARARGS, "Write the transitions of (backlog, oracle) into a band."},
    {"censor", censor, METH_VARARGS, "Censor the states towards the pivot; return the number of closed classes."},
    {"find_mass", find_mass, METH_VARARGS, "Write the stationary distribution of the closed class of a root."},
    {"find_values", find_values, METH_VARARGS, "Write the relative values of each cost, 0 at a root."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_chain", "Inner loops of the chain of a queue.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__chain(void) { return PyModuleDef_Init(&module); }
