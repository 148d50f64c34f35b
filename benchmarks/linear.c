/* The limit of one core: the linear recurrence h(k) = a(k) h(k-1) + b(k), forward and backward, in
 * float32, as the plain loop that one would write.
 *
 * a, b and h are (B, T, W), the initial state (B, W), all contiguous. Memory limits it: the inner
 * loops are vectors of features, and everything is read and written once. c_reference.py compiles it.
 */
#include <string.h>

typedef long long size;

void linear_forward(const float *restrict decay, const float *restrict inputs,
                    const float *restrict initial_state, float *states, size B, size T, size W) {
    for (size s = 0; s < B; s++) {
        const float *before = initial_state + s * W;
        for (size t = 0; t < T; t++) {
            const size row = (s * T + t) * W;
            float *after = states + row;
#pragma omp simd
            for (size w = 0; w < W; w++) after[w] = decay[row + w] * before[w] + inputs[row + w];
            before = after;
        }
    }
}

void linear_backward(const float *restrict decay, const float *restrict states,
                     const float *restrict initial_state, const float *restrict grads,
                     float *restrict grad_decay, float *restrict grad_inputs,
                     float *restrict grad_state, size B, size T, size W) {
    memset(grad_state, 0, B * W * sizeof(float));
    for (size s = 0; s < B; s++) {
        float *adjoint = grad_state + s * W;
        for (size t = T - 1; t >= 0; t--) {
            const size row = (s * T + t) * W;
            const float *before = t ? states + row - W : initial_state + s * W;
#pragma omp simd
            for (size w = 0; w < W; w++) {
                const float sum = grads[row + w] + adjoint[w];
                grad_inputs[row + w] = sum;
                grad_decay[row + w] = sum * before[w];
                adjoint[w] = sum * decay[row + w];
            }
        }
    }
}
