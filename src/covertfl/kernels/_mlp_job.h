/* One job of a perceptron, for vectors of VL floats; included once for each instruction set.

   Weights are packed in panels of WIDE = 2 VL outputs (the last one of VL if that suffices); a panel
   has the weights of input 0, of input 1, .., and last the biases.  The optimizer state has the same
   layout, so that each small block of the gradient is used at once and never stored.
   Every sum runs over inputs, or over the examples of a batch, in their order, whatever the blocks
   are: on a processor with fused multiply-add the result does not depend on VL. */

#include "_vectors.h"

#define WIDE (2 * VL)
#define INNER (4096 / WIDE) /* inputs of a panel that fit the first-level cache */

/* c[r][:] += sum over k of a[r][k] b[k][:] for mr rows and nv vectors. */
static INLINE void NAME(block)(const int mr, const int nv, idx depth, const float *const *a, idx at,
                               const float *b, idx ldb, float *c, idx ldc)
{
    vec acc[6][2];
    const float *row[6];
    for (int r = 0; r < mr; r++) {
        row[r] = a[r] + at;
        for (int q = 0; q < nv; q++)
            acc[r][q] = LOAD(c + r * ldc + q * VL);
    }
    for (idx k = 0; k < depth; k++, b += ldb) {
        vec left = LOAD(b), right = nv > 1 ? LOAD(b + VL) : left;
        for (int r = 0; r < mr; r++) {
            acc[r][0] += row[r][k] * left;
            if (nv > 1)
                acc[r][1] += row[r][k] * right;
        }
    }
    for (int r = 0; r < mr; r++)
        for (int q = 0; q < nv; q++)
            STORE(c + r * ldc + q * VL, acc[r][q]);
}

/* gradient[r][:] = sum over k of x[k][at + r] strip[k][:] for mr inputs and nv vectors of a panel. */
static INLINE void NAME(correlate)(const int mr, const int nv, idx depth, const float *const *x,
                                   idx at, const float *strip, float *gradient)
{
    vec acc[6][2];
    for (int r = 0; r < mr; r++)
        acc[r][0] = acc[r][1] = (vec){0};
    for (idx k = 0; k < depth; k++, strip += nv * VL) {
        const float *row = x[k] + at;
        vec left = LOAD(strip), right = nv > 1 ? LOAD(strip + VL) : left;
        for (int r = 0; r < mr; r++) {
            acc[r][0] += row[r] * left;
            if (nv > 1)
                acc[r][1] += row[r] * right;
        }
    }
    for (int r = 0; r < mr; r++)
        for (int q = 0; q < nv; q++)
            STORE(gradient + (r * nv + q) * VL, acc[r][q]);
}

#define SPREAD_4(mr, nv, call)                                                                     \
    switch ((mr) * 2 + (nv)) {                                                                     \
    case 10: call(4, 2); break;                                                                    \
    case 9: call(4, 1); break;                                                                     \
    case 8: call(3, 2); break;                                                                     \
    case 7: call(3, 1); break;                                                                     \
    case 6: call(2, 2); break;                                                                     \
    case 5: call(2, 1); break;                                                                     \
    case 4: call(1, 2); break;                                                                     \
    default: call(1, 1); break;                                                                    \
    }

#define SPREAD_6(mr, nv, call)                                                                     \
    switch ((mr) * 2 + (nv)) {                                                                     \
    case 14: call(6, 2); break;                                                                    \
    case 13: call(6, 1); break;                                                                    \
    case 12: call(5, 2); break;                                                                    \
    case 11: call(5, 1); break;                                                                    \
    default: SPREAD_4(mr, nv, call)                                                                \
    }

/* Number of rows of the next block: at most six, as even as possible. */
static INLINE int NAME(portion)(idx left) { return (int)(left / ((left + 5) / 6)); }

/* c += a b on `rows` rows and `width` columns (a multiple of VL), where panel p of b starts at
   b + p * panel_step and its rows are ldb apart, or as wide as the panel if ldb is 0. */
static void NAME(multiply)(idx rows, idx width, idx depth, const float *const *a, const float *b,
                           idx panel_step, idx ldb, float *c, idx ldc)
{
    for (idx column = 0, panel = 0; column < width; column += WIDE, panel++) {
        int nv = width - column >= WIDE ? 2 : 1;
        idx apart = ldb ? ldb : nv * VL;
        for (idx k = 0; k < depth; k += INNER) {
            idx deep = least(INNER, depth - k);
            const float *start = b + panel * panel_step + k * apart;
            for (idx row = 0; row < rows;) {
                int mr = NAME(portion)(rows - row);
                float *to = c + row * ldc + column;
#define CALL(m, n) NAME(block)(m, n, deep, a + row, k, start, apart, to, ldc)
                SPREAD_6(mr, nv, CALL)
#undef CALL
                row += mr;
            }
        }
    }
}

/* Apply the gates before a layer to its inputs; store their derivatives in gate unless it is NULL. */
static void NAME(pass_gates)(const net *n, idx place, idx rows, idx width, float *values, idx ld,
                             float *gate, int training, uint64_t seed, idx step)
{
    int fresh = 1;
    uint64_t key = mix_long(mix_long(seed) + (uint64_t)(step + 1) * GOLDEN);
    for (idx g = 0; g < n->num_gates; g++) {
        if (n->gates[g].place != place || (n->gates[g].is_dropout && !training))
            continue;
        uint32_t low = (uint32_t)key;
        uint32_t high = (uint32_t)(key >> 32) + (uint32_t)n->gates[g].number * LAYER_STRIDE;
        uint32_t threshold = n->gates[g].threshold;
        float scale = n->gates[g].scale;
        for (idx b = 0; b < rows; b++) {
            float *value = values + b * ld, *derivative = gate ? gate + b * ld : NULL;
            if (derivative && fresh)
                for (idx j = 0; j < width; j++)
                    derivative[j] = 1.0f;
            if (!n->gates[g].is_dropout) {
                if (derivative)
                    for (idx j = 0; j < width; j++)
                        derivative[j] = value[j] <= 0.0f ? 0.0f : derivative[j];
                for (idx j = 0; j < width; j++)
                    value[j] = value[j] <= 0.0f ? 0.0f : value[j];
                continue;
            }
            uint32_t start = (uint32_t)(b * width) + low;
            for (idx j = 0; j < width; j++) {
                uint32_t hash = mix_word(mix_word(start + (uint32_t)j) ^ high);
                float factor = hash >= threshold ? scale : 0.0f;
                value[j] *= factor;
                if (derivative)
                    derivative[j] *= factor;
            }
        }
        fresh = 0;
    }
}

static void NAME(forward)(const net *n, workspace *s, idx rows, int training, uint64_t seed, idx step)
{
    for (idx l = 0; l < n->num_layers; l++) {
        const layer *f = &n->layers[l];
        idx ld = s->ld[l], width = NAME(pad)(f->out);
        float *outputs = s->values[l];
        const float *w = s->weights + s->packed[l];
        for (idx b = 0; b < rows; b++)
            for (idx j = 0; j < width; j += VL) {
                idx panel = j / WIDE;
                idx wide = width - panel * WIDE >= WIDE ? WIDE : VL;
                const float *bias = w + panel * WIDE * (f->in + 1) + f->in * wide + j % WIDE;
                STORE(outputs + b * ld + j, LOAD(bias));
            }
        NAME(multiply)(rows, width, f->in, s->inputs[l], w, WIDE * (f->in + 1), 0, outputs, ld);
        if (l + 1 < n->num_layers)
            NAME(pass_gates)(n, l + 1, rows, f->out, outputs, ld, training ? s->gates[l] : NULL,
                             training, seed, step);
    }
}

/* From the deltas of layer l to those of the layer before it. */
static void NAME(propagate_back)(const net *n, workspace *s, idx l, idx rows)
{
    const layer *f = &n->layers[l];
    idx width = NAME(pad)(f->in), ld = s->ld[l - 1];
    const float *w = s->weights + s->packed[l];
    float *deltas = s->deltas[l - 1], *flipped = s->flipped;
    for (idx o = 0; o < f->out; o++) {
        idx panel = o / WIDE;
        idx wide = NAME(pad)(f->out) - panel * WIDE >= WIDE ? WIDE : VL;
        const float *from = w + panel * WIDE * (f->in + 1) + o % WIDE;
        for (idx i = 0; i < f->in; i++)
            flipped[o * width + i] = from[i * wide];
        for (idx i = f->in; i < width; i++)
            flipped[o * width + i] = 0.0f;
    }
    for (idx b = 0; b < rows; b++)
        for (idx i = 0; i < width; i++)
            deltas[b * ld + i] = 0.0f;
    for (idx b = 0; b < rows; b++)
        s->delta_rows[b] = s->deltas[l] + b * s->ld[l];
    NAME(multiply)(rows, width, f->out, s->delta_rows, flipped, WIDE, width, deltas, ld);
    if (s->is_gated[l - 1])
        for (idx b = 0; b < rows; b++)
            for (idx i = 0; i < f->in; i++)
                deltas[b * ld + i] *= s->gates[l - 1][b * ld + i];
}

/* Take the optimizer's step in layer l. */
static void NAME(update_layer)(const net *n, workspace *s, idx l, idx rows, const rule *r)
{
    const layer *f = &n->layers[l];
    idx width = NAME(pad)(f->out);
    float gradient[12 * VL];
    for (idx column = 0; column < width; column += WIDE) {
        int nv = width - column >= WIDE ? 2 : 1;
        idx wide = nv * VL, from = s->packed[l] + column * (f->in + 1);
        float *w = s->weights + from, *first = s->first + from, *second = s->second + from;
        for (idx b = 0; b < rows; b++)
            for (int q = 0; q < nv; q++)
                STORE(s->strip + b * wide + q * VL,
                      LOAD(s->deltas[l] + b * s->ld[l] + column + q * VL));
        for (idx i = 0; i < f->in;) {
            int mr = NAME(portion)(f->in - i);
            idx at = i * wide;
#define CALL(m, n_) NAME(correlate)(m, n_, rows, s->inputs[l], i, s->strip, gradient)
            SPREAD_6(mr, nv, CALL)
#undef CALL
            NAME(update)(r, gradient, mr * wide, w + at, first + at, second + at);
            i += mr;
        }
        if (f->bias_from < 0)
            continue;
        for (int q = 0; q < nv; q++) {
            vec sum = {0};
            for (idx b = 0; b < rows; b++)
                sum += LOAD(s->strip + b * wide + q * VL);
            STORE(gradient + q * VL, sum);
        }
        idx at = f->in * wide;
        NAME(update)(r, gradient, wide, w + at, first + at, second + at);
    }
}

/* Copy a model's vector to packed weights, or back. */
static void NAME(repack)(const net *n, const workspace *s, float *flat, float *packed, int back)
{
    for (idx l = 0; l < n->num_layers; l++) {
        const layer *f = &n->layers[l];
        idx width = NAME(pad)(f->out);
        for (idx column = 0; column < width; column += WIDE) {
            idx wide = width - column >= WIDE ? WIDE : VL;
            float *panel = packed + s->packed[l] + column * (f->in + 1);
            idx real = least(wide, f->out - column);
            for (idx i = 0; i <= f->in; i++) {
                float *to = panel + i * wide;
                int is_bias = i == f->in;
                if (is_bias && f->bias_from < 0) {
                    for (idx j = 0; j < wide && !back; j++)
                        to[j] = 0.0f;
                    continue;
                }
                float *from = is_bias ? flat + f->bias_from + column
                                      : flat + f->weights_from + column * f->in + i;
                idx apart = is_bias ? 1 : f->in;
                if (back)
                    for (idx j = 0; j < real; j++)
                        from[j * apart] = to[j];
                else {
                    for (idx j = 0; j < real; j++)
                        to[j] = from[j * apart];
                    for (idx j = real; j < wide; j++)
                        to[j] = 0.0f;
                }
            }
        }
    }
}

/* Set the inputs of the first layer; examples are copied if gates change them or for alignment. */
static void NAME(take_rows)(const net *n, workspace *s, const float *features, const int64_t *rows,
                            idx first, idx count, int training, uint64_t seed, idx step)
{
    idx in = n->layers[0].in;
    for (idx b = 0; b < count; b++) {
        const float *from = features + (rows ? rows[b] : first + b) * in;
        if (s->taken) {
            memcpy(s->taken + b * s->taken_ld, from, (size_t)in * sizeof(float));
            from = s->taken + b * s->taken_ld;
        }
        s->inputs[0][b] = from;
    }
    if (s->taken)
        NAME(pass_gates)(n, 0, count, in, s->taken, s->taken_ld, NULL, training, seed, step);
}

static void NAME(run_job)(const net *n, workspace *s, const rule *base, const job *j)
{
    rule r = *base;
    double powers[2] = {1.0, 1.0};
    idx last = n->num_layers - 1;
    NAME(repack)(n, s, (float *)j->weights, s->weights, 0);
    memset(s->first, 0, (size_t)s->num_packed * sizeof(float));
    memset(s->second, 0, (size_t)s->num_packed * sizeof(float));
    for (idx from = 0, step = 0; from < j->num_rows; from += j->batch_size, step++) {
        idx rows = least(j->batch_size, j->num_rows - from);
        begin_step(&r, j, rows, powers);
        NAME(take_rows)(n, s, j->features, j->rows + from, 0, rows, 1, j->seed, step);
        NAME(forward)(n, s, rows, 1, j->seed, step);
        differentiate_loss(&n->shape, s->values[last], s->deltas[last], s->ld[last], j->labels,
                           j->rows + from, rows, rows);
        for (idx l = last; l >= 0; l--) {
            if (l > 0)
                NAME(propagate_back)(n, s, l, rows);
            NAME(update_layer)(n, s, l, rows, &r);
        }
    }
    if (j->num_rows == 0 && !j->gradient)
        memcpy(j->result, j->weights, (size_t)n->shape.num_weights * sizeof(float));
    else
        NAME(repack)(n, s, j->result, j->gradient ? s->first : s->weights, 1);
}

static void NAME(predict_rows)(const net *n, workspace *s, const float *features, idx from, idx count,
                               float *outputs)
{
    idx last = n->num_layers - 1, out = n->layers[last].out;
    NAME(take_rows)(n, s, features, NULL, from, count, 0, 0, 0);
    NAME(forward)(n, s, count, 0, 0, 0);
    for (idx b = 0; b < count; b++)
        memcpy(outputs + (from + b) * out, s->values[last] + b * s->ld[last],
               (size_t)out * sizeof(float));
}

static const kernel NAME(kernel) = {NAME(pad), NAME(repack), NAME(run_job), NAME(predict_rows)};

#undef WIDE
#undef INNER
#undef SPREAD_4
#undef SPREAD_6
