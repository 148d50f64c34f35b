/* Kernels as custom calls of XLA, by its C interface: `forward_call` and `backward_call`. common.h
 * includes it.
 *
 * XLA has no buffers that are absent: the attribute `places` says where each of its buffers,
 * arguments and then results, stands among the arrays of the kernel. The attribute `sizes` has what
 * follows `first` and `last` in the structure of that name. */
#include "xla/ffi/api/c_api.h"

#include "threads.h"

/* As many threads as XLA has. */
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

  sizes s = {0};
  memcpy(&s.sequences, given, sizeof(sizes) - 2 * sizeof(int64_t));
  if (!run_blocks(s, run, arrays, threads_of(frame))) return NULL;

  XLA_FFI_Error_Create_Args args = {0};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = "keras_coffee: no memory for a block of states";
  args.errc = XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
  return frame->api->XLA_FFI_Error_Create(&args);
}

XLA_FFI_Error *forward_call(XLA_FFI_CallFrame *frame) { return call(frame, scan_forward); }

XLA_FFI_Error *backward_call(XLA_FFI_CallFrame *frame) { return call(frame, scan_backward); }
