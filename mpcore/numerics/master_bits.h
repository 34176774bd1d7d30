/* The bits of float32 and bfloat16 numbers in C, as master_weights.py has them: for the kernels
   that backends compile (mpcore/capabilities/compiled.py). */

#ifndef MPCORE_MASTER_BITS_H
#define MPCORE_MASTER_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t to_bits(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
static inline float to_float(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }
static inline float widen(uint16_t h) { return to_float((uint32_t)h << 16); }

/* Every NaN as the canonical one. */
static inline uint32_t settled(float x) {
    uint32_t b = to_bits(x);
    return (b & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC00000u : b;
}

/* The upper halves, rounded. */
static inline uint32_t nearest(uint32_t b) { return (b + 0x7FFFu + ((b >> 16) & 1u)) >> 16; }
static inline uint32_t by_chance(uint32_t b, uint32_t chance) {
    const uint32_t high = (b + chance) >> 16;
    /* A finite number stays finite. */
    return high - ((high & 0x7FFFu) == 0x7F80u && (b & 0x7FFFFFFFu) < 0x7F800000u);
}

/* The upper half of what `high`, the upper half of `b`, leaves out: kahan's remainder. */
static inline uint32_t left_out(uint32_t b, uint32_t high) {
    const float missing = to_float(b) - to_float(high << 16);
    return (high & 0x7F80u) == 0x7F80u ? 0 : nearest(to_bits(missing));
}

static inline uint32_t mix(uint32_t x) {
    x ^= x >> 16; x *= 0x7FEB352Du; x ^= x >> 15; x *= 0x846CA68Bu;
    return x ^ (x >> 16);
}

#endif
