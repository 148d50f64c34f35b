/* Kernels as custom calls of XLA, by its C interface: `forward_call` and `backward_call`. common.h
 * includes it.
 *
 * XLA has no buffers that are absent: the attribute `places` says where each of its buffers,
 * arguments and then results, stands among the arrays of the kernel. The attribute `sizes` has what
 * follows `first` and `last` in the structure of that name. */
#include "xla/ffi/api/c_api.h"

#ifndef _WIN32
#include <pthread.h>
#endif

enum { MOST_ARRAYS = 32, MOST_THREADS = 64 };

/* Work worth a second thread: some hundred microseconds of it. */
enum { STATES_PER_THREAD = 1 << 18 };

typedef int kernel(const sizes *, real *const *arrays);

typedef struct {
  sizes s;
  kernel *run;
  real *const *arrays;
  int failed;
} part;

static void *run_part(void *data) {
  part *p = data;
  p->failed = p->run(&p->s, p->arrays);
  return NULL;
}

static int64_t threads_of(XLA_FFI_CallFrame *frame) {
  int64_t count = 1;
  XLA_FFI_ThreadPool_NumThreads_Args args = {0};
  args.struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE;
  args.ctx = frame->ctx;
  args.num_threads = &count;
  XLA_FFI_Error *error = frame->api->XLA_FFI_ThreadPool_NumThreads(&args);
  if (!error) return count;
  XLA_FFI_Error_Destroy_Args destroy = {0};
  destroy.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
  destroy.error = error;
  frame->api->XLA_FFI_Error_Destroy(&destroy);
  return 1;
}

/* All blocks, on as many threads as XLA has. They are threads of this call, because tasks that wait
 * for others of the same pool can wait forever. */
static int run_threads(part whole, int64_t threads) {
  part parts[MOST_THREADS];
  const int64_t count = whole.s.last;
  for (int64_t k = 0; k < threads; k++) {
    parts[k] = whole;
    parts[k].s.first = count * k / threads;
    parts[k].s.last = count * (k + 1) / threads;
  }
#ifndef _WIN32
  pthread_t handles[MOST_THREADS];
  int started[MOST_THREADS];
  for (int64_t k = 1; k < threads; k++)
    started[k] = !pthread_create(&handles[k], NULL, run_part, &parts[k]);
#endif
  run_part(&parts[0]);
  int failed = parts[0].failed;
  for (int64_t k = 1; k < threads; k++) {
#ifndef _WIN32
    if (started[k])
      pthread_join(handles[k], NULL);
    else
#endif
      run_part(&parts[k]);
    failed |= parts[k].failed;
  }
  return failed;
}

static XLA_FFI_Error *call(XLA_FFI_CallFrame *frame, kernel *run) {
  XLA_FFI_Extension_Base *extension = frame->extension_start;
  if (extension && extension->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)extension)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    return NULL;
  }
  /* Attributes are sorted by name. */
  const int64_t *places = ((XLA_FFI_Array *)frame->attrs.attrs[0])->data;
  const int64_t *given = ((XLA_FFI_Array *)frame->attrs.attrs[1])->data;
  real *arrays[MOST_ARRAYS] = {NULL};
  for (int64_t k = 0; k < frame->args.size; k++)
    arrays[*places++] = ((XLA_FFI_Buffer *)frame->args.args[k])->data;
  for (int64_t k = 0; k < frame->rets.size; k++)
    arrays[*places++] = ((XLA_FFI_Buffer *)frame->rets.rets[k])->data;

  part whole = {.run = run, .arrays = arrays};
  memcpy(&whole.s.sequences, given, sizeof(sizes) - 2 * sizeof(int64_t));
  const sizes *s = &whole.s;
  const int64_t rows = (s->batch + s->sequences - 1) / s->sequences;
  whole.s.last = rows * columns(s);
  int64_t threads = s->batch * s->length * s->dim * s->states / STATES_PER_THREAD;
  threads = least(least(threads, whole.s.last), least(threads_of(frame), MOST_THREADS));
  if (!run_threads(whole, threads < 1 ? 1 : threads)) return NULL;

  XLA_FFI_Error_Create_Args args = {0};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = "keras_coffee: no memory for a block of states";
  args.errc = XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
  return frame->api->XLA_FFI_Error_Create(&args);
}

XLA_FFI_Error *forward_call(XLA_FFI_CallFrame *frame) { return call(frame, scan_forward); }

XLA_FFI_Error *backward_call(XLA_FFI_CallFrame *frame) { return call(frame, scan_backward); }
