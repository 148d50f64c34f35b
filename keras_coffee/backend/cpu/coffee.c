/* COFFEE for a processor: one pass forward, one backward, many features side by side.
 *
 *   Δ = σ(w x + a + β),  x' = x + Δ (λ x + b u),  y = Σ C x',
 *   the latter times σ(Σ w_γ x') with an output gate
 *
 * Option: FEEDBACK (0 none, 1 sigmoid, 2 linear). Of the arrays, the gate's inputs a, mask, b, w_γ
 * and β may be absent. Where a reset is not 0, x is zero before the step.
 */
#include "common.h"

enum { WITHOUT, SIGMOID, LINEAR };
enum { INPUTS, GATE_INPUTS, MASK, RESET, SEQUENCES };
enum { TRANSITION, GATE, READOUT, INPUT_MATRIX, OUTPUT_GATE, GATE_BIAS, WEIGHTS };

/* Weights in the work space, where the last one has no place if it is absent. */
enum { ROWS = GATE_BIAS + HAS_GATE_BIAS };

/* The update gate before the mask, and its derivative by its argument. The argument is scaled: the
 * gate's weights, bias and inputs are multiplied by GATE_SCALE when they are loaded. */
#define GATE_SCALE (FEEDBACK == LINEAR ? 1 : SIGMOID_SCALE)

INLINE real gate_of(real scaled) {
  return FEEDBACK == LINEAR ? scaled : sigmoid_of_scaled(scaled);
}

INLINE real slope_of(real gate) { return FEEDBACK == LINEAR ? 1 : gate * (1 - gate); }

/* Work space of a thread. */
typedef struct {
  real *weights, *sums;                                       /* (ROWS, n, stride) */
  real *state, *adjoint;                                      /* (n, stride) */
  real *states, *deltas;                                      /* (steps, n, stride), see `advance` */
  real *inputs, *gate_inputs, *mask;                          /* (stride), of a step */
  real *loaded;                                               /* (steps, 3, stride) of them */
  real *outputs, *gates, *grads, *grad_gates;                 /* (stride) */
  real *grad_gate_inputs;                                     /* (stride) */
  void *base;
} space;

/* Chooses which of the loaded steps is looked at. */
INLINE void look_at(space *w, int64_t step, int64_t stride) {
  w->inputs = w->loaded + 3 * step * stride;
  w->gate_inputs = w->inputs + stride;
  w->mask = w->gate_inputs + stride;
}

/* For so many steps that are looked at again. `base` is NULL if there is no memory. */
static space allocate(const sizes *s, int64_t steps) {
  const int64_t stride = whole_vectors(s->sequences * s->features), row = s->states * stride;
  const int64_t total = (2 * ROWS + 2 + 2 * steps) * row + (3 * (steps + 1) + 5) * stride;
  space w;
  w.weights = zeros(total, &w.base);
  w.sums = w.weights + ROWS * row;
  w.state = w.sums + ROWS * row;
  w.adjoint = w.state + row;
  w.outputs = w.adjoint + row;
  w.gates = w.outputs + stride;
  w.grads = w.gates + stride;
  w.grad_gates = w.grads + stride;
  w.grad_gate_inputs = w.grad_gates + stride;
  w.loaded = w.grad_gate_inputs + stride;
  w.states = w.loaded + 3 * (steps + 1) * stride;
  w.deltas = w.states + steps * row;
  look_at(&w, 0, stride);
  return w;
}

static void load_weights(const sizes *s, block x, real *const *weights, space *w) {
  const int64_t row = s->states * x.stride;
  for (int64_t i = 0; i < WEIGHTS; i++)
    if (weights[i]) load_weight(x, s->states, weights[i], w->weights + i * row);
  for (int64_t k = 0; k < row; k++) w->weights[GATE * row + k] *= GATE_SCALE;
  for (int64_t k = 0; HAS_GATE_BIAS && k < row; k++) w->weights[GATE_BIAS * row + k] *= GATE_SCALE;
}

/* The sequences of a step to the lanes. */
INLINE void load_step(const sizes *s, block x, int64_t t, real *const *sequences, space *w) {
  gather(s, x, t, sequences[INPUTS], w->inputs);
  if (HAS_GATE_INPUTS) {
    gather(s, x, t, sequences[GATE_INPUTS], w->gate_inputs);
    EACH_LANE(p, x.lanes) w->gate_inputs[p] *= GATE_SCALE;
  }
  if (HAS_MASK)
    for (int64_t r = 0; r < x.rows; r++)
      for (int64_t d = 0; d < x.width; d++)
        w->mask[r * x.width + d] = sequences[MASK][(x.b + r) * s->length + t];
}

/* The gate that looks at `by`, the state or the input. */
INLINE real gate_at(const real *w, int64_t row, int64_t p, real by, real gate_input) {
  real argument = w[GATE * row + p] * by;
  if (HAS_GATE_INPUTS) argument += gate_input;
  if (HAS_GATE_BIAS) argument += w[GATE_BIAS * row + p];
  return gate_of(argument);
}

/* The state after v, with the gate before the mask. */
INLINE real next(const real *w, int64_t row, int64_t p, real v, real source, real delta, real mask) {
  real drive = HAS_INPUT_MATRIX ? w[INPUT_MATRIX * row + p] * source : source;
  real after = v + delta * (w[TRANSITION * row + p] * v + drive);
  /* Selected, not multiplied: zero times an infinite state is NaN. */
  return HAS_MASK && mask == 0 ? v : after;
}

/* One step, without its outputs. The state before it goes to `before`, and the gate before the mask
 * to where `deltas` has the same step: a sigmoid takes longer than to write and read it. */
INLINE void advance(const sizes *s, block x, space *space, real *before) {
  real *deltas = space->deltas + (before - space->states);
  const int64_t row = s->states * x.stride;
  const real *restrict u = space->inputs, *restrict m = space->mask;
  const real *restrict a = space->gate_inputs;
  for (int64_t j = 0; j < s->states; j++) {
    const real *restrict w = space->weights + j * x.stride;
    real *restrict state = space->state + j * x.stride, *restrict kept = before + j * x.stride;
    real *restrict kept_delta = deltas + j * x.stride;
    EACH_LANE(p, x.stride) {
      real v = state[p], delta = gate_at(w, row, p, FEEDBACK == WITHOUT ? u[p] : v, a[p]);
      kept[p] = v, kept_delta[p] = delta;
      state[p] = next(w, row, p, v, u[p], delta, m[p]);
    }
  }
}

/* One step from `before`, with its sums Σ C x' and Σ w_γ x'. `space->state` gets x'. The gate before
 * the mask is taken from `deltas`, or computed if that is NULL. */
INLINE void read_out(const sizes *s, block x, space *space, const real *before,
                     const real *deltas) {
  const int64_t row = s->states * x.stride;
  const real *restrict u = space->inputs, *restrict m = space->mask;
  const real *restrict a = space->gate_inputs;
  real *restrict y = space->outputs, *restrict z = space->gates;
  for (int64_t j = 0; j < s->states; j++) {
    const real *restrict w = space->weights + j * x.stride, *from = before + j * x.stride;
    const real *restrict kept_delta = deltas ? deltas + j * x.stride : NULL;
    real *state = space->state + j * x.stride;
    EACH_LANE(p, x.stride) {
      real by = FEEDBACK == WITHOUT ? u[p] : from[p];
      real delta = deltas ? kept_delta[p] : gate_at(w, row, p, by, a[p]);
      real v = next(w, row, p, from[p], u[p], delta, m[p]);
      state[p] = v;
      y[p] = (j ? y[p] : 0) + w[READOUT * row + p] * v;
      if (HAS_OUTPUT_GATE) z[p] = (j ? z[p] : 0) + w[OUTPUT_GATE * row + p] * v;
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
    if (is_new(s, k)) load_weights(s, x, weights, &w);
    load_state(s, x, initial_state, w.state);
    for (int64_t t = 0; t < s->length; t++) {
      load_step(s, x, t, sequences, &w);
      if (HAS_RESET) restart(s, x, t, sequences[RESET], w.state);
      if (s->keep && t % s->keep == 0)
        store_state(s, x, w.state, kept + place_of_chunk(s, t / s->keep));
      read_out(s, x, &w, w.state, NULL);
      if (HAS_OUTPUT_GATE) {
        EACH_LANE(p, x.stride) w.outputs[p] *= sigmoid(w.gates[p]);
      }
      scatter(s, x, t, w.outputs, outputs);
    }
    store_state(s, x, w.state, final_state);
  }
  free(w.base);
  restore_mode(mode);
  return 0;
}

/* From the gradient of the outputs of a step those of its two sums, `grads` and `grad_gates`. */
INLINE void split_grads(const sizes *s, block x, space *w, const real *before, const real *deltas) {
  read_out(s, x, w, before, deltas);
  real *restrict g = w->grads, *restrict h = w->grad_gates;
  EACH_LANE(p, x.stride) {
    real gate = sigmoid(w->gates[p]);
    h[p] = g[p] * w->outputs[p] * gate * (1 - gate);
    g[p] *= gate;
  }
}

/* One step back: adjoint, sums of the weights' gradients, and the gradients of the inputs. */
INLINE void retreat(const sizes *s, block x, space *space, const real *states) {
  const real *deltas = space->deltas + (states - space->states);
  if (HAS_OUTPUT_GATE) split_grads(s, x, space, states, deltas);
  const int64_t row = s->states * x.stride;
  const real *restrict u = space->inputs, *restrict m = space->mask;
  const real *restrict g = space->grads, *restrict h = space->grad_gates;
  real *restrict grad_inputs = space->outputs, *restrict grad_a = space->grad_gate_inputs;
  for (int64_t j = 0; j < s->states; j++) {
    const real *restrict w = space->weights + j * x.stride, *restrict before = states + j * x.stride;
    const real *restrict kept_delta = deltas + j * x.stride;
    real *restrict sums = space->sums + j * x.stride;
    real *restrict adjoint = space->adjoint + j * x.stride;
    EACH_LANE(p, x.stride) {
      real v = before[p], source = u[p], by = FEEDBACK == WITHOUT ? source : v;
      real transition = w[TRANSITION * row + p], gate = w[GATE * row + p];
      real drive = HAS_INPUT_MATRIX ? w[INPUT_MATRIX * row + p] * source : source;
      real delta = kept_delta[p], slope = slope_of(delta);
      if (HAS_MASK) delta *= m[p], slope *= m[p];
      real change = transition * v + drive, after = v + delta * change;
      real l = adjoint[p] + g[p] * w[READOUT * row + p];
      if (HAS_OUTPUT_GATE) l += h[p] * w[OUTPUT_GATE * row + p];
      real by_change = l * delta, by_argument = l * slope * change;
      sums[TRANSITION * row + p] += by_change * v;
      sums[GATE * row + p] += by_argument * by;
      if (HAS_GATE_BIAS) sums[GATE_BIAS * row + p] += by_argument;
      if (HAS_GATE_INPUTS) grad_a[p] = (j ? grad_a[p] : 0) + by_argument;
      sums[READOUT * row + p] += g[p] * after;
      if (HAS_OUTPUT_GATE) sums[OUTPUT_GATE * row + p] += h[p] * after;
      real by_source = by_change;
      if (HAS_INPUT_MATRIX) {
        sums[INPUT_MATRIX * row + p] += by_change * source;
        by_source *= w[INPUT_MATRIX * row + p];
      }
      real by_gate_input = by_argument * gate * (1 / GATE_SCALE);
      l += by_change * transition;
      if (FEEDBACK == WITHOUT)
        by_source += by_gate_input;
      else
        l += by_gate_input;
      adjoint[p] = l;
      grad_inputs[p] = (j ? grad_inputs[p] : 0) + by_source;
    }
  }
}

/* The states before each step of a chunk, of which the first is there, and the gates. */
static void compute_again(const sizes *s, block x, int64_t start, int64_t stop,
                          real *const *sequences, space *w) {
  const int64_t row = s->states * x.stride;
  memcpy(w->state, w->states, row * sizeof(real));
  for (int64_t t = start; t < stop; t++) {
    if (HAS_RESET && t > start) restart(s, x, t, sequences[RESET], w->state);
    look_at(w, t - start, x.stride);
    load_step(s, x, t, sequences, w);
    advance(s, x, w, w->states + (t - start) * row);
  }
}

int scan_backward(const sizes *s, real *const *arrays) {
  const real *grad_outputs = arrays[0], *grad_final = arrays[1], *kept = arrays[2];
  real *const *sequences = arrays + 3, *const *weights = sequences + SEQUENCES;
  real *const *grad_sequences = weights + WEIGHTS;
  real *const *grad_weights = grad_sequences + SEQUENCES, *grad_initial = grad_weights[WEIGHTS];
  real *grad_inputs = grad_sequences[INPUTS];
  space w = allocate(s, least(s->keep, s->length));
  if (!w.base) return 1;
  prefer_large_pages_for(s, grad_inputs, NULL);
  if (HAS_GATE_INPUTS) prefer_large_pages_for(s, grad_sequences[GATE_INPUTS], NULL);
  unsigned mode = flush_subnormal();
  for (int64_t k = s->first, from = k; k < s->last; k++) {
    block x = block_of(s, k);
    const int64_t row = s->states * x.stride;
    if (is_new(s, k)) load_weights(s, x, weights, &w);
    if (begins_sums(s, k)) from = k, memset(w.sums, 0, ROWS * row * sizeof(real));
    load_state(s, x, grad_final, w.adjoint);
    for (int64_t c = chunks(s) - 1; c >= 0; c--) {
      const int64_t start = c * s->keep, stop = least(start + s->keep, s->length);
      load_state(s, x, kept + place_of_chunk(s, c), w.states);
      compute_again(s, x, start, stop, sequences, &w);
      for (int64_t t = stop - 1; t >= start; t--) {
        prefetch_step(s, x, t - s->keep, sequences[INPUTS]);
        prefetch_step(s, x, t - STEPS_AHEAD, grad_outputs);
        if (HAS_GATE_INPUTS) prefetch_step(s, x, t - s->keep, sequences[GATE_INPUTS]);
        look_at(&w, t - start, x.stride);
        gather(s, x, t, grad_outputs, w.grads);
        retreat(s, x, &w, w.states + (t - start) * row);
        if (HAS_RESET) restart(s, x, t, sequences[RESET], w.adjoint);
        scatter(s, x, t, w.outputs, grad_inputs);
        if (HAS_GATE_INPUTS) scatter(s, x, t, w.grad_gate_inputs, grad_sequences[GATE_INPUTS]);
      }
    }
    store_state(s, x, w.adjoint, grad_initial);
    if (k + 1 < s->last && !begins_sums(s, k + 1)) continue;
    for (int64_t i = 0; i < WEIGHTS; i++)
      if (weights[i]) sum_weight(s, x, from, s->states, w.sums + i * row, grad_weights[i]);
  }
  free(w.base);
  restore_mode(mode);
  return 0;
}
