/* selective.c for XLA. */
#include "selective.c"
#include "xla.h"

static int run_forward(const sizes *s, void *const *a) {
  return selective_forward(s, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]);
}

static int run_backward(const sizes *s, void *const *a) {
  return selective_backward(s, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10],
                            a[11], a[12], a[13]);
}

XLA_FFI_Error *forward_call(XLA_FFI_CallFrame *frame) { return call(frame, run_forward); }

XLA_FFI_Error *backward_call(XLA_FFI_CallFrame *frame) { return call(frame, run_backward); }
