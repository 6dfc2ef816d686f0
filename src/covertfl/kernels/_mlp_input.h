/* Reading what Python passes: the layers and what is between them. */

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
    n->shape.num_weights = 0;
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
        f->weights_from = n->shape.num_weights;
        n->shape.num_weights += f->in * f->out;
        f->bias_from = sizes[3 * l + 2] ? n->shape.num_weights : -1;
        n->shape.num_weights += sizes[3 * l + 2] ? f->out : 0;
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
    if (fits) {
        n->shape.inputs = n->layers[0].in;
        n->shape.outputs = n->layers[n->num_layers - 1].out;
    } else
        PyErr_SetString(PyExc_ValueError, "the layers do not fit each other");
    return fits;
}
