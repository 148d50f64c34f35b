/* The limit of one core: the COFFEE recurrence, forward and backward, in float32.
 *
 *     g(k) = sigmoid(w * x(k-1)),  x(k) = x(k-1) + g(k) (a x(k-1) + u(k)),  y(k) = sum_n c x(k)
 *
 * Inputs and outputs are (B, T, D), weights (D, n), states (B, D, n), all contiguous.
 *
 * A step needs the one before, so what fills the vector units is everything else: channels, and
 * several sequences at a time. Sequences are taken in groups; the (sequence, feature) pairs of a
 * group are the lanes of every vector operation, and the n states of a lane lie one row apart.
 * So y sums over rows and u serves all rows, neither with a shuffle, and n = 1 is as wide as n = 8.
 * Rows are padded with lanes whose weights are zero, to whole vectors.
 *
 * c_reference.py compiles it: the flags matter, and so does that it is not linked with -ffast-math,
 * which would change the rounding of denormals in the whole process.
 */
#include <stdlib.h>
#include <string.h>

#define VECTOR 16 /* floats in the widest register, 64 bytes */
#define GROUP 256 /* states at a time: enough to hide latency, few enough for the L1 cache */
/* Lanes at a time. Inputs of different sequences may all fall on the same few lines of the cache,
 * when T D floats are about a multiple of a page; with 256 lanes, (32, 784, 32, 1) took twice as
 * long. */
#define LANES 128
/* Processors foresee reads that ascend. Backward, a trajectory is read step by step from its end,
 * which without a hint took three times as long at (1, 65536, 16, 8). States and steps ahead: */
#define AHEAD 512
#define STEPS_AHEAD 4
#define LOG2_E 1.44269504088896341f

typedef long long size;

/* 2^t to about 1e-7: 2^(t - round(t)) by its minimax polynomial, times a power of two by adding to
 * the exponent. Clamped where a sigmoid of it is 0 or 1 to 20 digits, before denormals begin, which
 * are slow. */
static inline float exp2_of(float t) {
    t = t > 64.0f ? 64.0f : t;
    t = t < -64.0f ? -64.0f : t;
    float whole = __builtin_rintf(t), rest = t - whole;
    float power = 1.535336188e-4f;
    power = power * rest + 1.339887440e-3f;
    power = power * rest + 9.618437357e-3f;
    power = power * rest + 5.550332471e-2f;
    power = power * rest + 2.402264791e-1f;
    power = power * rest + 6.931472029e-1f;
    power = power * rest + 1.0f;
    int bits;
    memcpy(&bits, &power, sizeof bits);
    bits += (int)whole << 23;
    memcpy(&power, &bits, sizeof bits);
    return power;
}

/* The sigmoid of z, given -z log2(e): that factor is multiplied into the gate once. Relative error
 * 2e-7 for |z| up to 1, 1e-6 up to 20, which is what rounding z in float32 does by itself. */
static inline float sigmoid_of(float t) { return 1.0f / (1.0f + exp2_of(t)); }

/* A group of sequences: how many, from which on, and how they lie in memory. */
typedef struct {
    size sequences, lanes, states;
} group;

static group group_of(size sequences, size D, size n) {
    size lanes = (sequences * D + VECTOR - 1) / VECTOR * VECTOR;
    return (group){sequences, lanes, lanes * n};
}

static size sequences_at_a_time(size B, size D, size n) {
    size sequences = GROUP / (D * n) < LANES / D ? GROUP / (D * n) : LANES / D;
    return sequences < 1 ? 1 : sequences > B ? B : sequences;
}

static float *zeros(size count) {
    size bytes = (count * (size)sizeof(float) + 63) / 64 * 64;
    float *array = aligned_alloc(64, bytes);
    memset(array, 0, bytes);
    return array;
}

/* rows[j][s, d] = factor * weight[d, j], the same for every sequence s. */
static void spread_weight(float *rows, const float *weight, float factor, group g, size D, size n) {
    for (size s = 0; s < g.sequences; s++)
        for (size d = 0; d < D; d++)
            for (size j = 0; j < n; j++)
                rows[j * g.lanes + s * D + d] = factor * weight[d * n + j];
}

/* weight[d, j] += the sum over sequences of rows[j][s, d]. */
static void add_weight(float *weight, const float *rows, group g, size D, size n) {
    for (size d = 0; d < D; d++)
        for (size j = 0; j < n; j++) {
            double sum = 0;
            for (size s = 0; s < g.sequences; s++) sum += rows[j * g.lanes + s * D + d];
            weight[d * n + j] += (float)sum;
        }
}

/* Between states (s, d, j) and rows[j][s, d]. */
static void to_rows(float *rows, const float *states, group g, size D, size n) {
    for (size lane = 0; lane < g.sequences * D; lane++)
        for (size j = 0; j < n; j++) rows[j * g.lanes + lane] = states[lane * n + j];
}

static void from_rows(float *states, const float *rows, group g, size D, size n) {
    for (size lane = 0; lane < g.sequences * D; lane++)
        for (size j = 0; j < n; j++) states[lane * n + j] = rows[j * g.lanes + lane];
}

/* A step's values of all sequences of a group, (s, d), out of (s, T, d) and back. */
static inline void gather(float *restrict lanes, const float *restrict values, group g, size T,
                          size D) {
    for (size s = 0; s < g.sequences; s++)
        for (size d = 0; d < D; d++) lanes[s * D + d] = values[s * T * D + d];
}

static inline void scatter(float *restrict values, const float *restrict lanes, group g, size T,
                           size D) {
    for (size s = 0; s < g.sequences; s++)
        for (size d = 0; d < D; d++) values[s * T * D + d] = lanes[s * D + d];
}

/* Asks for a step's values of all sequences, before they are needed. */
static inline void hint(const float *values, group g, size T, size D) {
    for (size s = 0; s < g.sequences; s++)
        for (size d = 0; d < D; d += VECTOR) __builtin_prefetch(values + s * T * D + d);
}

/* How many floats a trajectory takes: the states before every step, in rows, group after group. */
size coffee_trajectory_size(size B, size T, size D, size n) {
    size step = sequences_at_a_time(B, D, n), total = 0;
    for (size b = 0; b < B; b += step)
        total += T * group_of(b + step > B ? B - b : step, D, n).states;
    return total;
}

static inline void step_forward(float *restrict x, float *restrict y, const float *restrict u,
                                const float *restrict a, const float *restrict w,
                                const float *restrict c, float *restrict kept, group g, size n) {
    for (size j = 0; j < n; j++) {
        size row = j * g.lanes;
#pragma omp simd aligned(x, y, u, a, w, c, kept : 64)
        for (size k = 0; k < g.lanes; k++) {
            float before = x[row + k];
            if (kept) kept[row + k] = before;
            float gate = sigmoid_of(w[row + k] * before);
            float after = before + gate * (a[row + k] * before + u[k]);
            x[row + k] = after;
            y[k] = (j ? y[k] : 0.0f) + c[row + k] * after;
        }
    }
}

/* Outputs and final state. `trajectory`, if it is not NULL, receives what the gradients need. */
void coffee_forward(const float *inputs, const float *transition, const float *gate,
                    const float *readout, const float *initial_state, float *trajectory,
                    float *outputs, float *final_state, size B, size T, size D, size n) {
    size step = sequences_at_a_time(B, D, n);
    group g = group_of(step, D, n);
    float *a = zeros(g.states), *w = zeros(g.states), *c = zeros(g.states), *x = zeros(g.states);
    float *u = zeros(g.lanes), *y = zeros(g.lanes);
    for (size b = 0; b < B; b += step) {
        if (b == 0 || b + step > B) {
            g = group_of(b + step > B ? B - b : step, D, n);
            memset(a, 0, g.states * sizeof *a), memset(w, 0, g.states * sizeof *w);
            memset(c, 0, g.states * sizeof *c), memset(x, 0, g.states * sizeof *x);
            memset(u, 0, g.lanes * sizeof *u);
            spread_weight(a, transition, 1.0f, g, D, n);
            spread_weight(w, gate, -LOG2_E, g, D, n);
            spread_weight(c, readout, 1.0f, g, D, n);
        }
        to_rows(x, initial_state + b * D * n, g, D, n);
        for (size t = 0; t < T; t++) {
            size at = (b * T + t) * D;
            gather(u, inputs + at, g, T, D);
            if (trajectory) {
                step_forward(x, y, u, a, w, c, trajectory, g, n);
                trajectory += g.states;
            } else
                step_forward(x, y, u, a, w, c, NULL, g, n);
            scatter(outputs + at, y, g, T, D);
        }
        from_rows(final_state + b * D * n, x, g, D, n);
    }
    free(a), free(w), free(c), free(x), free(u), free(y);
}

/* The gradients of a step from those of its outputs, h, and of its state, l. */
static inline void step_backward(float *restrict l, float *restrict du, float *restrict da,
                                 float *restrict dw, float *restrict dc, const float *restrict u,
                                 const float *restrict h, const float *restrict kept,
                                 const float *restrict a, const float *restrict w,
                                 const float *restrict c, group g, size n) {
    for (size j = 0; j < n; j++) {
        size row = j * g.lanes;
#pragma omp simd aligned(l, du, da, dw, dc, u, h, kept, a, w, c : 64)
        for (size k = 0; k < g.lanes; k++) {
            float before = kept[row + k], scaled_gate = w[row + k], decay = a[row + k];
            float gate = sigmoid_of(scaled_gate * before);
            float change = decay * before + u[k];
            float adjoint = l[row + k] + h[k] * c[row + k];
            float by_change = adjoint * gate;
            float by_argument = by_change * (1.0f - gate) * change;
            dc[row + k] += h[k] * (before + gate * change);
            da[row + k] += by_change * before;
            dw[row + k] += by_argument * before;
            l[row + k] = adjoint + by_change * decay - by_argument * scaled_gate * (1 / LOG2_E);
            du[k] = (j ? du[k] : 0.0f) + by_change;
        }
    }
}

/* Gradients by the inputs, the three weights and the initial state, from those of the outputs and
 * of the final state, and the trajectory that `coffee_forward` kept. */
void coffee_backward(const float *inputs, const float *transition, const float *gate,
                     const float *readout, const float *trajectory, const float *by_outputs,
                     const float *by_final_state, float *by_inputs, float *by_transition,
                     float *by_gate, float *by_readout, float *by_initial_state, size B, size T,
                     size D, size n) {
    size step = sequences_at_a_time(B, D, n);
    group g = group_of(step, D, n);
    float *a = zeros(g.states), *w = zeros(g.states), *c = zeros(g.states), *l = zeros(g.states);
    float *da = zeros(g.states), *dw = zeros(g.states), *dc = zeros(g.states);
    float *u = zeros(g.lanes), *h = zeros(g.lanes), *du = zeros(g.lanes);
    float *weights[] = {by_transition, by_gate, by_readout}, *sums[] = {da, dw, dc};
    for (int i = 0; i < 3; i++) memset(weights[i], 0, D * n * sizeof(float));
    for (size b = 0; b < B; b += step) {
        if (b == 0 || b + step > B) {
            g = group_of(b + step > B ? B - b : step, D, n);
            memset(a, 0, g.states * sizeof *a), memset(w, 0, g.states * sizeof *w);
            memset(c, 0, g.states * sizeof *c), memset(l, 0, g.states * sizeof *l);
            memset(u, 0, g.lanes * sizeof *u), memset(h, 0, g.lanes * sizeof *h);
            spread_weight(a, transition, 1.0f, g, D, n);
            spread_weight(w, gate, -LOG2_E, g, D, n);
            spread_weight(c, readout, 1.0f, g, D, n);
        }
        for (int i = 0; i < 3; i++) memset(sums[i], 0, g.states * sizeof(float));
        to_rows(l, by_final_state + b * D * n, g, D, n);
        for (size t = T - 1; t >= 0; t--) {
            size at = (b * T + t) * D, next = at - STEPS_AHEAD * D;
            hint(inputs + next, g, T, D);
            hint(by_outputs + next, g, T, D);
            hint(by_inputs + next, g, T, D);
            gather(u, inputs + at, g, T, D);
            gather(h, by_outputs + at, g, T, D);
            const float *kept = trajectory + t * g.states;
            for (size k = 0; k < g.states; k += VECTOR) __builtin_prefetch(kept + k - AHEAD);
            step_backward(l, du, da, dw, dc, u, h, kept, a, w, c, g, n);
            scatter(by_inputs + at, du, g, T, D);
        }
        trajectory += T * g.states;
        from_rows(by_initial_state + b * D * n, l, g, D, n);
        for (int i = 0; i < 3; i++) add_weight(weights[i], sums[i], g, D, n);
    }
    free(a), free(w), free(c), free(l), free(da), free(dw), free(dc), free(u), free(h), free(du);
}
