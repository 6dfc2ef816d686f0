/* One job of a convolutional network, for vectors of VL floats; included once for each instruction set.

   Images lie as (rows, columns, channels), so that the inputs of one row of a convolution's window are
   a run of neighbouring floats.  Weights are packed as in `_mlp_job.h`: panels of WIDE = 2 VL outputs
   (the last one of VL if that suffices) with the weights of tap 0, of tap 1, .., and last the biases,
   where a tap is a row, column and channel of the window.  A linear layer is a convolution whose pixels
   are the examples of a batch.  Every sum runs over taps, or over pixels, in their order, whatever the
   blocks are. */

#include "_vectors.h"

#define WIDE (2 * VL)

typedef int32_t NAME(ivec) __attribute__((vector_size(4 * VL)));
#define ivec NAME(ivec)

/* y[r][:] = bias + sum over taps of x[r][tap] w[tap][:] for mr pixels and nv vectors of outputs. */
static INLINE void NAME(convolve_some)(const int mr, const int nv, const block *f, const float *x,
                                       const idx *base, const float *w, float *y, idx ld)
{
    vec acc[12][2];
    const float *row[12], *bias = w + f->depth * nv * VL;
    for (int r = 0; r < mr; r++) {
        row[r] = x + base[r];
        acc[r][0] = LOAD(bias);
        acc[r][1] = nv > 1 ? LOAD(bias + VL) : acc[r][0];
    }
    for (idx i = 0; i < f->kernel_height; i++) {
        for (idx k = 0; k < f->run; k++, w += nv * VL) {
            vec left = LOAD(w), right = nv > 1 ? LOAD(w + VL) : left;
            for (int r = 0; r < mr; r++) {
                acc[r][0] += row[r][k] * left;
                if (nv > 1)
                    acc[r][1] += row[r][k] * right;
            }
        }
        for (int r = 0; r < mr; r++)
            row[r] += f->row_step;
    }
    for (int r = 0; r < mr; r++)
        for (int q = 0; q < nv; q++)
            STORE(y + r * ld + q * VL, acc[r][q]);
}

/* gradient[r][:] += sum over pixels p of x[p][taps[r]] dy[p][:] for mr taps and nv vectors of outputs. */
static INLINE void NAME(correlate_some)(const int mr, const int nv, idx pixels, const float *x,
                                        const idx *base, const idx *taps, const float *dy, idx ld,
                                        float *gradient)
{
    vec acc[12][2];
    idx at[12];
    for (int r = 0; r < mr; r++) {
        at[r] = taps[r];
        for (int q = 0; q < nv; q++)
            acc[r][q] = LOAD(gradient + (r * nv + q) * VL);
    }
    for (idx p = 0; p < pixels; p++, dy += ld) {
        const float *from = x + base[p];
        vec left = LOAD(dy), right = nv > 1 ? LOAD(dy + VL) : left;
        for (int r = 0; r < mr; r++) {
            acc[r][0] += from[at[r]] * left;
            if (nv > 1)
                acc[r][1] += from[at[r]] * right;
        }
    }
    for (int r = 0; r < mr; r++)
        for (int q = 0; q < nv; q++)
            STORE(gradient + (r * nv + q) * VL, acc[r][q]);
}

/* dx[r][:] += sum over outputs o of dy[r][o] w[o][:] for mr pixels and nv vectors of a run. */
static INLINE void NAME(spread_some)(const int mr, const int nv, idx outputs, const float *dy, idx ld,
                                     const float *w, float *dx, const idx *base)
{
    vec acc[12][2];
    for (int r = 0; r < mr; r++)
        acc[r][0] = acc[r][1] = (vec){0};
    for (idx o = 0; o < outputs; o++, w += nv * VL) {
        vec left = LOAD(w), right = nv > 1 ? LOAD(w + VL) : left;
        for (int r = 0; r < mr; r++) {
            acc[r][0] += dy[r * ld + o] * left;
            if (nv > 1)
                acc[r][1] += dy[r * ld + o] * right;
        }
    }
    for (int r = 0; r < mr; r++)
        for (int q = 0; q < nv; q++) {
            float *to = dx + base[r] + q * VL;
            STORE(to, LOAD(to) + acc[r][q]);
        }
}

#define SPREAD(mr, nv, call)                                                                       \
    switch ((mr) * 2 + (nv)) {                                                                     \
    case 14: call(6, 2); break;                                                                    \
    case 12: call(5, 2); break;                                                                    \
    case 10: call(4, 2); break;                                                                    \
    case 8: call(3, 2); break;                                                                     \
    case 6: call(2, 2); break;                                                                     \
    case 4: call(1, 2); break;                                                                     \
    case 25: call(12, 1); break;                                                                   \
    case 23: call(11, 1); break;                                                                   \
    case 21: call(10, 1); break;                                                                   \
    case 19: call(9, 1); break;                                                                    \
    case 17: call(8, 1); break;                                                                    \
    case 15: call(7, 1); break;                                                                    \
    case 13: call(6, 1); break;                                                                    \
    case 11: call(5, 1); break;                                                                    \
    case 9: call(4, 1); break;                                                                     \
    case 7: call(3, 1); break;                                                                     \
    case 5: call(2, 1); break;                                                                     \
    default: call(1, 1); break;                                                                    \
    }

/* Number of rows of the next block: at most 12 vectors of sums, as even as possible. */
static INLINE int NAME(share_of)(idx left, int nv)
{
    idx limit = nv > 1 ? 6 : 12;
    return (int)(left / ((left + limit - 1) / limit));
}

static void NAME(convolve)(const block *f, idx pixels, const float *x, const idx *base, const float *w,
                           float *y, idx ld)
{
    for (idx column = 0; column < ld; column += WIDE) {
        int nv = ld - column >= WIDE ? 2 : 1;
        const float *panel = w + column * (f->depth + 1);
        for (idx p = 0; p < pixels;) {
            int mr = NAME(share_of)(pixels - p, nv);
#define CALL(m, n_) NAME(convolve_some)(m, n_, f, x, base + p, panel, y + p * ld + column, ld)
            SPREAD(mr, nv, CALL)
#undef CALL
            p += mr;
        }
    }
}

static void NAME(correlate)(const block *f, idx pixels, const float *x, const idx *base,
                            const idx *taps, const float *dy, idx ld, float *gradient)
{
    for (idx column = 0; column < ld; column += WIDE) {
        int nv = ld - column >= WIDE ? 2 : 1;
        float *panel = gradient + column * (f->depth + 1);
        const float *from = dy + column;
        for (idx t = 0; t < f->depth;) {
            int mr = NAME(share_of)(f->depth - t, nv);
            float *to = panel + t * nv * VL;
#define CALL(m, n_) NAME(correlate_some)(m, n_, pixels, x, base, taps + t, from, ld, to)
            SPREAD(mr, nv, CALL)
#undef CALL
            t += mr;
        }
    }
}

/* Add the derivatives by the outputs, over all pixels, to those by the biases. */
static void NAME(sum_biases)(const block *f, idx pixels, const float *dy, idx ld, float *gradient)
{
    for (idx j = 0; f->bias_from >= 0 && j < ld; j += VL) {
        idx column = j / WIDE * WIDE, wide = least(WIDE, ld - column);
        float *to = gradient + column * (f->depth + 1) + f->depth * wide + j - column;
        vec sum = LOAD(to);
        for (idx p = 0; p < pixels; p++)
            sum += LOAD(dy + p * ld + j);
        STORE(to, sum);
    }
}

/* From derivatives by the outputs of a block to those by its inputs; flipped holds its weights. */
static void NAME(spread)(const block *f, idx pixels, const float *dy, idx ld, const float *flipped,
                         float *dx, const idx *base)
{
    idx width = NAME(pad)(f->run);
    for (idx i = 0; i < f->kernel_height; i++)
        for (idx column = 0; column < width; column += WIDE) {
            int nv = width - column >= WIDE ? 2 : 1;
            const float *panel = flipped + (i * width + column) * f->out;
            float *to = dx + i * f->row_step + column;
            for (idx p = 0; p < pixels;) {
                int mr = NAME(share_of)(pixels - p, nv);
#define CALL(m, n_) NAME(spread_some)(m, n_, f->out, dy + p * ld, ld, panel, to, base + p)
                SPREAD(mr, nv, CALL)
#undef CALL
                p += mr;
            }
        }
}

/* Copy the weights of a block for `spread`: for each row of the window, panels of its run. */
static void NAME(flip)(const block *f, const float *w, float *flipped)
{
    idx width = NAME(pad)(f->run), ld = NAME(pad)(f->out);
    for (idx i = 0; i < f->kernel_height; i++)
        for (idx o = 0; o < f->out; o++) {
            idx column = o / WIDE * WIDE, wide = least(WIDE, ld - column);
            const float *from = w + column * (f->depth + 1) + i * f->run * wide + o - column;
            for (idx k = 0; k < width; k++) {
                idx start = k / WIDE * WIDE, apart = least(WIDE, width - start);
                float *to = flipped + (i * width + start) * f->out + o * apart + k - start;
                *to = k < f->run ? from[k * wide] : 0.0f;
            }
        }
}

#include "_cnn_pooled.h"

/* Pool, rectify and drop the outputs y of a block for one image; store the derivatives in gate and the
   place of each maximum's window in its patch in which, unless they are NULL. */
static void NAME(finish)(const block *f, const float *y, idx ld, float *to, float *gate, int32_t *which)
{
    idx pool = f->pool, width = f->out_width / pool;
    for (idx p = 0; p < f->pooled; p++, to += f->out) {
        const float *from = y + (p / width * pool * f->out_width + p % width * pool) * ld;
        for (idx j = 0; j < ld; j += VL) {
            vec best = LOAD(from + j), open = (vec){0} + 1.0f;
            ivec at = {0};
            for (idx row = 0; row < pool; row++)
                for (idx column = 0; column < pool; column++) {
                    vec other = LOAD(from + (row * f->out_width + column) * ld + j);
                    ivec take = (other > best) | (other != other);
                    int32_t place = (int32_t)(row * f->patch_width + column * f->channels);
                    best = (vec)(((ivec)other & take) | ((ivec)best & ~take));
                    at = (at & ~take) | (take & place);
                }
            if (f->is_rectified) {
                ivec closed = best <= 0.0f;
                best = (vec)((ivec)best & ~closed);
                open = (vec)((ivec)open & ~closed);
            }
            STORE(to + j, best);
            if (gate)
                STORE(gate + p * ld + j, open);
            if (which)
                memcpy(which + p * ld + j, &at, sizeof(at));
        }
        for (idx j = f->out; gate && j < ld; j++)
            gate[p * ld + j] = 0.0f;
    }
}

/* Drop outputs of a block for one image, the number `image` of its batch. */
static void NAME(drop)(const block *f, uint64_t key, idx image, idx ld, float *values, float *gate)
{
    uint32_t high = (uint32_t)(key >> 32) + (uint32_t)f->number * LAYER_STRIDE;
    uint32_t pooled = (uint32_t)f->pooled, threshold = f->threshold;
    for (idx p = 0; p < f->pooled; p++, values += f->out, gate += ld) {
        uint32_t start = (uint32_t)(image * f->out * f->pooled + p) + (uint32_t)key;
        for (idx j = 0; j < f->out; j++) {
            uint32_t hash = mix_word(mix_word(start + (uint32_t)j * pooled) ^ high);
            float factor = hash >= threshold ? f->scale : 0.0f;
            values[j] *= factor;
            gate[j] *= factor;
        }
    }
}

/* From derivatives by what a block passes on to those by its pooled outputs, for one image. */
static void NAME(unfinish)(const block *f, const float *delta, const float *gate, float *dy, idx ld)
{
    for (idx p = 0; p < f->pooled; p++, delta += f->out)
        for (idx j = 0; j < ld; j += VL)
            STORE(dy + p * ld + j, LOAD(delta + j) * LOAD(gate + p * ld + j));
}

/* Copy a model's vector to packed weights, or back. */
static void NAME(repack)(const net *n, const workspace *s, float *flat, float *packed, int back)
{
    if (!back)
        memset(packed, 0, (size_t)s->num_packed * sizeof(float));
    for (idx b = 0; b < n->num_blocks; b++) {
        const block *f = &n->blocks[b];
        idx ld = NAME(pad)(f->out);
        for (idx o = 0; o < f->out; o++) {
            idx column = o / WIDE * WIDE, wide = least(WIDE, ld - column);
            float *to = packed + s->packed[b] + column * (f->depth + 1) + o - column;
            for (idx t = 0; t <= f->depth; t++, to += wide) {
                if (t == f->depth && f->bias_from < 0)
                    continue;
                float *from = flat + n->source[t < f->depth ? f->weights_from + o * f->depth + t
                                                            : f->bias_from + o];
                if (back)
                    *from = *to;
                else
                    *to = *from;
            }
        }
    }
}

/* Copy the images of a batch, with the channels last. */
static void NAME(take_rows)(const net *n, workspace *s, const float *features, const int64_t *rows,
                            idx first, idx count)
{
    const block *f = n->blocks;
    idx area = f->height * f->width;
    for (idx m = 0; m < count; m++) {
        const float *from = features + (rows ? rows[m] : first + m) * f->size_in;
        float *to = s->inputs[0] + m * f->size_in;
        if (f->channels == 1)
            memcpy(to, from, (size_t)area * sizeof(float));
        for (idx c = 0; f->channels > 1 && c < f->channels; c++)
            for (idx p = 0; p < area; p++)
                to[p * f->channels + c] = from[c * area + p];
    }
}

/* Pass on what a block made of image m of a portion, which starts at image `first` of its batch. */
static void NAME(pass_on)(const net *n, workspace *s, idx b, const float *y, idx m, idx first,
                          const uint64_t *key)
{
    const block *f = &n->blocks[b];
    idx ld = s->ld[b], stored = m * f->pooled * ld;
    float *to = s->inputs[b + 1] + m * f->size_out, *gate = key ? s->gates[b] + stored : NULL;
    NAME(finish)(f, y, ld, to, gate, key && f->pool > 1 ? s->which[b] + stored : NULL);
    if (key && f->is_dropped)
        NAME(drop)(f, *key, first + m, ld, to, gate);
}

/* Find the outputs of the images taken; key is NULL outside of training. */
static void NAME(forward)(const net *n, workspace *s, idx count, idx first, const uint64_t *key)
{
    for (idx m = 0; m < count; m++)
        for (idx b = 0; b < n->first_linear; b++) {
            const block *f = &n->blocks[b];
            NAME(convolve)(f, f->pixels, s->inputs[b] + m * f->size_in, s->base[b],
                           s->weights + s->packed[b], s->y, s->ld[b]);
            NAME(pass_on)(n, s, b, s->y, m, first, key);
        }
    for (idx b = n->first_linear; b < n->num_blocks; b++) {
        const block *f = &n->blocks[b];
        float *y = b + 1 < n->num_blocks ? s->y : s->outputs;
        NAME(convolve)(f, count, s->inputs[b], s->base[b], s->weights + s->packed[b], y, s->ld[b]);
        for (idx m = 0; b + 1 < n->num_blocks && m < count; m++)
            NAME(pass_on)(n, s, b, y + m * s->ld[b], m, first, key);
    }
}

/* Add a block's part to the gradient, and find the derivatives by its inputs x. */
static void NAME(step_back)(const net *n, workspace *s, idx b, idx pixels, const float *x,
                            const float *dy)
{
    const block *f = &n->blocks[b];
    float *gradient = s->gradient + s->packed[b];
    NAME(correlate)(f, pixels, x, s->base[b], s->taps[b], dy, s->ld[b], gradient);
    NAME(sum_biases)(f, pixels, dy, s->ld[b], gradient);
    if (b == 0)
        return;
    idx size = f->is_linear ? pixels * f->size_in : f->size_in;
    memset(s->deltas[b], 0, (size_t)size * sizeof(float));
    NAME(spread)(f, pixels, dy, s->ld[b], s->flipped[b], s->deltas[b], s->base[b]);
}

/* The same for a block with pooling, where only the maxima count. */
static void NAME(step_back_pooled)(const net *n, workspace *s, idx b, idx m, const float *dy)
{
    const block *f = &n->blocks[b];
    const int32_t *which = s->which[b] + m * f->pooled * s->ld[b];
    NAME(take_patches)(f, s->inputs[b] + m * f->size_in, s->patches);
    NAME(correlate_pooled)(f, s->patches, dy, which, s->ld[b], s->sums[b]);
    NAME(sum_biases)(f, f->pooled, dy, s->ld[b], s->gradient + s->packed[b]);
    if (b == 0)
        return;
    memset(s->deltas[b], 0, (size_t)f->size_in * sizeof(float));
    NAME(spread_pooled)(f, dy, which, s->ld[b], s->flipped[b], s->patches, s->deltas[b]);
}

static void NAME(backward)(const net *n, workspace *s, idx count)
{
    idx last = n->num_blocks - 1;
    for (idx b = last; b >= n->first_linear; b--) {
        for (idx m = 0; b < last && m < count; m++)
            NAME(unfinish)(&n->blocks[b], s->deltas[b + 1] + m * n->blocks[b].out,
                           s->gates[b] + m * s->ld[b], s->y + m * s->ld[b], s->ld[b]);
        NAME(step_back)(n, s, b, count, s->inputs[b], b < last ? s->y : s->last);
    }
    for (idx m = 0; m < count; m++)
        for (idx b = n->first_linear - 1; b >= 0; b--) {
            const block *f = &n->blocks[b];
            const float *delta = s->deltas[b + 1] + (b + 1 < n->first_linear ? 0 : m * f->size_out);
            NAME(unfinish)(f, delta, s->gates[b] + m * f->pooled * s->ld[b], s->y, s->ld[b]);
            if (f->pool > 1)
                NAME(step_back_pooled)(n, s, b, m, s->y);
            else
                NAME(step_back)(n, s, b, f->pixels, s->inputs[b] + m * f->size_in, s->y);
        }
}

/* Prepare the weights for a batch's way back, and set its gradient to zero. */
static void NAME(begin_batch)(const net *n, workspace *s)
{
    memset(s->gradient, 0, (size_t)s->num_packed * sizeof(float));
    for (idx b = 0; b < n->num_blocks; b++) {
        const block *f = &n->blocks[b];
        const float *w = s->weights + s->packed[b];
        if (f->pool > 1)
            memset(s->sums[b], 0, (size_t)(f->out * NAME(pad)(f->window)) * sizeof(float));
        if (b > 0 && f->pool > 1)
            NAME(copy_windows)(f, (float *)w, s->flipped[b] + f->lead, f->apart, 0);
        else if (b > 0)
            NAME(flip)(f, w, s->flipped[b]);
    }
}

/* Copy the sums of blocks with pooling to the gradient. */
static void NAME(end_batch)(const net *n, workspace *s)
{
    for (idx b = 0; b < n->first_linear; b++) {
        const block *f = &n->blocks[b];
        if (f->pool > 1)
            NAME(copy_windows)(f, s->gradient + s->packed[b], s->sums[b], NAME(pad)(f->window), 1);
    }
}

static void NAME(run_job)(const net *n, workspace *s, const rule *base, const job *j)
{
    rule r = *base;
    double powers[2] = {1.0, 1.0};
    size_t size = (size_t)s->num_packed * sizeof(float);
    idx last = n->num_blocks - 1;
    NAME(repack)(n, s, (float *)j->weights, s->weights, 0);
    memset(s->first, 0, size);
    memset(s->second, 0, size);
    for (idx from = 0, step = 0; from < j->num_rows; from += j->batch_size, step++) {
        idx rows = least(j->batch_size, j->num_rows - from);
        uint64_t key = mix_long(mix_long(j->seed) + (uint64_t)(step + 1) * GOLDEN);
        begin_step(&r, j, rows, powers);
        NAME(begin_batch)(n, s);
        for (idx first = 0; first < rows; first += PORTION) {
            const int64_t *some = j->rows + from + first;
            idx count = least(PORTION, rows - first);
            NAME(take_rows)(n, s, j->features, some, 0, count);
            NAME(forward)(n, s, count, first, &key);
            differentiate_loss(&n->shape, s->outputs, s->last, s->ld[last], j->labels, some, count,
                               rows);
            NAME(backward)(n, s, count);
        }
        NAME(end_batch)(n, s);
        NAME(update)(&r, s->gradient, s->num_packed, s->weights, s->first, s->second);
    }
    if (j->num_rows == 0 && !j->gradient)
        memcpy(j->result, j->weights, (size_t)n->shape.num_weights * sizeof(float));
    else
        NAME(repack)(n, s, j->result, j->gradient ? s->first : s->weights, 1);
}

static void NAME(predict_rows)(const net *n, workspace *s, const float *features, idx from, idx count,
                               float *outputs)
{
    idx out = n->shape.outputs, ld = s->ld[n->num_blocks - 1];
    NAME(take_rows)(n, s, features, NULL, from, count);
    NAME(forward)(n, s, count, 0, NULL);
    for (idx m = 0; m < count; m++)
        memcpy(outputs + (from + m) * out, s->outputs + m * ld, (size_t)out * sizeof(float));
}

static const kernel NAME(kernel) = {NAME(pad), NAME(repack), NAME(run_job), NAME(predict_rows)};

#undef WIDE
#undef SPREAD
#undef ivec
