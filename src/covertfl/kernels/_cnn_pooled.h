/* The way back through a convolution whose outputs are pooled, for vectors of VL floats.

   Only the maximum of a pooled window has a derivative, so that there is one window of inputs for each
   pooled output instead of pool x pool.  All windows of a pooled pixel lie in one patch of the inputs.
   Patches and windows are stored with rows of one length, f->patch_width: a window is then a range of
   its patch, which starts at the place stored for the maximum, and a few floats between its rows belong
   to no tap. */

/* Copy the patches of an image. */
static void NAME(take_patches)(const block *f, const float *x, float *patches)
{
    for (idx p = 0; p < f->pooled; p++) {
        const float *from = x + start_of_patch(f, p);
        for (idx i = 0; i < f->patch_height; i++, from += f->row_step, patches += f->patch_width)
            for (idx j = 0; j < f->patch_width; j += VL)
                STORE(patches + j, LOAD(from + j));
    }
}

/* sums[q][:] += sum over pooled pixels p of dy[p][q] patches[p][which[p][q] ..] for nv outputs q and mr
   vectors of a window. */
static INLINE void NAME(correlate_windows)(const int mr, const int nv, const block *f,
                                           const float *patches, const float *dy,
                                           const int32_t *which, idx ld, float *sums, idx apart)
{
    vec acc[12][2];
    for (int r = 0; r < mr; r++)
        for (int q = 0; q < nv; q++)
            acc[r][q] = LOAD(sums + q * apart + r * VL);
    for (idx p = 0; p < f->pooled; p++, patches += f->patch, dy += ld, which += ld) {
        const float *left = patches + which[0], *right = patches + which[nv - 1];
        for (int r = 0; r < mr; r++) {
            acc[r][0] += dy[0] * LOAD(left + r * VL);
            if (nv > 1)
                acc[r][1] += dy[1] * LOAD(right + r * VL);
        }
    }
    for (int r = 0; r < mr; r++)
        for (int q = 0; q < nv; q++)
            STORE(sums + q * apart + r * VL, acc[r][q]);
}

static void NAME(correlate_pooled)(const block *f, const float *patches, const float *dy,
                                   const int32_t *which, idx ld, float *sums)
{
    idx apart = NAME(pad)(f->window);
    for (idx o = 0; o < f->out; o += 2) {
        int nv = o + 1 < f->out ? 2 : 1;
        for (idx t = 0; t < apart;) {
            int mr = NAME(share_of)((apart - t) / VL, nv);
            float *to = sums + o * apart + t;
#define CALL(m, n_)                                                                                \
    NAME(correlate_windows)(m, n_, f, patches + t, dy + o, which + o, ld, to, apart)
            SPREAD(mr, nv, CALL)
#undef CALL
            t += mr * VL;
        }
    }
}

/* patch[:] = sum over outputs o of dy[o] w[o][- which[o] ..] for mr vectors of a patch. */
static INLINE void NAME(sum_windows)(const int mr, const block *f, const float *dy,
                                     const int32_t *which, const float *w, float *patch)
{
    vec acc[12];
    for (int r = 0; r < mr; r++)
        acc[r] = (vec){0};
    for (idx o = 0; o < f->out; o++, w += f->apart) {
        const float *from = w - which[o];
        for (int r = 0; r < mr; r++)
            acc[r] += dy[o] * LOAD(from + r * VL);
    }
    for (int r = 0; r < mr; r++)
        STORE(patch + r * VL, acc[r]);
}

/* From derivatives by the pooled outputs to those by the inputs.  The windows of the weights have zeros
   around them. */
static void NAME(spread_pooled)(const block *f, const float *dy, const int32_t *which, idx ld,
                                const float *windows, float *patch, float *dx)
{
    idx width = NAME(pad)(f->patch);
    for (idx p = 0; p < f->pooled; p++, dy += ld, which += ld) {
        for (idx t = 0; t < width;) {
            int mr = NAME(share_of)((width - t) / VL, 1);
#define CALL(m, n_) NAME(sum_windows)(m, f, dy, which, windows + f->lead + t, patch + t)
            SPREAD(mr, 1, CALL)
#undef CALL
            t += mr * VL;
        }
        float *to = dx + start_of_patch(f, p);
        const float *from = patch;
        for (idx i = 0; i < f->patch_height; i++, to += f->row_step, from += f->patch_width)
            for (idx j = 0; j < f->patch_width; j++)
                to[j] += from[j];
    }
}

/* Copy packed weights to windows, one for each output, or back. */
static void NAME(copy_windows)(const block *f, float *packed, float *windows, idx apart, int back)
{
    idx ld = NAME(pad)(f->out);
    for (idx o = 0; o < f->out; o++) {
        idx column = o / WIDE * WIDE, wide = least(WIDE, ld - column);
        float *tap = packed + column * (f->depth + 1) + o - column, *window = windows + o * apart;
        for (idx i = 0; i < f->kernel_height; i++, window += f->patch_width)
            for (idx k = 0; k < f->run; k++, tap += wide) {
                if (back)
                    *tap = window[k];
                else
                    window[k] = *tap;
            }
    }
}
