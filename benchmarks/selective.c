/* The limit of one core: the selective recurrence, forward and backward, in float32.
 *
 *     x(k) = e^z x(k-1) + Δ(k) φ B(k) u(k),  z = λ Δ(k),  y(k) = C(k) x(k) + s u(k)
 *
 * with φ = 1 (Mamba) or φ = (e^z - 1) / z (the zero-order hold, S6). The initial state is zero.
 *
 * Inputs u, Δ and outputs are (B, T, D), B and C (B, T, n), λ (D, n), s (D), states (B, D, n), all
 * contiguous.
 *
 * The plain loop over steps, states and features. Features are the lanes of every vector operation,
 * and the n states of a feature lie one row apart: B and C are one number for a whole row. Features
 * are taken in blocks, so that what a step needs stays in the L1 cache, and rows are padded with
 * lanes of zeros, to whole vectors. c_reference.py compiles it, with the flags that coffee.c needs.
 */
#include <stdlib.h>
#include <string.h>

#define VECTOR 16   /* floats in the widest register, 64 bytes */
#define STATES 1024 /* at a time: backward, five arrays of so many are in use */
#define STEPS_AHEAD 4 /* hints for reads from the end, which processors do not foresee */

typedef long long size;

/* e^z, φ(z) and φ'(z), to 2e-7. z = k ln(2) + f, where ln(2) has two parts, by multiplications that
 * the compiler may not merge; e^f = 1 + f + f² r with the minimax polynomial r. For k = 0, where
 * e^z - 1 would cancel, φ = 1 + f r; and φ' is (e^z - φ) / z. Clamped to normal numbers. */
static inline void discretize(float z, int hold, float *decay, float *ratio, float *slope) {
    z = z > 88.0f ? 88.0f : z;
    z = z < -87.0f ? -87.0f : z;
    float k = __builtin_rintf(z * 1.44269504f);
    float f = __builtin_fmaf(k, 2.12194440e-4f, __builtin_fmaf(k, -0.693359375f, z));
    float r = 1.395038799e-3f;
    r = r * f + 8.368850336e-3f;
    r = r * f + 4.166620813e-2f;
    r = r * f + 1.666651933e-1f;
    r = r * f + 5.000000094e-1f;
    float near = f * r + 1.0f, power = f * near + 1.0f;
    int bits;
    memcpy(&bits, &power, sizeof bits);
    bits += (int)k << 23;
    memcpy(&power, &bits, sizeof power);
    *decay = power, *ratio = 1.0f, *slope = 0.0f;
    if (!hold) return;
    float inverse = 1.0f / (k == 0.0f ? 1.0f : z), far = (power - 1.0f) * inverse;
    *ratio = k == 0.0f ? near : far;
    *slope = k == 0.0f ? near - r : (power - far) * inverse;
}

static float *zeros(size count) {
    size bytes = (count * (size)sizeof(float) + 63) / 64 * 64;
    float *array = aligned_alloc(64, bytes);
    memset(array, 0, bytes);
    return array;
}

static size padded(size features) { return (features + VECTOR - 1) / VECTOR * VECTOR; }

static size features_at_a_time(size D, size n) {
    size most = STATES / n / VECTOR * VECTOR;
    most = most < VECTOR ? VECTOR : most;
    return most < D ? most : D;
}

/* Between (features, n) and rows (n, lanes). */
static void to_rows(float *rows, const float *values, size features, size lanes, size n) {
    for (size d = 0; d < features; d++)
        for (size j = 0; j < n; j++) rows[j * lanes + d] = values[d * n + j];
}

static void from_rows(float *values, const float *rows, size features, size lanes, size n) {
    for (size d = 0; d < features; d++)
        for (size j = 0; j < n; j++) values[d * n + j] = rows[j * lanes + d];
}

/* The states before every step, in rows, block after block. */
size selective_trajectory_size(size B, size T, size D, size n) {
    size step = features_at_a_time(D, n);
    return B * T * n * (D / step * padded(step) + padded(D % step));
}

static inline void step_forward(float *restrict x, float *restrict y, const float *restrict u,
                                const float *restrict delta, const float *restrict a,
                                const float *restrict skip, const float *restrict entry,
                                const float *restrict exit, float *restrict kept, int hold,
                                size lanes, size n) {
    for (size k = 0; k < lanes; k++) y[k] = skip[k] * u[k];
    for (size j = 0; j < n; j++) {
        size row = j * lanes;
        float b = entry[j], c = exit[j];
#pragma omp simd aligned(x, y, u, delta, a, kept : 64)
        for (size k = 0; k < lanes; k++) {
            float decay, ratio, slope, before = x[row + k];
            if (kept) kept[row + k] = before;
            discretize(a[row + k] * delta[k], hold, &decay, &ratio, &slope);
            float after = decay * before + delta[k] * u[k] * ratio * b;
            x[row + k] = after;
            y[k] += c * after;
        }
    }
}

static inline void forward(const float *inputs, const float *delta, const float *transition,
                           const float *input_matrix, const float *output_matrix,
                           const float *skip, float *trajectory, float *outputs,
                           float *final_state, size B, size T, size D, size n, int hold) {
    size step = features_at_a_time(D, n), most = padded(step);
    float *a = zeros(n * most), *x = zeros(n * most), *y = zeros(most);
    float *u = zeros(most), *dt = zeros(most), *s = zeros(most);
    for (size first = 0; first < D; first += step) {
        size features = first + step > D ? D - first : step, lanes = padded(features);
        memset(a, 0, n * most * sizeof *a), memset(s, 0, most * sizeof *s);
        memset(u, 0, most * sizeof *u), memset(dt, 0, most * sizeof *dt);
        to_rows(a, transition + first * n, features, lanes, n);
        memcpy(s, skip + first, features * sizeof *s);
        for (size sequence = 0; sequence < B; sequence++) {
            memset(x, 0, n * most * sizeof *x);
            for (size t = 0; t < T; t++) {
                size at = sequence * T + t, here = at * D + first;
                memcpy(u, inputs + here, features * sizeof *u);
                memcpy(dt, delta + here, features * sizeof *dt);
                const float *b = input_matrix + at * n, *c = output_matrix + at * n;
                if (trajectory) {
                    step_forward(x, y, u, dt, a, s, b, c, trajectory, hold, lanes, n);
                    trajectory += n * lanes;
                } else
                    step_forward(x, y, u, dt, a, s, b, c, NULL, hold, lanes, n);
                memcpy(outputs + here, y, features * sizeof *y);
            }
            from_rows(final_state + (sequence * D + first) * n, x, features, lanes, n);
        }
    }
    free(a), free(x), free(y), free(u), free(dt), free(s);
}

/* The gradients of a step from those of its outputs, g, and of its state, l. */
static inline void step_backward(float *restrict l, float *restrict da, float *restrict du,
                                 float *restrict ddelta, float *restrict db, float *restrict dc,
                                 const float *restrict u, const float *restrict delta,
                                 const float *restrict g, const float *restrict kept,
                                 const float *restrict a, const float *restrict skip,
                                 const float *restrict entry, const float *restrict exit, int hold,
                                 size lanes, size n) {
    for (size k = 0; k < lanes; k++) du[k] = skip[k] * g[k], ddelta[k] = 0;
    for (size j = 0; j < n; j++) {
        size row = j * lanes;
        float b = entry[j], c = exit[j], by_entry = 0, by_exit = 0;
#pragma omp simd aligned(l, da, du, ddelta, u, delta, g, kept, a : 64) reduction(+ : by_entry, by_exit)
        for (size k = 0; k < lanes; k++) {
            float decay, ratio, slope, before = kept[row + k], rate = a[row + k], width = delta[k];
            discretize(rate * width, hold, &decay, &ratio, &slope);
            float adjoint = l[row + k] + g[k] * c, held = decay * before;
            float gain = width * ratio, drive = b * u[k], by_gain = adjoint * drive;
            by_exit += g[k] * (held + gain * drive);
            by_entry += adjoint * gain * u[k];
            du[k] += adjoint * gain * b;
            /* The derivative of Δ φ by Δ is e^z with the hold, and 1 without; by λ it is Δ² φ'. */
            ddelta[k] += adjoint * held * rate + by_gain * (hold ? decay : 1.0f);
            da[row + k] += width * (adjoint * held + by_gain * width * slope);
            l[row + k] = adjoint * decay;
        }
        db[j] += by_entry, dc[j] += by_exit;
    }
}

static inline void backward(const float *inputs, const float *delta, const float *transition,
                            const float *input_matrix, const float *output_matrix,
                            const float *skip, const float *trajectory, const float *by_outputs,
                            const float *by_final_state, float *by_inputs, float *by_delta,
                            float *by_transition, float *by_input_matrix, float *by_output_matrix,
                            float *by_skip, size B, size T, size D, size n, int hold) {
    size step = features_at_a_time(D, n), most = padded(step);
    float *a = zeros(n * most), *l = zeros(n * most), *da = zeros(n * most), *s = zeros(most);
    float *u = zeros(most), *dt = zeros(most), *g = zeros(most), *ds = zeros(most);
    float *du = zeros(most), *ddelta = zeros(most);
    memset(by_input_matrix, 0, B * T * n * sizeof(float));
    memset(by_output_matrix, 0, B * T * n * sizeof(float));
    for (size first = 0; first < D; first += step) {
        size features = first + step > D ? D - first : step, lanes = padded(features);
        memset(a, 0, n * most * sizeof *a), memset(da, 0, n * most * sizeof *da);
        memset(s, 0, most * sizeof *s), memset(ds, 0, most * sizeof *ds);
        memset(u, 0, most * sizeof *u), memset(dt, 0, most * sizeof *dt);
        memset(g, 0, most * sizeof *g);
        to_rows(a, transition + first * n, features, lanes, n);
        memcpy(s, skip + first, features * sizeof *s);
        for (size sequence = 0; sequence < B; sequence++) {
            memset(l, 0, n * most * sizeof *l);
            to_rows(l, by_final_state + (sequence * D + first) * n, features, lanes, n);
            for (size t = T - 1; t >= 0; t--) {
                size at = sequence * T + t, here = at * D + first;
                memcpy(u, inputs + here, features * sizeof *u);
                memcpy(dt, delta + here, features * sizeof *dt);
                memcpy(g, by_outputs + here, features * sizeof *g);
                const float *kept = trajectory + t * n * lanes;
                for (size k = 0; k < n * lanes; k += VECTOR)
                    __builtin_prefetch(kept + k - STEPS_AHEAD * n * lanes);
                step_backward(l, da, du, ddelta, by_input_matrix + at * n, by_output_matrix + at * n,
                              u, dt, g, kept, a, s, input_matrix + at * n, output_matrix + at * n,
                              hold, lanes, n);
                for (size k = 0; k < features; k++) ds[k] += g[k] * u[k];
                memcpy(by_inputs + here, du, features * sizeof *du);
                memcpy(by_delta + here, ddelta, features * sizeof *ddelta);
            }
            trajectory += T * n * lanes;
        }
        from_rows(by_transition + first * n, da, features, lanes, n);
        memcpy(by_skip + first, ds, features * sizeof *ds);
    }
    free(a), free(l), free(da), free(s), free(u), free(dt), free(g), free(ds), free(du), free(ddelta);
}

/* Outputs and final state. `trajectory`, if it is not NULL, receives what the gradients need. With
 * `hold` other than 0: the zero-order hold. */
void selective_forward(const float *inputs, const float *delta, const float *transition,
                       const float *input_matrix, const float *output_matrix, const float *skip,
                       float *trajectory, float *outputs, float *final_state, size B, size T,
                       size D, size n, size hold) {
#define FORWARD(hold) \
    forward(inputs, delta, transition, input_matrix, output_matrix, skip, trajectory, outputs, \
            final_state, B, T, D, n, hold)
    hold ? FORWARD(1) : FORWARD(0);
}

/* Gradients by the six tensors, from those of the outputs and of the final state, and the
 * trajectory that `selective_forward` kept. */
void selective_backward(const float *inputs, const float *delta, const float *transition,
                        const float *input_matrix, const float *output_matrix, const float *skip,
                        const float *trajectory, const float *by_outputs,
                        const float *by_final_state, float *by_inputs, float *by_delta,
                        float *by_transition, float *by_input_matrix, float *by_output_matrix,
                        float *by_skip, size B, size T, size D, size n, size hold) {
#define BACKWARD(hold) \
    backward(inputs, delta, transition, input_matrix, output_matrix, skip, trajectory, by_outputs, \
             by_final_state, by_inputs, by_delta, by_transition, by_input_matrix, \
             by_output_matrix, by_skip, B, T, D, n, hold)
    hold ? BACKWARD(1) : BACKWARD(0);
}
