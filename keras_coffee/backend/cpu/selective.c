/* Selective state-space model for a processor: one pass forward, one backward.
 *
 *   x' = e^z x + Δ φ(z) b u,  z = λ Δ,  φ(z) = (e^z - 1) / z;  y = Σ C x'
 *
 * Option: DISCRETIZATION, of which EULER takes 1 + z and 1 for e^z and φ. Each of b and C is either
 * a sequence (B, T, n), which the features share, or a weight (D, n).
 */
#include "common.h"

enum { ZERO_ORDER_HOLD, EULER };
enum { INPUTS, DELTA, VARYING_INPUT_MATRIX, VARYING_OUTPUT_MATRIX, SEQUENCES };
enum { TRANSITION, INPUT_MATRIX, OUTPUT_MATRIX, WEIGHTS };

/* Work space of a thread. */
typedef struct {
  real *transition, *input_matrix, *output_matrix; /* (n, stride) */
  real *sums, *input_sums, *output_sums;           /* (n, stride) */
  real *state, *adjoint;                           /* (n, stride) */
  real *states;                                    /* (steps, n, stride) */
  real *inputs, *delta, *outputs, *grads;          /* (stride) */
  void *base;
} space;

/* `base` is NULL if there is no memory. */
static space allocate(const sizes *s, int64_t steps) {
  const int64_t stride = whole_vectors(s->sequences * s->features), row = s->states * stride;
  space w;
  w.transition = zeros((8 + steps) * row + 4 * stride, &w.base);
  w.input_matrix = w.transition + row;
  w.output_matrix = w.input_matrix + row;
  w.sums = w.output_matrix + row;
  w.input_sums = w.sums + row;
  w.output_sums = w.input_sums + row;
  w.state = w.output_sums + row;
  w.adjoint = w.state + row;
  w.inputs = w.adjoint + row;
  w.delta = w.inputs + stride;
  w.outputs = w.delta + stride;
  w.grads = w.outputs + stride;
  w.states = w.grads + stride;
  return w;
}

/* A matrix (B, T, n) at step t to (n, stride), and sums over the features back. */
INLINE void load_matrix(const sizes *s, block x, int64_t t, const real *from, real *restrict to) {
  for (int64_t r = 0; r < x.rows; r++)
    for (int64_t j = 0; j < s->states; j++) {
      const real element = from[((x.b + r) * s->length + t) * s->states + j];
      real *restrict row = to + j * x.stride + r * x.width;
      for (int64_t d = 0; d < x.width; d++) row[d] = element;
    }
}

INLINE void sum_features(const sizes *s, block x, int64_t t, const real *from, real *restrict to) {
  for (int64_t r = 0; r < x.rows; r++)
    for (int64_t j = 0; j < s->states; j++) {
      const real *restrict row = from + j * x.stride + r * x.width;
      real sum = 0;
      _Pragma("omp simd reduction(+ : sum)")
      for (int64_t d = 0; d < x.width; d++) sum += row[d];
      to[((x.b + r) * s->length + t) * s->states + j] = sum;
    }
}

/* What the state after a step depends on. */
INLINE void load_sources(const sizes *s, block x, int64_t t, real *const *sequences, space *w) {
  gather(s, x, t, sequences[INPUTS], w->inputs);
  gather(s, x, t, sequences[DELTA], w->delta);
  if (HAS_VARYING_INPUT_MATRIX)
    load_matrix(s, x, t, sequences[VARYING_INPUT_MATRIX], w->input_matrix);
}

INLINE void load_step(const sizes *s, block x, int64_t t, real *const *sequences, space *w) {
  load_sources(s, x, t, sequences, w);
  if (HAS_VARYING_OUTPUT_MATRIX)
    load_matrix(s, x, t, sequences[VARYING_OUTPUT_MATRIX], w->output_matrix);
}

static void load_weights(const sizes *s, block x, real *const *weights, space *w) {
  load_weight(s, x, weights[TRANSITION], w->transition);
  if (HAS_INPUT_MATRIX) load_weight(s, x, weights[INPUT_MATRIX], w->input_matrix);
  if (HAS_OUTPUT_MATRIX) load_weight(s, x, weights[OUTPUT_MATRIX], w->output_matrix);
}

/* e^z, φ(z) and φ'(z), or their first order. Both forms are computed and one is taken, because a
 * branch could not be vectorized: Taylor's series of φ for |z| < 1, the quotient elsewhere. */
INLINE void hold(real z, real *decay, real *ratio, real *slope) {
  if (DISCRETIZATION == EULER) {
    *decay = 1 + z, *ratio = 1, *slope = 0;
    return;
  }
  const int terms = REAL_BITS == 32 ? 11 : 19;
  const real e = exponential(z);
  const int is_small = MAGNITUDE(z) < 1;
  const real divisor = is_small ? 1 : z;
  real near = 1, near_slope = 0;
#pragma GCC unroll 32
  for (int k = terms; k > 1; k--) {
    const real part = (real)1 / k;
    near_slope = (near + z * near_slope) * part;
    near = 1 + z * near * part;
  }
  const real far = (e - 1) / divisor, far_slope = (e - far) / divisor;
  *decay = e;
  *ratio = is_small ? near : far;
  *slope = is_small ? near_slope : far_slope;
}

/* One step. `before`, unless NULL, gets the state before it, else `w->outputs` Σ C x'. */
INLINE void advance(const sizes *s, block x, space *w, real *before) {
  const real *restrict u = w->inputs, *restrict delta = w->delta;
  real *restrict y = w->outputs;
  for (int64_t j = 0; j < s->states; j++) {
    const real *restrict transition = w->transition + j * x.stride;
    const real *restrict input_matrix = w->input_matrix + j * x.stride;
    const real *restrict output_matrix = w->output_matrix + j * x.stride;
    real *restrict state = w->state + j * x.stride;
    real *restrict copy = before ? before + j * x.stride : NULL;
    EACH_LANE(p, x.stride) {
      real decay, ratio, slope, v = state[p];
      if (copy) copy[p] = v;
      hold(transition[p] * delta[p], &decay, &ratio, &slope);
      v = decay * v + delta[p] * ratio * input_matrix[p] * u[p];
      state[p] = v;
      if (!before) y[p] = (j ? y[p] : 0) + output_matrix[p] * v;
    }
  }
}

int scan_forward(const sizes *s, real *const *arrays) {
  real *const *sequences = arrays, *const *weights = sequences + SEQUENCES;
  const real *initial_state = weights[WEIGHTS];
  real *const *results = weights + WEIGHTS + 1;
  real *outputs = results[0], *final_state = results[1], *kept = results[2];
  space w = allocate(s, 0);
  if (!w.base) return 1;
  prefer_large_pages_for(s, outputs, kept);
  unsigned mode = flush_subnormal();
  for (int64_t k = s->first; k < s->last; k++) {
    block x = block_of(s, k);
    load_weights(s, x, weights, &w);
    load_state(s, x, initial_state, w.state);
    for (int64_t t = 0; t < s->length; t++) {
      load_step(s, x, t, sequences, &w);
      if (s->keep && t % s->keep == 0)
        store_state(s, x, w.state, kept + place_of_chunk(s, t / s->keep));
      advance(s, x, &w, NULL);
      scatter(s, x, t, w.outputs, outputs);
    }
    store_state(s, x, w.state, final_state);
  }
  free(w.base);
  restore_mode(mode);
  return 0;
}

/* One step back. `w->outputs` gets the gradient of the inputs, `w->state` that of Δ. */
INLINE void retreat(const sizes *s, block x, space *w, const real *states) {
  const real *restrict u = w->inputs, *restrict g = w->grads, *restrict delta = w->delta;
  real *restrict grad_inputs = w->outputs, *restrict grad_delta = w->state;
  for (int64_t j = 0; j < s->states; j++) {
    const real *restrict before = states + j * x.stride;
    const real *restrict transition = w->transition + j * x.stride;
    const real *restrict input_matrix = w->input_matrix + j * x.stride;
    const real *restrict output_matrix = w->output_matrix + j * x.stride;
    real *restrict sums = w->sums + j * x.stride, *restrict adjoint = w->adjoint + j * x.stride;
    real *restrict input_sums = w->input_sums + j * x.stride;
    real *restrict output_sums = w->output_sums + j * x.stride;
    EACH_LANE(p, x.stride) {
      real decay, ratio, slope, v = before[p], drive = input_matrix[p] * u[p];
      hold(transition[p] * delta[p], &decay, &ratio, &slope);
      const real gain = delta[p] * ratio, l = adjoint[p] + g[p] * output_matrix[p];
      /* ∂e^z/∂λ = Δ e^z, ∂(Δ φ)/∂λ = Δ² φ'(z), ∂(Δ φ)/∂Δ = e^z. */
      const real held = DISCRETIZATION == EULER ? 1 : decay;
      const real by_delta = l * held * (transition[p] * v + drive);
      grad_delta[p] = (j ? grad_delta[p] : 0) + by_delta;
      sums[p] += l * delta[p] * (held * v + delta[p] * slope * drive);
      const real by_matrix = l * gain * u[p], by_output = g[p] * (decay * v + gain * drive);
      input_sums[p] = HAS_VARYING_INPUT_MATRIX ? by_matrix : input_sums[p] + by_matrix;
      output_sums[p] = HAS_VARYING_OUTPUT_MATRIX ? by_output : output_sums[p] + by_output;
      grad_inputs[p] = (j ? grad_inputs[p] : 0) + l * gain * input_matrix[p];
      adjoint[p] = l * decay;
    }
  }
}

/* The states before each step of a chunk, of which the first is there. */
static void compute_again(const sizes *s, block x, int64_t start, int64_t stop,
                          real *const *sequences, space *w) {
  const int64_t row = s->states * x.stride;
  memcpy(w->state, w->states, row * sizeof(real));
  for (int64_t t = start; t < stop - 1; t++) {
    load_sources(s, x, t, sequences, w);
    advance(s, x, w, w->states + (t - start) * row);
  }
  memcpy(w->states + (stop - 1 - start) * row, w->state, row * sizeof(real));
}

/* Sums over the features of a step, in the part that block k has of them. */
INLINE void sum_matrix(const sizes *s, block x, int64_t k, int64_t t, const real *sums,
                       real *parts) {
  sum_features(s, x, t, sums, parts + k % columns(s) * s->batch * s->length * s->states);
}

int scan_backward(const sizes *s, real *const *arrays) {
  const real *grad_outputs = arrays[0], *grad_final = arrays[1], *kept = arrays[2];
  real *const *sequences = arrays + 3, *const *weights = sequences + SEQUENCES;
  real *const *grad_sequences = weights + WEIGHTS;
  real *const *grad_weights = grad_sequences + SEQUENCES, *grad_initial = grad_weights[WEIGHTS];
  space w = allocate(s, least(s->keep, s->length));
  if (!w.base) return 1;
  prefer_large_pages_for(s, grad_sequences[INPUTS], NULL);
  prefer_large_pages_for(s, grad_sequences[DELTA], NULL);
  unsigned mode = flush_subnormal();
  for (int64_t k = s->first; k < s->last; k++) {
    block x = block_of(s, k);
    const int64_t row = s->states * x.stride;
    load_weights(s, x, weights, &w);
    load_state(s, x, grad_final, w.adjoint);
    memset(w.sums, 0, row * sizeof(real));
    memset(w.input_sums, 0, row * sizeof(real));
    memset(w.output_sums, 0, row * sizeof(real));
    for (int64_t c = chunks(s) - 1; c >= 0; c--) {
      const int64_t start = c * s->keep, stop = least(start + s->keep, s->length);
      load_state(s, x, kept + place_of_chunk(s, c), w.states);
      compute_again(s, x, start, stop, sequences, &w);
      for (int64_t t = stop - 1; t >= start; t--) {
        prefetch_step(s, x, t - STEPS_AHEAD, sequences[INPUTS]);
        prefetch_step(s, x, t - STEPS_AHEAD, sequences[DELTA]);
        prefetch_step(s, x, t - STEPS_AHEAD, grad_outputs);
        load_step(s, x, t, sequences, &w);
        gather(s, x, t, grad_outputs, w.grads);
        retreat(s, x, &w, w.states + (t - start) * row);
        scatter(s, x, t, w.outputs, grad_sequences[INPUTS]);
        scatter(s, x, t, w.state, grad_sequences[DELTA]);
        if (HAS_VARYING_INPUT_MATRIX)
          sum_matrix(s, x, k, t, w.input_sums, grad_sequences[VARYING_INPUT_MATRIX]);
        if (HAS_VARYING_OUTPUT_MATRIX)
          sum_matrix(s, x, k, t, w.output_sums, grad_sequences[VARYING_OUTPUT_MATRIX]);
      }
    }
    store_state(s, x, w.adjoint, grad_initial);
    const int64_t part = part_of_row(s, k);
    sum_weight(s, x, w.sums, grad_weights[TRANSITION] + part);
    if (HAS_INPUT_MATRIX) sum_weight(s, x, w.input_sums, grad_weights[INPUT_MATRIX] + part);
    if (HAS_OUTPUT_MATRIX) sum_weight(s, x, w.output_sums, grad_weights[OUTPUT_MATRIX] + part);
  }
  free(w.base);
  restore_mode(mode);
  return 0;
}
