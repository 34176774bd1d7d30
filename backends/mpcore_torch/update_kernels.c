/* One pass over a tensor: open its float32 values, update them and the moments, store them.

   Strips of 192 values stay in the first cache between the three (of 1,024 it takes 1.3 times as
   long: they lie where the other streams lie); each loop is simple enough for a compiler to
   vectorise. Compile with -ffp-contract=off: fmaf stands where torch's own kernels (2.13.0, x86)
   round a product and a sum once, and nowhere else. one_pass.py calls it, after update_proof.py
   has seen it compute what the optimizer itself does. */

#include <math.h>
#include <pthread.h>
#include <stdint.h>

#include "master_bits.h"

#define STRIP 192
#define MOST_THREADS 64

/* In the order of _SCHEMES in update_jobs.py and RULES in update_rules.py. */
enum scheme { COPY, COPY_AWAY, COPY_TRUNCATE, SPLIT_AWAY, SPLIT_TRUNCATE, KAHAN, STOCHASTIC, PLAIN };
enum rule { ADAM, ADAMW, SGD, MOMENTUM, NESTEROV };

/* A square root as torch's build takes it: MKL's vmsSqrt, which is not always the nearest. */
typedef void (*roots)(int count, const float *of, float *to, int64_t mode);
#define ROOT_MODE (0x2 | 0x00140000 | 0x100) /* VML_HA, VML_FTZDAZ_OFF, VML_ERRMODE_IGNORE */

typedef struct {
    uint16_t *low;     /* the parameter: bfloat16 */
    void *beside;      /* float32 copy, further bits, or remainder */
    const float *grad; /* float32 */
    void *first, *second; /* moments: float32 or bfloat16 */
    float *step;       /* the optimizer's own count, or null */
    roots root_of;     /* or null: the machine's own */
    int64_t count;
    uint32_t key;      /* of stochastic rounding */
    int32_t scheme, rule, narrow; /* narrow: the moments are bfloat16 */
    float now;         /* what *step becomes */
    float decay, first_weight, second_keep, second_weight, root, eps, rate, momentum;
} job;

/* Return the float32 values: in `x`, or where they are stored. */
static float *open_strip(int scheme, const job *j, int64_t at, int n, float *restrict x) {
    const uint16_t *restrict low = j->low + at;
    if (scheme == SPLIT_AWAY) {
        const int16_t *restrict rest = (const int16_t *)j->beside + at;
        for (int i = 0; i < n; i++)
            x[i] = to_float(((uint32_t)low[i] << 16) + (uint32_t)(int32_t)rest[i]);
    } else if (scheme == SPLIT_TRUNCATE) {
        const uint16_t *restrict rest = (const uint16_t *)j->beside + at;
        for (int i = 0; i < n; i++) x[i] = to_float(((uint32_t)low[i] << 16) | rest[i]);
    } else if (scheme == KAHAN) {
        const uint16_t *restrict rest = (const uint16_t *)j->beside + at;
        for (int i = 0; i < n; i++) x[i] = widen(low[i]) + widen(rest[i]);
    } else if (scheme == STOCHASTIC) {
        for (int i = 0; i < n; i++) x[i] = widen(low[i]);
    } else {
        return (float *)j->beside + at;
    }
    return x;
}

static void close_strip(int scheme, const job *j, int64_t at, int n, float *restrict x) {
    uint16_t *restrict low = j->low + at;
    if (scheme == SPLIT_AWAY || scheme == SPLIT_TRUNCATE) {
        uint16_t *restrict rest = (uint16_t *)j->beside + at;
        const uint32_t half = scheme == SPLIT_AWAY ? 0x8000u : 0;
        for (int i = 0; i < n; i++) {
            const uint32_t b = settled(x[i]);
            rest[i] = (uint16_t)b;
            low[i] = (uint16_t)((b + half) >> 16);
        }
    } else if (scheme == KAHAN) {
        uint16_t *restrict rest = (uint16_t *)j->beside + at;
        for (int i = 0; i < n; i++) {
            const uint32_t b = settled(x[i]), high = nearest(b);
            rest[i] = (uint16_t)left_out(b, high);
            low[i] = (uint16_t)high;
        }
    } else if (scheme == STOCHASTIC) {
        const uint32_t key = j->key, start = (uint32_t)at;
        for (int i = 0; i < n; i++)
            low[i] = (uint16_t)by_chance(settled(x[i]), mix((start + (uint32_t)i) ^ key) >> 16);
    } else if (scheme == COPY) {
        for (int i = 0; i < n; i++) low[i] = (uint16_t)nearest(settled(x[i]));
    } else if (scheme != PLAIN) {
        const uint32_t half = scheme == COPY_AWAY ? 0x8000u : 0;
        for (int i = 0; i < n; i++) {
            const uint32_t b = settled(x[i]);
            x[i] = to_float(b);
            low[i] = (uint16_t)((b + half) >> 16);
        }
    }
}

static inline float lerp(float from, float to, float weight) {
    /* torch.lerp, for weights either side of a half */
    return fabsf(weight) < 0.5f ? fmaf(weight, to - from, from) : fmaf(weight - 1, to - from, to);
}

static void adam_strip(const job *j, int n, float *restrict x, const float *restrict grad,
                       float *restrict first, float *restrict second) {
    float r[STRIP];
    const float decay = j->decay, fw = j->first_weight, sk = j->second_keep;
    const float sw = j->second_weight, root = j->root, eps = j->eps, rate = j->rate;
    const int decoupled = j->rule == ADAMW, decays = !decoupled && decay != 0;
    for (int i = 0; i < n; i++) {
        const float g = decays ? fmaf(x[i], decay, grad[i]) : grad[i];
        first[i] = lerp(first[i], g, fw);
        second[i] = fmaf(sw * g, g, second[i] * sk);
    }
    if (j->root_of) j->root_of(n, second, r, ROOT_MODE);
    else for (int i = 0; i < n; i++) r[i] = sqrtf(second[i]);
    for (int i = 0; i < n; i++) {
        const float p = decoupled ? x[i] * decay : x[i];
        x[i] = p + rate * first[i] / (r[i] / root + eps);
    }
}

static void sgd_strip(const job *j, int n, float *restrict x, const float *restrict grad,
                      float *restrict first) {
    const float decay = j->decay, momentum = j->momentum, weight = j->first_weight;
    const float rate = j->rate;
    if (j->rule == SGD) {
        for (int i = 0; i < n; i++) x[i] = fmaf(rate, decay != 0 ? fmaf(decay, x[i], grad[i]) : grad[i], x[i]);
        return;
    }
    const float look = j->rule == NESTEROV ? momentum : 0;
    for (int i = 0; i < n; i++) {
        const float g = decay != 0 ? fmaf(decay, x[i], grad[i]) : grad[i];
        const float m = fmaf(weight, g, first[i] * momentum);
        first[i] = m;
        x[i] = fmaf(rate, look ? fmaf(look, m, g) : m, x[i]);
    }
}

static float *open_moment(void *stored, int narrow, int64_t at, int n, float *restrict room) {
    if (!narrow || !stored) return stored ? (float *)stored + at : room;
    for (int i = 0; i < n; i++) room[i] = widen(((uint16_t *)stored)[at + i]);
    return room;
}

static void close_moment(void *stored, int narrow, int64_t at, int n, const float *restrict room) {
    if (!narrow || !stored) return;
    uint16_t *restrict low = (uint16_t *)stored + at;
    for (int i = 0; i < n; i++) low[i] = (uint16_t)nearest(settled(room[i]));
}

static void run_part(const job *j, int64_t from, int64_t to) {
    const int scheme = j->scheme, narrow = j->narrow;
    float room[STRIP], a[STRIP], b[STRIP];
    for (int64_t at = from; at < to; at += STRIP) {
        const int n = (int)(to - at < STRIP ? to - at : STRIP);
        float *x = open_strip(scheme, j, at, n, room);
        float *first = open_moment(j->first, narrow, at, n, a);
        float *second = open_moment(j->second, narrow, at, n, b);
        if (j->rule <= ADAMW) adam_strip(j, n, x, j->grad + at, first, second);
        else sgd_strip(j, n, x, j->grad + at, first);
        close_moment(j->first, narrow, at, n, first);
        close_moment(j->second, narrow, at, n, second);
        close_strip(scheme, j, at, n, x);
    }
}

typedef struct {
    const job *jobs;
    int64_t count, from, to; /* of jobs; of values, counted through all of them */
} share;

static void *run_share(void *given) {
    const share *s = given;
    int64_t begin = 0;
    for (int64_t k = 0; k < s->count && begin < s->to; k++) {
        const int64_t end = begin + s->jobs[k].count;
        const int64_t from = s->from > begin ? s->from - begin : 0;
        const int64_t to = (s->to < end ? s->to : end) - begin;
        if (from < to) run_part(s->jobs + k, from, to);
        begin = end;
    }
    return 0;
}

void mpcore_update(const job *jobs, int64_t count, int threads) {
    int64_t total = 0;
    for (int64_t k = 0; k < count; k++) total += jobs[k].count;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads < 1) threads = 1;
    int64_t each = (total + threads - 1) / threads;
    each = (each + STRIP - 1) / STRIP * STRIP;
    share shares[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    int started[MOST_THREADS];
    for (int t = threads - 1; t >= 0; t--) {
        share s = {jobs, count, t * each, (t + 1) * each};
        shares[t] = s;
        started[t] = t && s.from < total && !pthread_create(ids + t, 0, run_share, shares + t);
        if (!started[t]) run_share(shares + t);
    }
    for (int t = 1; t < threads; t++)
        if (started[t]) pthread_join(ids[t], 0);
    for (int64_t k = 0; k < count; k++)
        if (jobs[k].step) *jobs[k].step = jobs[k].now;
}
