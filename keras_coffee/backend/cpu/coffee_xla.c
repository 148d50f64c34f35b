/* coffee.c for XLA. */
#include "coffee.c"
#include "xla.h"

/* The mask, where there is one, comes after the weights. */
static int run_forward(const sizes *s, void *const *a) {
  return coffee_forward(s, a[0], a[2], a[1], a[2 + HAS_MASK], a[3 + HAS_MASK], a[4 + HAS_MASK],
                        a[5 + HAS_MASK]);
}

static int run_backward(const sizes *s, void *const *a) {
  return coffee_backward(s, a[0], a[1], a[2], a[3], a[5], a[4], a[5 + HAS_MASK], a[6 + HAS_MASK],
                         a[7 + HAS_MASK]);
}

XLA_FFI_Error *forward_call(XLA_FFI_CallFrame *frame) { return call(frame, run_forward); }

XLA_FFI_Error *backward_call(XLA_FFI_CallFrame *frame) { return call(frame, run_backward); }
