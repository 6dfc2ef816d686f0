/* Reading what Python passes: the layers, the optimizer and the jobs, and what is wrong in them. */

static void free_net(net *n)
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

/* Find the position of the first row number (1) or label (2) of a job that does not exist. */
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
