/* Opens and closes one Parameter in one pass, as operators of MindSpore (ops.Custom, "aot") on a
   CPU. master_kernels.py has seen each compute what the core's arithmetic does before it is used.
   An emulated bfloat16 is a float32 whose lower half is zero. */

#include "master_bits.h"

#define OPERATOR(name)                                                                        \
    int name(int count, void **params, int *dims, int64_t **shapes, const char **dtypes, \
             void *stream, void *extra)

/* In the order of SCHEMES in master_kernels.py. */
enum scheme { COPY, COPY_AWAY, COPY_TRUNCATE, SPLIT_AWAY, SPLIT_TRUNCATE, SPLIT_NEAREST, KAHAN, STOCHASTIC };

static int64_t size_of(int dims, const int64_t *shape) {
    int64_t size = 1;
    for (int k = 0; k < dims; k++) size *= shape[k];
    return size;
}

/* (options, low, beside[, ties]) -> master */
OPERATOR(mpcore_open) {
    const int32_t scheme = ((const int32_t *)params[0])[0];
    const int64_t size = size_of(dims[1], shapes[1]);
    const float *restrict low = params[1];
    const uint16_t *restrict beside = params[2];
    float *restrict x = params[count - 1];
    if (scheme == SPLIT_AWAY || scheme == SPLIT_NEAREST) {
        for (int64_t i = 0; i < size; i++)
            x[i] = to_float(to_bits(low[i]) + (uint32_t)(int32_t)(int16_t)beside[i]);
    } else if (scheme == SPLIT_TRUNCATE) {
        for (int64_t i = 0; i < size; i++) x[i] = to_float(to_bits(low[i]) | beside[i]);
    } else {
        for (int64_t i = 0; i < size; i++) x[i] = low[i] + widen(beside[i]);
    }
    if (scheme == SPLIT_NEAREST) {
        const uint32_t *restrict ties = params[3];
        for (int64_t k = 0; k < (size + 31) / 32; k++)
            if (ties[k])
                for (int64_t i = 32 * k; i < size && i < 32 * k + 32; i++)
                    x[i] = to_float(to_bits(x[i]) + ((ties[k] >> (i % 32) & 1u) << 16));
    }
    return 0;
}

/* (options, steps, master) -> low[, beside[, ties]] */
OPERATOR(mpcore_close) {
    const int32_t *options = params[0];
    const int32_t scheme = options[0];
    const int64_t size = size_of(dims[2], shapes[2]);
    const float *restrict x = params[2];
    float *restrict low = params[3];
    uint16_t *restrict beside = count > 4 ? params[4] : 0;
    const int away = scheme == COPY_AWAY || scheme == SPLIT_AWAY;
    if (scheme == COPY || scheme == SPLIT_NEAREST) {
        for (int64_t i = 0; i < size; i++) low[i] = to_float(nearest(settled(x[i])) << 16);
    } else if (scheme == KAHAN) {
        for (int64_t i = 0; i < size; i++) {
            const uint32_t b = settled(x[i]), high = nearest(b);
            beside[i] = (uint16_t)left_out(b, high);
            low[i] = to_float(high << 16);
        }
    } else if (scheme == STOCHASTIC) {
        const uint32_t steps = *(const uint32_t *)params[1];
        const uint32_t key = mix(mix(mix((uint32_t)options[1]) + steps) + (uint32_t)options[2]);
        for (int64_t i = 0; i < size; i++)
            low[i] = to_float(by_chance(settled(x[i]), mix((uint32_t)i ^ key) >> 16) << 16);
    } else {
        const uint32_t half = away ? 0x8000u : 0;
        for (int64_t i = 0; i < size; i++)
            low[i] = to_float((settled(x[i]) + half) & 0xFFFF0000u);
    }
    if (scheme == SPLIT_AWAY || scheme == SPLIT_TRUNCATE || scheme == SPLIT_NEAREST)
        for (int64_t i = 0; i < size; i++) beside[i] = (uint16_t)settled(x[i]);
    if (scheme == SPLIT_NEAREST) {
        uint32_t *restrict ties = params[5];
        for (int64_t k = 0; k < (size + 31) / 32; k++) {
            uint32_t word = 0;
            for (int64_t i = 32 * k; i < size && i < 32 * k + 32; i++)
                word |= (uint32_t)((settled(x[i]) & 0x1FFFFu) == 0x8000u) << (i % 32);
            ties[k] = word;
        }
    }
    return 0;
}

/* (stored) -> moment */
OPERATOR(mpcore_open_moment) {
    const int64_t size = size_of(dims[0], shapes[0]);
    const uint16_t *restrict stored = params[0];
    float *restrict x = params[1];
    for (int64_t i = 0; i < size; i++) x[i] = widen(stored[i]);
    return 0;
}

/* (moment) -> stored */
OPERATOR(mpcore_close_moment) {
    const int64_t size = size_of(dims[0], shapes[0]);
    const float *restrict x = params[0];
    uint16_t *restrict stored = params[1];
    for (int64_t i = 0; i < size; i++) stored[i] = (uint16_t)nearest(settled(x[i]));
    return 0;
}
