/* Vectors of VL floats, and the optimizer's step; included once for each instruction set. */

typedef float NAME(vec) __attribute__((vector_size(4 * VL)));
typedef float NAME(unaligned) __attribute__((vector_size(4 * VL), aligned(4), may_alias));
#define vec NAME(vec)
#define unaligned NAME(unaligned)
#define LOAD(p) ((vec)(*(const unaligned *)(p)))
#define STORE(p, x) (*(unaligned *)(p) = (x))

static INLINE vec NAME(root)(vec x)
{
#if VL == 16 && defined(HAS_X86)
    return (vec)_mm512_sqrt_ps((__m512)x);
#elif VL == 8 && defined(HAS_X86)
    return (vec)_mm256_sqrt_ps((__m256)x);
#elif VL == 4 && defined(HAS_X86)
    return (vec)_mm_sqrt_ps((__m128)x);
#else
    for (int lane = 0; lane < VL; lane++)
        x[lane] = sqrtf(x[lane]);
    return x;
#endif
}

static INLINE void NAME(step_adam)(const rule *r, float *w, float *first, float *second, vec g)
{
    vec weights = LOAD(w), m = LOAD(first), v = LOAD(second);
    g += r->decay * weights;
    m += r->keep_first * (g - m);
    v = r->beta2 * v + r->keep_second * g * g;
    STORE(first, m);
    STORE(second, v);
    vec spread = NAME(root)(v) * r->root_scale + r->eps;
    STORE(w, r->shrink * weights - r->step_size * m / spread);
}

static INLINE void NAME(step_sgd)(const rule *r, float *w, float *first, vec g)
{
    vec weights = LOAD(w);
    g += r->decay * weights;
    if (r->momentum != 0.0f) {
        g += r->momentum * LOAD(first);
        STORE(first, g);
    }
    STORE(w, weights - r->lr * g);
}

/* Apply `count` floats of the gradient to the weights w and the state first and second. */
static INLINE void NAME(update)(const rule *rules, const float *gradient, idx count, float *w,
                                float *first, float *second)
{
    const rule r = *rules; /* kept in registers */
    if (r.kind == ADAM)
        for (idx at = 0; at < count; at += VL)
            NAME(step_adam)(&r, w + at, first + at, second + at, LOAD(gradient + at));
    else if (r.kind == SGD)
        for (idx at = 0; at < count; at += VL)
            NAME(step_sgd)(&r, w + at, first + at, LOAD(gradient + at));
    else
        for (idx at = 0; at < count; at += VL)
            STORE(first + at, LOAD(first + at) + r.share * LOAD(gradient + at));
}

static idx NAME(pad)(idx outputs) { return (outputs + VL - 1) / VL * VL; }
