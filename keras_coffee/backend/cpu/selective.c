/* Selective state-space model for a processor: one pass forward, one backward.
 *
 *   x' = e^z x + Δ φ(z) b u,  z = λ Δ,  φ(z) = (e^z - 1) / z;  y = Σ C x' + s u
 *
 * Options: DISCRETIZATION, of which EULER takes 1 + z and 1 for e^z and φ, and MAMBA e^z and 1;
 * DELTA_SOFTPLUS, with which Δ is the softplus of what is given. Each of b and C is either a sequence
 * (B, T, n), which the features share, or a weight (D, n); s is a weight (D, 1). Where a reset is not
 * 0, x is zero before the step.
 */
#include "common.h"

enum { ZERO_ORDER_HOLD, EULER, MAMBA };
enum { INPUTS, DELTA, VARYING_INPUT_MATRIX, VARYING_OUTPUT_MATRIX, RESET, SEQUENCES };
enum { TRANSITION, INPUT_MATRIX, OUTPUT_MATRIX, SKIP, WEIGHTS };

/* What comes from an exponential and is kept of each step of a chunk: to compute it again takes
 * longer than to write and read it. e^z, and with a hold φ(z) and φ'(z). */
#define FACTORS (DISCRETIZATION == EULER ? 0 : DISCRETIZATION == MAMBA ? 1 : 3)

/* Work space of a thread. */
typedef struct {
  real *transition, *input_matrix, *output_matrix; /* (n, stride) */
  real *sums, *input_sums, *output_sums;           /* (n, stride) */
  real *state, *adjoint;                           /* (n, stride) */
  real *states, *factors;                          /* (steps, n, stride), see `compute_again` */
  real *inputs, *delta, *outputs, *grads;          /* (stride) */
  real *delta_slope;                               /* (stride), of Δ by what is given */
  real *skip, *skip_sums;                          /* (stride) */
  const real *input_row, *output_row;              /* (n), see `load_row` */
  void *base;
} space;

/* `base` is NULL if there is no memory. */
static space allocate(const sizes *s, int64_t steps) {
  const int64_t stride = whole_vectors(s->sequences * s->features), row = s->states * stride;
  space w;
  w.transition = zeros((8 + (1 + FACTORS) * steps) * row + 7 * stride, &w.base);
  w.input_matrix = w.transition + row;
  w.output_matrix = w.input_matrix + row;
  w.sums = w.output_matrix + row;
  w.input_sums = w.sums + row;
  w.output_sums = w.input_sums + row;
  w.state = w.output_sums + row;
  w.adjoint = w.state + row;
  w.factors = w.adjoint + row;
  w.inputs = w.factors + FACTORS * steps * row;
  w.delta = w.inputs + stride;
  w.outputs = w.delta + stride;
  w.grads = w.outputs + stride;
  w.delta_slope = w.grads + stride;
  w.skip = w.delta_slope + stride;
  w.skip_sums = w.skip + stride;
  w.states = w.skip_sums + stride;
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

/* A block of one sequence has one number for each row of a matrix (B, T, n). It is read from where
 * it is, and its gradient summed while the lanes are gone through: half the time at 16 states. */
INLINE void load_row(const sizes *s, block x, int64_t t, const real *from, real *restrict to,
                     const real **row) {
  if (x.rows > 1) load_matrix(s, x, t, from, to);
  *row = from + (x.b * s->length + t) * s->states;
}

/* What the state after a step depends on. */
INLINE void load_sources(const sizes *s, block x, int64_t t, real *const *sequences, space *w) {
  gather(s, x, t, sequences[INPUTS], w->inputs);
  gather(s, x, t, sequences[DELTA], w->delta);
  if (DELTA_SOFTPLUS) EACH_LANE(p, x.stride) w->delta[p] = softplus(w->delta[p], w->delta_slope + p);
  if (HAS_VARYING_INPUT_MATRIX)
    load_row(s, x, t, sequences[VARYING_INPUT_MATRIX], w->input_matrix, &w->input_row);
}

INLINE void load_step(const sizes *s, block x, int64_t t, real *const *sequences, space *w) {
  load_sources(s, x, t, sequences, w);
  if (HAS_VARYING_OUTPUT_MATRIX)
    load_row(s, x, t, sequences[VARYING_OUTPUT_MATRIX], w->output_matrix, &w->output_row);
}

static void load_weights(const sizes *s, block x, real *const *weights, space *w) {
  load_weight(x, s->states, weights[TRANSITION], w->transition);
  if (HAS_INPUT_MATRIX) load_weight(x, s->states, weights[INPUT_MATRIX], w->input_matrix);
  if (HAS_OUTPUT_MATRIX) load_weight(x, s->states, weights[OUTPUT_MATRIX], w->output_matrix);
  if (HAS_SKIP) load_weight(x, 1, weights[SKIP], w->skip);
}

/* e^z, φ(z) and φ'(z), or what stands for them. With z = k ln(2) + f and e^f = 1 + f (1 + f r), all
 * comes from r. For k = 0, where e^z - 1 would cancel, z = f and φ = 1 + f r; and as φ' is
 * (e^z - φ) / z, it is φ - r. Both forms are computed and one is taken, because a branch could not
 * be vectorized. */
INLINE void hold(real z, real *decay, real *ratio, real *slope) {
  *decay = 1 + z, *ratio = 1, *slope = 0;
  if (DISCRETIZATION == EULER) return;
  real k, f;
  const real power = reduced(z, &k, &f), rest = rest_of_exponential(f), near = 1 + f * rest;
  *decay = power * (1 + f * near);
  if (DISCRETIZATION == MAMBA) return;
  const int is_near = k == 0;
  const real inverse = 1 / (is_near ? 1 : z), far = (*decay - 1) * inverse;
  *ratio = is_near ? near : far;
  *slope = is_near ? near - rest : (*decay - far) * inverse;
}

/* Those of row j of a step whose state before it lies at `before`, one row after another. */
INLINE real *factors_of(block x, const space *w, const real *before, int64_t j) {
  return w->factors + FACTORS * (before - w->states + j * x.stride);
}

INLINE void advance_lanes(const sizes *s, block x, space *w, real *before, int one_sequence) {
  const int has_input_row = HAS_VARYING_INPUT_MATRIX && one_sequence;
  const int has_output_row = HAS_VARYING_OUTPUT_MATRIX && one_sequence;
  const real *restrict u = w->inputs, *restrict delta = w->delta;
  real *restrict y = w->outputs;
  for (int64_t j = 0; j < s->states; j++) {
    const real *restrict transition = w->transition + j * x.stride;
    const real *restrict input_matrix = w->input_matrix + j * x.stride;
    const real *restrict output_matrix = w->output_matrix + j * x.stride;
    real *restrict state = w->state + j * x.stride;
    real *restrict copy = before ? before + j * x.stride : NULL;
    real *restrict factors = before ? factors_of(x, w, before, j) : NULL;
    const real input = has_input_row ? w->input_row[j] : 0;
    const real output = has_output_row ? w->output_row[j] : 0;
    EACH_LANE(p, x.stride) {
      real decay, ratio, slope, v = state[p];
      const real b = has_input_row ? input : input_matrix[p];
      if (copy) copy[p] = v;
      hold(transition[p] * delta[p], &decay, &ratio, &slope);
      if (FACTORS > 0 && before) factors[p] = decay;
      if (FACTORS > 1 && before) factors[p + x.stride] = ratio, factors[p + 2 * x.stride] = slope;
      v = decay * v + delta[p] * ratio * b * u[p];
      state[p] = v;
      if (!before) y[p] = (j ? y[p] : 0) + (has_output_row ? output : output_matrix[p]) * v;
    }
  }
  if (HAS_SKIP && !before) EACH_LANE(p, x.stride) y[p] += w->skip[p] * u[p];
}

/* One step. `before`, unless NULL, gets the state before it, else `w->outputs` the outputs. */
INLINE void advance(const sizes *s, block x, space *w, real *before) {
  if (x.rows == 1)
    advance_lanes(s, x, w, before, 1);
  else
    advance_lanes(s, x, w, before, 0);
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
    if (is_new(s, k)) load_weights(s, x, weights, &w);
    load_state(s, x, initial_state, w.state);
    for (int64_t t = 0; t < s->length; t++) {
      load_step(s, x, t, sequences, &w);
      if (HAS_RESET) restart(s, x, t, sequences[RESET], w.state);
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

INLINE void retreat_lanes(const sizes *s, block x, space *w, const real *states, int one_sequence) {
  const int has_input_row = HAS_VARYING_INPUT_MATRIX && one_sequence;
  const int has_output_row = HAS_VARYING_OUTPUT_MATRIX && one_sequence;
  const real *restrict u = w->inputs, *restrict g = w->grads, *restrict delta = w->delta;
  real *restrict grad_inputs = w->outputs, *restrict grad_delta = w->state;
  for (int64_t j = 0; j < s->states; j++) {
    const real *restrict before = states + j * x.stride;
    const real *restrict factors = factors_of(x, w, states, j);
    const real *restrict transition = w->transition + j * x.stride;
    const real *restrict input_matrix = w->input_matrix + j * x.stride;
    const real *restrict output_matrix = w->output_matrix + j * x.stride;
    real *restrict sums = w->sums + j * x.stride, *restrict adjoint = w->adjoint + j * x.stride;
    real *restrict input_sums = w->input_sums + j * x.stride;
    real *restrict output_sums = w->output_sums + j * x.stride;
    const real input = has_input_row ? w->input_row[j] : 0;
    const real output = has_output_row ? w->output_row[j] : 0;
    real input_sum = 0, output_sum = 0;
    _Pragma("omp simd reduction(+ : input_sum, output_sum)")
    for (int64_t p = 0; p < x.stride; p++) {
      const real b = has_input_row ? input : input_matrix[p];
      const real c = has_output_row ? output : output_matrix[p];
      const real decay = FACTORS > 0 ? factors[p] : 1 + transition[p] * delta[p];
      const real ratio = FACTORS > 1 ? factors[p + x.stride] : 1;
      const real slope = FACTORS > 1 ? factors[p + 2 * x.stride] : 0;
      const real v = before[p], drive = b * u[p];
      const real gain = delta[p] * ratio, l = adjoint[p] + g[p] * c;
      /* ∂e^z/∂λ = Δ e^z, ∂(Δ φ)/∂λ = Δ² φ'(z), ∂(Δ φ)/∂Δ = e^z; for EULER and MAMBA that is 1. */
      const real after = decay * v + gain * drive;
      const real held = (DISCRETIZATION == EULER ? 1 : decay) * v;
      const real driven = DISCRETIZATION == ZERO_ORDER_HOLD ? decay * drive : drive;
      const real bent = DISCRETIZATION == ZERO_ORDER_HOLD ? held + delta[p] * slope * drive : held;
      grad_delta[p] = (j ? grad_delta[p] : 0) + l * (held * transition[p] + driven);
      sums[p] += l * delta[p] * bent;
      const real by_matrix = l * gain * u[p], by_output = g[p] * after;
      if (has_input_row)
        input_sum += by_matrix;
      else
        input_sums[p] = HAS_VARYING_INPUT_MATRIX ? by_matrix : input_sums[p] + by_matrix;
      if (has_output_row)
        output_sum += by_output;
      else
        output_sums[p] = HAS_VARYING_OUTPUT_MATRIX ? by_output : output_sums[p] + by_output;
      grad_inputs[p] = (j ? grad_inputs[p] : 0) + l * gain * b;
      adjoint[p] = l * decay;
    }
    if (has_input_row) w->input_sums[j] = input_sum;
    if (has_output_row) w->output_sums[j] = output_sum;
  }
  EACH_LANE(p, x.stride) {
    if (HAS_SKIP) w->skip_sums[p] += g[p] * u[p], grad_inputs[p] += g[p] * w->skip[p];
    if (DELTA_SOFTPLUS) grad_delta[p] *= w->delta_slope[p];
  }
}

/* One step back. `w->outputs` gets the gradient of the inputs, `w->state` that of what Δ is from. */
INLINE void retreat(const sizes *s, block x, space *w, const real *states) {
  if (x.rows == 1)
    retreat_lanes(s, x, w, states, 1);
  else
    retreat_lanes(s, x, w, states, 0);
}

/* The states before each step of a chunk, of which the first is there, and its factors. */
static void compute_again(const sizes *s, block x, int64_t start, int64_t stop,
                          real *const *sequences, space *w) {
  const int64_t row = s->states * x.stride;
  memcpy(w->state, w->states, row * sizeof(real));
  const int64_t last = FACTORS ? stop : stop - 1; /* the last step is for its factors alone */
  for (int64_t t = start; t < last; t++) {
    if (HAS_RESET && t > start) restart(s, x, t, sequences[RESET], w->state);
    load_sources(s, x, t, sequences, w);
    advance(s, x, w, w->states + (t - start) * row);
  }
  if (last == stop) return;
  if (HAS_RESET && last > start) restart(s, x, last, sequences[RESET], w->state);
  memcpy(w->states + (last - start) * row, w->state, row * sizeof(real));
}

/* Sums over the features of a step, in the part that block k has of them. */
INLINE void sum_matrix(const sizes *s, block x, int64_t k, int64_t t, const real *sums,
                       real *parts) {
  parts += k % columns(s) * s->batch * s->length * s->states;
  if (x.rows > 1)
    sum_features(s, x, t, sums, parts);
  else
    for (int64_t j = 0; j < s->states; j++) parts[(x.b * s->length + t) * s->states + j] = sums[j];
}

/* Zeros where a block before this one may have left numbers that would be summed with its own. */
static void clear_padding(block x, int64_t row, space *w) {
  memset(w->inputs, 0, x.stride * sizeof(real));
  memset(w->delta, 0, x.stride * sizeof(real));
  memset(w->grads, 0, x.stride * sizeof(real));
  memset(w->adjoint, 0, row * sizeof(real));
  memset(w->states, 0, row * sizeof(real));
}

static void clear_sums(block x, int64_t row, space *w) {
  memset(w->sums, 0, row * sizeof(real));
  memset(w->input_sums, 0, row * sizeof(real));
  memset(w->output_sums, 0, row * sizeof(real));
  memset(w->skip_sums, 0, x.stride * sizeof(real));
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
  for (int64_t k = s->first, from = k; k < s->last; k++) {
    block x = block_of(s, k);
    const int64_t row = s->states * x.stride;
    clear_padding(x, row, &w);
    if (is_new(s, k)) load_weights(s, x, weights, &w);
    if (begins_sums(s, k)) from = k, clear_sums(x, row, &w);
    load_state(s, x, grad_final, w.adjoint);
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
        if (HAS_RESET) restart(s, x, t, sequences[RESET], w.adjoint);
        scatter(s, x, t, w.outputs, grad_sequences[INPUTS]);
        scatter(s, x, t, w.state, grad_sequences[DELTA]);
        if (HAS_VARYING_INPUT_MATRIX)
          sum_matrix(s, x, k, t, w.input_sums, grad_sequences[VARYING_INPUT_MATRIX]);
        if (HAS_VARYING_OUTPUT_MATRIX)
          sum_matrix(s, x, k, t, w.output_sums, grad_sequences[VARYING_OUTPUT_MATRIX]);
      }
    }
    store_state(s, x, w.adjoint, grad_initial);
    if (k + 1 < s->last && !begins_sums(s, k + 1)) continue;
    const int64_t n = s->states;
    sum_weight(s, x, from, n, w.sums, grad_weights[TRANSITION]);
    if (HAS_INPUT_MATRIX) sum_weight(s, x, from, n, w.input_sums, grad_weights[INPUT_MATRIX]);
    if (HAS_OUTPUT_MATRIX) sum_weight(s, x, from, n, w.output_sums, grad_weights[OUTPUT_MATRIX]);
    if (HAS_SKIP) sum_weight(s, x, from, 1, w.skip_sums, grad_weights[SKIP]);
  }
  free(w.base);
  restore_mode(mode);
  return 0;
}
