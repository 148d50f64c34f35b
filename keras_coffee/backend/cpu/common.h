/* What the kernels share: the type, exponentials that compilers vectorize, blocks of features.
 *
 * A kernel is compiled for the options that a program uses, given as macros: REAL_BITS, 32 or 64;
 * HAS_<NAME>, 1 or 0, for every sequence and weight in kernels.py; and the options of its own.
 */
#if defined(__GNUC__) && !defined(__clang__)
/* Or rows of a few numbers are copied by a call. */
#pragma GCC optimize("no-tree-loop-distribute-patterns")
#endif

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE__) || defined(_M_X64)
#include <xmmintrin.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

#if REAL_BITS == 32
typedef float real;
typedef int32_t integer;
#define MANTISSA 23
#define BIAS 127
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440e-4f
#define MAGNITUDE(x) fabsf(x)
#else
typedef double real;
typedef int64_t integer;
#define MANTISSA 52
#define BIAS 1023
#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW 1.90821492927058770002e-10
#define MAGNITUDE(x) fabs(x)
#endif

#define SIMD _Pragma("omp simd")
#define INLINE static inline __attribute__((always_inline))

/* Sizes of a call; blocks.py has the same structure. Features are independent of each other and of
 * the batch, so they are worked on in blocks of `sequences` × `features` lanes, side by side in
 * vectors; a thread takes the blocks from `first` up to `last`. A gradient that is a sum over
 * sequences has a part for every `together` rows of blocks. The state is kept before every `keep`
 * steps; before none if that is 0. */
typedef struct {
  int64_t first, last, sequences, features, together;
  int64_t batch, length, dim, states, keep;
} sizes;

/* One block: sequences from b to b + rows, features from d to d + width. In work space the rows of
 * its lanes are `stride` apart, whole vectors; what lies in between is computed and never used. */
typedef struct {
  int64_t b, rows, d, width, lanes, stride;
} block;

/* What each kernel defines. Arrays come in one order, with NULL where there is none (linear.c, whose
 * outputs are its states, has an order of its own):
 *
 *   forward: sequences, weights, initial state; outputs, final state, kept states
 *   backward: gradients of outputs and final state, kept states, sequences, weights;
 *     gradients of sequences, weights and initial state
 *
 * A gradient that is summed over blocks has a leading axis with its parts, if it is a weight's, or
 * with one for each column of blocks, if it is a sequence's that all features share. The result is not
 * zero if there is no memory. */
int scan_forward(const sizes *s, real *const *arrays);
int scan_backward(const sizes *s, real *const *arrays);

#define VECTOR 16
/* Zeros on whole lines of the cache, which vectors then never straddle; `*base` is to be freed. */
INLINE real *zeros(int64_t count, void **base) {
  *base = calloc(count + 64 / sizeof(real), sizeof(real));
  return (real *)(((uintptr_t)*base + 63) / 64 * 64);
}

#define EACH_LANE(p, stride) SIMD for (int64_t p = 0; p < (stride); p++)

INLINE int64_t whole_vectors(int64_t lanes) { return (lanes + VECTOR - 1) / VECTOR * VECTOR; }

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Blocks beside each other in a sequence. */
INLINE int64_t columns(const sizes *s) { return (s->dim + s->features - 1) / s->features; }

/* States kept of a sequence. */
INLINE int64_t chunks(const sizes *s) { return s->keep ? (s->length + s->keep - 1) / s->keep : 0; }

INLINE block block_of(const sizes *s, int64_t k) {
  block x;
  x.b = k / columns(s) * s->sequences;
  x.d = k % columns(s) * s->features;
  x.rows = least(s->sequences, s->batch - x.b);
  x.width = least(s->features, s->dim - x.d);
  x.lanes = x.rows * x.width;
  x.stride = whole_vectors(x.lanes);
  return x;
}

/* Whether block k has other lanes than the one before it, so that weights must be loaded. */
INLINE int is_new(const sizes *s, int64_t k) {
  if (k == s->first) return 1;
  const block x = block_of(s, k), before = block_of(s, k - 1);
  return x.d != before.d || x.rows != before.rows;
}

/* Whether sums over sequences begin anew with block k: a part does, or lanes are others. */
INLINE int begins_a_part(const sizes *s, int64_t k) { return k / columns(s) % s->together == 0; }

INLINE int begins_sums(const sizes *s, int64_t k) { return begins_a_part(s, k) || is_new(s, k); }

/* Step t of (B, T, D) to and from the lanes. By loops: most rows are too short for memcpy. */
INLINE void gather(const sizes *s, block x, int64_t t, const real *from, real *restrict to) {
  for (int64_t r = 0; r < x.rows; r++) {
    const real *row = from + ((x.b + r) * s->length + t) * s->dim + x.d;
    for (int64_t d = 0; d < x.width; d++) to[r * x.width + d] = row[d];
  }
}

INLINE void scatter(const sizes *s, block x, int64_t t, const real *from, real *restrict to) {
  for (int64_t r = 0; r < x.rows; r++) {
    real *restrict row = to + ((x.b + r) * s->length + t) * s->dim + x.d;
    for (int64_t d = 0; d < x.width; d++) row[d] = from[r * x.width + d];
  }
}

/* A hint, STEPS_AHEAD before they are needed: no processor foresees reads that go backwards. */
INLINE void prefetch_step(const sizes *s, block x, int64_t t, const real *from) {
  if (t < 0) return;
  for (int64_t r = 0; r < x.rows; r++)
    for (int64_t d = 0; d < x.width; d += VECTOR)
      __builtin_prefetch(from + ((x.b + r) * s->length + t) * s->dim + x.d + d);
}

#define STEPS_AHEAD 4

/* States (B, D, n) to and from (n, stride). */
INLINE void load_state(const sizes *s, block x, const real *from, real *restrict to) {
  for (int64_t r = 0; r < x.rows; r++)
    for (int64_t d = 0; d < x.width; d++)
      for (int64_t j = 0; j < s->states; j++)
        to[j * x.stride + r * x.width + d] = from[((x.b + r) * s->dim + x.d + d) * s->states + j];
}

INLINE void store_state(const sizes *s, block x, const real *from, real *restrict to) {
  for (int64_t r = 0; r < x.rows; r++)
    for (int64_t d = 0; d < x.width; d++)
      for (int64_t j = 0; j < s->states; j++)
        to[((x.b + r) * s->dim + x.d + d) * s->states + j] = from[j * x.stride + r * x.width + d];
}

/* Zeros in the lanes (n, stride) of the sequences that begin at step t: in a state before the step,
 * and in the adjoint that would go back past it. Called after HAS_RESET is found to be 1. */
INLINE void restart(const sizes *s, block x, int64_t t, const real *reset, real *restrict lanes) {
  for (int64_t r = 0; r < x.rows; r++)
    if (reset[(x.b + r) * s->length + t] != 0)
      for (int64_t j = 0; j < s->states; j++)
        memset(lanes + j * x.stride + r * x.width, 0, x.width * sizeof(real));
}

/* States kept for the gradient, (chunks, B, D, n): those before step c keep. */
INLINE int64_t place_of_chunk(const sizes *s, int64_t c) { return c * s->batch * s->dim * s->states; }

/* A weight (D, n) to (n, stride), once for each sequence; n is the number of states or 1. */
INLINE void load_weight(block x, int64_t n, const real *from, real *restrict to) {
  memset(to, 0, n * x.stride * sizeof(real));
  for (int64_t j = 0; j < n; j++)
    for (int64_t r = 0; r < x.rows; r++)
      for (int64_t d = 0; d < x.width; d++)
        to[j * x.stride + r * x.width + d] = from[(x.d + d) * n + j];
}

/* The sums of its gradients back, over blocks from k on, to the part that they have. */
INLINE void sum_weight(const sizes *s, block x, int64_t k, int64_t n, const real *from,
                       real *restrict to) {
  const int is_first = begins_a_part(s, k);
  to += k / columns(s) / s->together * s->dim * n;
  for (int64_t j = 0; j < n; j++)
    for (int64_t d = 0; d < x.width; d++) {
      real sum = is_first ? 0 : to[(x.d + d) * n + j];
      for (int64_t r = 0; r < x.rows; r++) sum += from[j * x.stride + r * x.width + d];
      to[(x.d + d) * n + j] = sum;
    }
}

/* 2^k for the whole number k next to t: zero for k = -BIAS, infinite for k = BIAS + 1. k may lie no
 * further out; if t is NaN so is k. */
INLINE real nearest_power(real t, real *k) {
  /* Added to a number whose last digit is 1, t is rounded, and is in the last bits with the bias of
   * an exponent. */
  const real shift = (real)1.5 * ((int64_t)1 << MANTISSA) + BIAS, shifted = t + shift;
  integer bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (integer)((uint64_t)bits << MANTISSA);
  real power;
  memcpy(&power, &bits, sizeof power);
  *k = shifted - shift;
  return power;
}

/* (e^f - 1 - f) / f² for |f| ≤ ln(2) / 2: the polynomial with which e^f has the smallest error,
 * 3e-9, or Taylor's series. */
INLINE real rest_of_exponential(real f) {
#if REAL_BITS == 32
  real p = 1.395038799e-3f;
  p = p * f + 8.368850336e-3f;
  p = p * f + 4.166620813e-2f;
  p = p * f + 1.666651933e-1f;
#else
  real p = (real)1 / 6227020800;
  p = p * f + (real)1 / 479001600;
  p = p * f + (real)1 / 39916800;
  p = p * f + (real)1 / 3628800;
  p = p * f + (real)1 / 362880;
  p = p * f + (real)1 / 40320;
  p = p * f + (real)1 / 5040;
  p = p * f + (real)1 / 720;
  p = p * f + (real)1 / 120;
  p = p * f + (real)1 / 24;
  p = p * f + (real)1 / 6;
#endif
  return p * f + (real)1 / 2;
}

INLINE real taylor(real f) { return 1 + f * (1 + f * rest_of_exponential(f)); }

/* x = k ln(2) + f with |f| ≤ ln(2) / 2, and 2^k. So e^x is 2^k e^f, to about one unit of rounding:
 * NaN where it should be, zero below the smallest normal number, infinite from 2^(BIAS + 1/2). */
INLINE real reduced(real x, real *k, real *f) {
  /* Comparisons with NaN are false: it gets through. */
  const real least_x = BIAS * (real)-0.6931471805599453;
  const real most_x = (BIAS + 1) * (real)0.6931471805599453;
  x = x < least_x ? least_x : x;
  x = x > most_x ? most_x : x;
  const real power = nearest_power(x * (real)1.4426950408889634, k);
  *f = (x - *k * LN2_HIGH) - *k * LN2_LOW;
  return power;
}

INLINE real exponential(real x) {
  real k, f;
  const real power = reduced(x, &k, &f);
  return power * taylor(f);
}

/* log(1 + e^x) and its derivative, the sigmoid; both to their last digits, however small. */
INLINE real softplus(real x, real *slope) {
  const real e = exponential(-MAGNITUDE(x)), inverse = 1 / (1 + e), positive = x > 0 ? x : 0;
  /* log(1 + e) = 2 artanh(s) with s = e / (2 + e) ≤ 1/3. */
  const int terms = REAL_BITS == 32 ? 8 : 17;
  const real s = e / (2 + e), square = s * s;
  real series = (real)1 / (2 * terms - 1);
#pragma GCC unroll 32
  for (int k = terms - 1; k > 0; k--) series = series * square + (real)1 / (2 * k - 1);
  *slope = x > 0 ? inverse : e * inverse;
  return positive + 2 * s * series;
}

/* 2^f for |f| ≤ 1/2: the polynomial of the smallest relative error, 2e-9, or Taylor's series. */
INLINE real power_of_fraction(real f) {
#if REAL_BITS == 32
  real p = 1.53533620e-4f;
  p = p * f + 1.33988750e-3f;
  p = p * f + 9.61843692e-3f;
  p = p * f + 5.55033237e-2f;
  p = p * f + 2.40226477e-1f;
  p = p * f + 6.93147182e-1f;
  return p * f + 1;
#else
  return taylor(f * 0.6931471805599453);
#endif
}

/* A sigmoid, to some units of rounding, of -x log2(e): that factor is multiplied into weights once.
 * 2^t is clamped to normal numbers. */
#define SIGMOID_SCALE ((real)-1.4426950408889634)

INLINE real sigmoid_of_scaled(real t) {
  const real most = BIAS;
  t = t > most ? most : t;
  t = t < -most ? -most : t;
  real k;
  const real power = nearest_power(t, &k);
  return 1 / (1 + power_of_fraction(t - k) * power);
}

INLINE real sigmoid(real x) { return sigmoid_of_scaled(SIGMOID_SCALE * x); }

/* Results are often fresh memory, and to be given it page by page takes longer than to compute
 * them: pages of 2 MB where the system has them. */
INLINE void prefer_large_pages(void *from, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const uintptr_t page = 1 << 21, start = ((uintptr_t)from + page - 1) / page * page;
  const uintptr_t stop = ((uintptr_t)from + bytes) / page * page;
  if (start < stop) madvise((void *)start, stop - start, MADV_HUGEPAGE);
#else
  (void)from, (void)bytes;
#endif
}

/* The same for what a call writes: sequences (B, T, D), and the states that it keeps. */
INLINE void prefer_large_pages_for(const sizes *s, real *sequences, real *kept) {
  if (s->first) return;
  const int64_t features = s->batch * s->dim * sizeof(real);
  prefer_large_pages(sequences, s->length * features);
  if (kept) prefer_large_pages(kept, chunks(s) * s->states * features);
}

/* Numbers below the smallest normal one are taken for zero: adjoints fade away, and arithmetic on
 * such leftovers is a hundred times slower. Returns what `restore_mode` needs. */
INLINE unsigned flush_subnormal(void) {
#if defined(__SSE__) || defined(_M_X64)
  unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040);
  return mode;
#else
  return 0;
#endif
}

INLINE void restore_mode(unsigned mode) {
#if defined(__SSE__) || defined(_M_X64)
  _mm_setcsr(mode);
#else
  (void)mode;
#endif
}

#ifdef FOR_XLA
#include "xla.h"
#endif
#ifdef FOR_TENSORFLOW
#include "tensorflow.h"
#endif
