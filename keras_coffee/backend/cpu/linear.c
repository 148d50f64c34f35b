/* The linear recurrence h_t = a_t h_{t-1} + b_t for a processor: one pass forward, one backward.
 *
 * Inputs and states are (B, T, W), the initial state is (B, W), of real or complex numbers. Arrays:
 *
 *   forward: a, b, initial state; states
 *   backward: gradient of the states, states, a, initial state; gradients of a, b, initial state
 *
 * Options: IS_COMPLEX; REVERSE, from the last step to the first; and whether a has an element for
 * each sequence and for each step, or one for all: DECAY_PER_SEQUENCE, DECAY_PER_STEP.
 *
 * Memory limits it, so every array is read or written once, and there is no work space: the state
 * before a step is the row that was written last, and the adjoint lies where the gradient of the
 * initial state will. Both are still in the innermost cache. The sequences of a block come one after
 * another, since several side by side use more lines of the cache than there are.
 */
#include "common.h"

#if IS_COMPLEX
typedef struct {
  real re, im;
} number;

INLINE number sum(number a, number b) { return (number){a.re + b.re, a.im + b.im}; }

INLINE number product(number a, number b) {
  return (number){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

INLINE number conjugate(number a) { return (number){a.re, -a.im}; }
#else
typedef real number;

INLINE number sum(number a, number b) { return a + b; }

INLINE number product(number a, number b) { return a * b; }

INLINE number conjugate(number a) { return a; }
#endif

/* The step that is taken as the i-th. */
INLINE int64_t time_of(const sizes *s, int64_t i) { return REVERSE ? s->length - 1 - i : i; }

/* Where the lanes of a block begin in the row of a sequence: of (B, W), of (B, T, W) at the i-th step,
 * and of a. */
INLINE int64_t place_of_state(const sizes *s, block x, int64_t b) { return b * s->dim + x.d; }

INLINE int64_t place(const sizes *s, block x, int64_t b, int64_t i) {
  return (b * s->length + time_of(s, i)) * s->dim + x.d;
}

INLINE int64_t place_of_decay(const sizes *s, block x, int64_t b, int64_t i) {
  return DECAY_PER_STEP ? place(s, x, b, i) : place_of_state(s, x, b);
}

/* The state before the i-th step. */
INLINE const number *state_before(const sizes *s, block x, int64_t b, int64_t i,
                                  const number *states, const number *initial_state) {
  return i ? states + place(s, x, b, i - 1) : initial_state + place_of_state(s, x, b);
}

/* Processors foresee reads that ascend, and none that descend. */
INLINE void prefetch(int64_t width, const number *row) {
  for (int64_t p = 0; p < width; p += 64 / sizeof(number)) __builtin_prefetch(row + p);
}

INLINE void advance(int64_t width, const number *restrict decay, const number *restrict inputs,
                    const number *restrict before, number *restrict after) {
  EACH_LANE(p, width) after[p] = sum(product(decay[p], before[p]), inputs[p]);
}

static void run_sequence(const sizes *s, block x, int64_t b, real *const *arrays) {
  const number *decay = (number *)arrays[0], *inputs = (number *)arrays[1];
  const number *initial_state = (number *)arrays[2];
  number *states = (number *)arrays[3];
  const int64_t shared = DECAY_PER_SEQUENCE ? b : 0;
  for (int64_t i = 0; i < s->length; i++) {
    if (REVERSE && i + STEPS_AHEAD < s->length) {
      prefetch(x.width, decay + place_of_decay(s, x, shared, i + STEPS_AHEAD));
      prefetch(x.width, inputs + place(s, x, b, i + STEPS_AHEAD));
    }
    advance(x.width, decay + place_of_decay(s, x, shared, i), inputs + place(s, x, b, i),
            state_before(s, x, b, i, states, initial_state), states + place(s, x, b, i));
  }
}

int scan_forward(const sizes *s, real *const *arrays) {
  if (!s->first) prefer_large_pages(arrays[3], s->batch * s->length * s->dim * sizeof(number));
  unsigned mode = flush_subnormal();
  for (int64_t k = s->first; k < s->last; k++) {
    block x = block_of(s, k);
    for (int64_t r = 0; r < x.rows; r++) run_sequence(s, x, x.b + r, arrays);
  }
  restore_mode(mode);
  return 0;
}

/* One step back. `adjoint` is conj(a) l of the step after, and becomes that of this one; l, the sum
 * of it and the gradient of the state, is the gradient of b, and l conj(h) that of a, which is added
 * to what is there unless it is the `first`. */
INLINE void retreat(int64_t width, int first, const number *restrict grads,
                    const number *restrict before, const number *restrict decay,
                    number *restrict adjoint, number *restrict grad_decay,
                    number *restrict grad_inputs) {
  EACH_LANE(p, width) {
    const number l = sum(grads[p], adjoint[p]), by_decay = product(l, conjugate(before[p]));
    grad_inputs[p] = l;
    grad_decay[p] = first ? by_decay : sum(grad_decay[p], by_decay);
    adjoint[p] = product(conjugate(decay[p]), l);
  }
}

/* `part`: of the gradient of a, the sequence, or the part of the sum over sequences, that this one
 * belongs to; `is_first` in it or not. */
static void run_sequence_back(const sizes *s, block x, int64_t b, int64_t part, int is_first,
                              real *const *arrays) {
  const number *grads = (number *)arrays[0], *states = (number *)arrays[1];
  const number *decay = (number *)arrays[2], *initial_state = (number *)arrays[3];
  number *grad_decay = (number *)arrays[4], *grad_inputs = (number *)arrays[5];
  number *adjoint = (number *)arrays[6] + place_of_state(s, x, b);
  const int64_t shared = DECAY_PER_SEQUENCE ? b : 0, last = s->length - 1;
  memset(adjoint, 0, x.width * sizeof(number));
  for (int64_t i = last; i >= 0; i--) {
    if (!REVERSE && i > STEPS_AHEAD) {
      prefetch(x.width, decay + place_of_decay(s, x, shared, i - STEPS_AHEAD));
      prefetch(x.width, grads + place(s, x, b, i - STEPS_AHEAD));
      prefetch(x.width, states + place(s, x, b, i - STEPS_AHEAD - 1));
    }
    retreat(x.width, is_first && (DECAY_PER_STEP || i == last), grads + place(s, x, b, i),
            state_before(s, x, b, i, states, initial_state),
            decay + place_of_decay(s, x, shared, i), adjoint,
            grad_decay + place_of_decay(s, x, part, i), grad_inputs + place(s, x, b, i));
  }
}

int scan_backward(const sizes *s, real *const *arrays) {
  const int64_t bytes = s->batch * s->length * s->dim * sizeof(number);
  if (!s->first) prefer_large_pages(arrays[5], bytes);
  if (!s->first && DECAY_PER_SEQUENCE && DECAY_PER_STEP) prefer_large_pages(arrays[4], bytes);
  unsigned mode = flush_subnormal();
  for (int64_t k = s->first; k < s->last; k++) {
    block x = block_of(s, k);
    for (int64_t r = 0; r < x.rows; r++) {
      const int64_t b = x.b + r, part = DECAY_PER_SEQUENCE ? b : k / columns(s);
      run_sequence_back(s, x, b, part, DECAY_PER_SEQUENCE || r == 0, arrays);
    }
  }
  restore_mode(mode);
  return 0;
}
