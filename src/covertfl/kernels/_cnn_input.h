/* Reading what Python passes: the blocks of a network and the places of their weights. */

#define COLUMNS 11

/* Derive the sizes of a block; return 0 if they are out of range. */
static int measure_block(block *f)
{
    const idx sizes[] = {f->height,       f->width, f->channels, f->kernel_height,
                         f->kernel_width, f->out,   f->pool};
    for (int i = 0; i < 7; i++)
        if (sizes[i] < 1 || sizes[i] >= 1 << 24)
            return 0;
    f->out_height = f->height - f->kernel_height + 1;
    f->out_width = f->width - f->kernel_width + 1;
    f->run = f->kernel_width * f->channels;
    f->row_step = f->width * f->channels;
    f->depth = f->kernel_height * f->run;
    f->size_in = f->height * f->row_step;
    f->is_linear = f->height == 1 && f->width == 1;
    if (f->out_height < f->pool || f->out_width < f->pool || f->size_in >= 1 << 24)
        return 0;
    f->pixels = f->out_height * f->out_width;
    f->pooled = f->out_height / f->pool * (f->out_width / f->pool);
    f->size_out = f->pooled * f->out;
    f->patch_height = f->kernel_height + f->pool - 1;
    f->patch_width = f->run + (f->pool - 1) * f->channels;
    f->patch = f->patch_height * f->patch_width;
    f->window = f->kernel_height * f->patch_width;
    f->lead = (f->pool - 1) * (f->patch_width + f->channels);
    f->apart = f->window + 2 * f->lead;
    return f->size_out < 1 << 24 && f->depth * f->out < (idx)1 << 32;
}

/* Return whether a range of the table of places exists and leads into the vector of weights. */
static int leads_inside(const net *n, idx size, idx from, idx count)
{
    int fits = from >= 0 && from <= size - count;
    for (idx i = from; fits && i < from + count; i++)
        fits = n->source[i] >= 0 && n->source[i] < n->shape.num_weights;
    return fits;
}

/* Read (B, 11) blocks: height, width, channels, height and width of the window, outputs, first weight,
   first bias or -1, 1 with a rectifier, side of the pooled windows, number of its dropout or -1; (B,)
   dropout rates; and the table `source`. */
static int read_net(const Py_buffer *blocks, const Py_buffer *rates, const Py_buffer *source, net *n)
{
    const int64_t *row = blocks->buf;
    idx num = blocks->len / (COLUMNS * (idx)sizeof(int64_t)), size = source->len / (idx)sizeof(int64_t);
    int fits = num > 0 && rates->len == num * (idx)sizeof(double);
    n->num_blocks = n->first_linear = num;
    n->source = source->buf;
    n->blocks = calloc((size_t)num + 1, sizeof(block));
    if (!n->blocks) {
        PyErr_NoMemory();
        return 0;
    }
    for (idx b = 0; fits && b < num; b++, row += COLUMNS) {
        block *f = &n->blocks[b];
        double rate = ((const double *)rates->buf)[b];
        *f = (block){.height = row[0], .width = row[1], .channels = row[2], .kernel_height = row[3],
                     .kernel_width = row[4], .out = row[5], .weights_from = row[6],
                     .bias_from = row[7], .is_rectified = row[8] != 0, .pool = row[9],
                     .is_dropped = row[10] >= 0, .number = row[10]};
        fits = measure_block(f) && rate >= 0.0 && rate < 1.0 &&
               (b == 0 || f->size_in == n->blocks[b - 1].size_out);
        f->threshold = fits ? (uint32_t)floor(rate * 4294967296.0) : 0;
        f->scale = (float)(1.0 / (1.0 - rate));
        n->shape.num_weights += f->depth * f->out + (f->bias_from < 0 ? 0 : f->out);
        n->first_linear = f->is_linear ? least(n->first_linear, b) : n->first_linear;
        fits = fits && f->is_linear == (n->first_linear < num);
    }
    for (idx b = 0; fits && b < num; b++) {
        const block *f = &n->blocks[b];
        fits = leads_inside(n, size, f->weights_from, f->depth * f->out) &&
               (f->bias_from < 0 || leads_inside(n, size, f->bias_from, f->out));
    }
    fits = fits && n->first_linear > 0 && n->first_linear < num;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the blocks do not fit each other");
        return 0;
    }
    n->shape.inputs = n->blocks[0].size_in;
    n->shape.outputs = n->blocks[num - 1].out;
    return 1;
}
