/* Kernels as operations of TensorFlow, by its C interface, registered when the library is loaded:
 * KerasCoffee_forward_<KEY><HINT> and KerasCoffee_backward_<KEY><HINT>. common.h includes it.
 *
 * TensorFlow has no arrays that are absent, and may know shapes only when it runs. So FORWARD and
 * BACKWARD say what the arrays of the kernel are, a word for each in its order, `-` for none. An
 * argument is a name and its axes: sizes that are the same in all of them, 1, K for all that is kept,
 * or * for what is left, taken together as D. A result, after `>`, is the name of the argument that
 * it is like, or `kept`. A sum ends in /parts or /columns: what it has parts for.
 *
 *   inputs:BTD - transition:Dn state:BDn > inputs state kept
 *
 * The attribute `keep` says how many steps lie between states that are kept, -1 for about as many as
 * are kept; `threads` how many there may be. */
#include <stdio.h>

#include "threads.h"

/* TensorFlow's errors hold the names of operations that can't be where they are. */
#define HINT "_unless_KERAS_COFFEE_KERNELS_is_0"

#include "tensorflow/c/kernels.h"
/* ops.h says `struct X;` and then X, as in C++. */
typedef struct TF_DimensionHandle TF_DimensionHandle;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
#include "tensorflow/c/ops.h"

#if REAL_BITS == 32 && IS_COMPLEX
enum { TYPE = TF_COMPLEX64 };
#define TYPE_NAME "complex64"
#elif REAL_BITS == 32
enum { TYPE = TF_FLOAT };
#define TYPE_NAME "float"
#elif IS_COMPLEX
enum { TYPE = TF_COMPLEX128 };
#define TYPE_NAME "complex128"
#else
enum { TYPE = TF_DOUBLE };
#define TYPE_NAME "double"
#endif

enum { MOST_CHARACTERS = 40 };

typedef struct {
  int is_there;
  char name[MOST_CHARACTERS], axes[8]; /* of an argument */
  int like;                            /* of a result: the argument, or -1 for what is kept */
  char sum;                            /* of a result: 'p', 'c' or 0 */
} array;

typedef struct {
  kernel *run;
  int arguments, count; /* arguments come first */
  array arrays[MOST_ARRAYS];
} signature;

static signature forward = {scan_forward}, backward = {scan_backward};

static int argument_named(const signature *own, const char *name) {
  for (int k = 0; k < own->arguments; k++)
    if (own->arrays[k].is_there && !strcmp(own->arrays[k].name, name)) return k;
  return -1;
}

static void parse(const char *words, signature *own) {
  char word[MOST_CHARACTERS];
  int length, has_results = 0;
  for (; sscanf(words, " %39s%n", word, &length) == 1; words += length) {
    if (*word == '>') {
      own->arguments = own->count, has_results = 1;
      continue;
    }
    array *a = &own->arrays[own->count++];
    a->is_there = *word != '-';
    char *rest = strpbrk(word, ":/");
    const char separator = rest ? *rest : 0;
    if (rest) *rest++ = 0;
    strcpy(a->name, word);
    if (separator == ':') strcpy(a->axes, rest);
    if (separator == '/') a->sum = *rest;
    if (has_results) a->like = argument_named(own, a->name);
  }
}

/* What a call holds until its end. */
typedef struct {
  const signature *own;
  TF_OpKernelContext *context;
  TF_Status *status;
  int64_t size_of[128]; /* by the letter of the axis; -1 where it is not known yet */
  TF_Tensor *tensors[MOST_ARRAYS];
  real *parts[MOST_ARRAYS]; /* of sums */
  real *arrays[MOST_ARRAYS];
} call;

static int is_ok(const call *c) { return TF_GetCode(c->status) == TF_OK; }

static int fits(call *c, char axis, int64_t size) {
  int64_t *known = &c->size_of[(int)axis];
  if (*known < 0) *known = size;
  return *known == size;
}

static int has_axes(call *c, const char *axes, const TF_Tensor *x) {
  const int rank = TF_NumDims(x);
  int k = 0;
  for (; *axes && *axes != '*'; axes++, k++)
    if (k == rank || !fits(c, *axes, TF_Dim(x, k))) return 0;
  if (!*axes) return k == rank;
  int64_t rest = 1;
  for (; k < rank; k++) rest *= TF_Dim(x, k);
  return fits(c, 'D', rest);
}

static void refuse(call *c, const array *a, const TF_Tensor *x) {
  char message[400];
  int n = snprintf(message, sizeof message, "keras_coffee: %s has the shape (", a->name);
  for (int k = 0; k < TF_NumDims(x) && n < 200; k++)
    n += snprintf(message + n, 24, k ? ", %lld" : "%lld", (long long)TF_Dim(x, k));
  n += snprintf(message + n, 40, "), which does not fit %s, where", a->axes);
  static const char *const words[] = {"B sequences", "T steps", "D features", "n states"};
  for (int k = 0, count = 0; k < 4; k++) {
    const int64_t size = c->size_of[(int)*words[k]];
    if (size < 0) continue;
    n += snprintf(message + n, 40, "%s %c = %lld%s", count++ ? "," : "", *words[k], (long long)size,
                  words[k] + 1);
  }
  snprintf(message + n, 2, ".");
  TF_SetStatus(c->status, TF_INVALID_ARGUMENT, message);
}

static void read_arguments(call *c) {
  memset(c->size_of, -1, sizeof c->size_of);
  c->size_of['1'] = 1;
  for (int k = 0, i = 0; k < c->own->arguments; k++) {
    const array *a = &c->own->arrays[k];
    if (!a->is_there) continue;
    TF_GetInput(c->context, i++, &c->tensors[k], c->status);
    if (!is_ok(c)) return;
    if (!has_axes(c, a->axes, c->tensors[k])) return refuse(c, a, c->tensors[k]);
    c->arrays[k] = TF_TensorData(c->tensors[k]);
  }
}

/* Of one sequence about as many states are kept as lie between two of them. */
static int64_t root(int64_t length) {
  int64_t keep = 1;
  while ((keep + 1) * (keep + 1) <= length) keep++;
  return keep;
}

/* As blocks.py divides the work; a test compares them. */
static void set_blocks(sizes *s) {
  int64_t lanes = BLOCK_STATES / (s->states < 1 ? 1 : s->states);
  lanes = lanes < LEAST_LANES ? LEAST_LANES : least(lanes, MOST_LANES);
  const int64_t parts = (s->dim + MOST_LANES - 1) / MOST_LANES;
  s->features = parts > 1 ? whole_vectors((s->dim + parts - 1) / parts) : s->dim;
  if (s->features < 1) s->features = 1;
#ifdef DECAY_PER_SEQUENCE
  s->sequences = DECAY_PER_SEQUENCE ? 1 : (s->batch + MOST_PARTS - 1) / MOST_PARTS;
#else
  s->sequences = least(s->batch, lanes / s->features);
  if (HAS_ROWS && s->dim >= VECTOR && s->dim * s->states >= BLOCK_STATES / 2) s->sequences = 1;
#endif
  if (s->sequences < 1) s->sequences = 1;
#ifdef DECAY_PER_SEQUENCE
  s->together = 1;
#else
  s->together = (rows(s) + MOST_SUMS - 1) / MOST_SUMS;
#endif
  if (s->together < 1) s->together = 1;
}

static sizes sizes_of(const call *c, int64_t keep) {
  sizes s = {0};
  s.batch = c->size_of['B'], s.length = c->size_of['T'], s.dim = c->size_of['D'];
  if (s.length < 0) s.length = 1;
  s.states = c->size_of['n'] < 0 ? 1 : c->size_of['n'];
  s.keep = keep < 0 ? root(s.length) : keep;
  set_blocks(&s);
  return s;
}

/* Bytes of all that is kept. */
static int64_t bytes_kept(const sizes *s) {
  return chunks(s) * s->batch * s->dim * s->states * sizeof(real);
}

static int64_t parts_of(const array *a, const sizes *s) {
  return !a->sum ? 1 : a->sum == 'p' ? parts(s) : columns(s);
}

static int64_t bytes_of(const TF_Tensor *x) { return TF_TensorByteSize(x); }

static void make_results(call *c, const sizes *s) {
  for (int k = c->own->arguments, i = 0; k < c->own->count && is_ok(c); k++) {
    const array *a = &c->own->arrays[k];
    if (!a->is_there) continue;
    const TF_Tensor *like = a->like < 0 ? NULL : c->tensors[a->like];
    int64_t shape[64] = {bytes_kept(s)};
    const int rank = like ? TF_NumDims(like) : 1;
    for (int d = 0; like && d < rank; d++) shape[d] = TF_Dim(like, d);
    const int64_t bytes = like ? bytes_of(like) : shape[0];
    c->tensors[k] = TF_AllocateOutput(c->context, i++, like ? TYPE : TF_UINT8, shape, rank, bytes,
                                      c->status);
    if (!is_ok(c)) return;
    c->arrays[k] = TF_TensorData(c->tensors[k]);
    const int64_t count = parts_of(a, s);
    /* A kernel without steps or features writes no sums. */
    if (a->sum && (count != 1 || !s->length)) memset(c->arrays[k], 0, bytes);
    if (count < 2) continue;
    c->arrays[k] = c->parts[k] = malloc(count * bytes + 1);
    if (!c->parts[k])
      TF_SetStatus(c->status, TF_RESOURCE_EXHAUSTED, "keras_coffee: no memory for sums");
  }
}

static void add_parts(const call *c, const sizes *s) {
  for (int k = c->own->arguments; k < c->own->count; k++) {
    if (!c->parts[k]) continue;
    const int64_t count = bytes_of(c->tensors[k]) / sizeof(real);
    real *restrict total = TF_TensorData(c->tensors[k]);
    for (int64_t r = 0; r < parts_of(&c->own->arrays[k], s); r++) {
      const real *restrict from = c->parts[k] + r * count;
      SIMD for (int64_t p = 0; p < count; p++) total[p] += from[p];
    }
  }
}

typedef struct {
  int64_t keep, threads;
} attributes;

static void check_what_is_kept(call *c, const sizes *s) {
  const int k = argument_named(c->own, "kept");
  if (k < 0 || (s->keep && bytes_of(c->tensors[k]) == bytes_kept(s))) return;
  TF_SetStatus(c->status, TF_INVALID_ARGUMENT, "keras_coffee: no states were kept for a gradient");
}

static void compute(const signature *own, const attributes *a, TF_OpKernelContext *context) {
  call c = {own, context, TF_NewStatus()};
  sizes s = {0};
  read_arguments(&c);
  if (is_ok(&c)) s = sizes_of(&c, a->keep);
  if (is_ok(&c)) check_what_is_kept(&c, &s);
  if (is_ok(&c)) make_results(&c, &s);
  if (is_ok(&c) && run_blocks(s, own->run, c.arrays, a->threads))
    TF_SetStatus(c.status, TF_RESOURCE_EXHAUSTED, "keras_coffee: no memory for a block of states");
  if (is_ok(&c))
    add_parts(&c, &s);
  else
    TF_OpKernelContext_Failure(context, c.status);
  for (int k = 0; k < own->count; k++) {
    free(c.parts[k]);
    if (c.tensors[k]) TF_DeleteTensor(c.tensors[k]);
  }
  TF_DeleteStatus(c.status);
}

static void compute_forward(void *a, TF_OpKernelContext *c) { compute(&forward, a, c); }

static void compute_backward(void *a, TF_OpKernelContext *c) { compute(&backward, a, c); }

static void *create(TF_OpKernelConstruction *c) {
  TF_Status *status = TF_NewStatus();
  attributes *a = calloc(1, sizeof *a);
  TF_OpKernelConstruction_GetAttrInt64(c, "keep", &a->keep, status);
  if (TF_GetCode(status) == TF_OK)
    TF_OpKernelConstruction_GetAttrInt64(c, "threads", &a->threads, status);
  if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(c, status);
  TF_DeleteStatus(status);
  return a;
}

static void delete(void *a) { free(a); }

/* Results have the shapes of the arguments that they are like, as far as these are known. */
static void infer(const signature *own, TF_ShapeInferenceContext *c, TF_Status *status) {
  int place[MOST_ARRAYS], i = 0;
  for (int k = 0; k < own->arguments; k++)
    if (own->arrays[k].is_there) place[k] = i++;
  TF_ShapeInferenceContextSetUnknownShape(c, status);
  i = 0;
  for (int k = own->arguments; k < own->count && TF_GetCode(status) == TF_OK; k++) {
    const array *a = &own->arrays[k];
    if (!a->is_there) continue;
    if (a->like >= 0) {
      TF_ShapeHandle *handle = TF_NewShapeHandle();
      TF_ShapeInferenceContextGetInput(c, place[a->like], handle, status);
      if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(c, i, handle, status);
      TF_DeleteShapeHandle(handle);
    }
    i++;
  }
}

static void infer_forward(TF_ShapeInferenceContext *c, TF_Status *s) { infer(&forward, c, s); }

static void infer_backward(TF_ShapeInferenceContext *c, TF_Status *s) { infer(&backward, c, s); }

/* TensorFlow says what is wrong with a definition when `tf.load_op_library` returns. */
static void define(const char *name, const signature *own,
                   void (*shapes)(TF_ShapeInferenceContext *, TF_Status *),
                   void (*function)(void *, TF_OpKernelContext *)) {
  TF_Status *status = TF_NewStatus();
  TF_OpDefinitionBuilder *op = TF_NewOpDefinitionBuilder(name);
  TF_OpDefinitionBuilderAddAttr(op, "keep: int");
  TF_OpDefinitionBuilderAddAttr(op, "threads: int");
  for (int k = 0; k < own->count; k++) {
    const array *a = &own->arrays[k];
    /* What is kept is bytes, or TensorFlow would prepare a gradient by it. */
    const char *type = strcmp(a->name, "kept") ? TYPE_NAME : "uint8";
    char word[2 * MOST_CHARACTERS];
    if (!a->is_there) continue;
    if (k < own->arguments) {
      snprintf(word, sizeof word, "%s: %s", a->name, type);
      TF_OpDefinitionBuilderAddInput(op, word);
    } else {
      snprintf(word, sizeof word, "result_%d: %s", k - own->arguments, type);
      TF_OpDefinitionBuilderAddOutput(op, word);
    }
  }
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, shapes);
  TF_RegisterOpDefinition(op, status); /* takes op */
  if (TF_GetCode(status) == TF_OK)     /* takes the builder */
    TF_RegisterKernelBuilder(name, TF_NewKernelBuilder(name, "CPU", create, function, delete),
                             status);
  if (TF_GetCode(status) != TF_OK) fprintf(stderr, "%s: %s\n", name, TF_Message(status));
  TF_DeleteStatus(status);
}

__attribute__((constructor)) static void define_both(void) {
  parse(FORWARD, &forward);
  parse(BACKWARD, &backward);
  define("KerasCoffee_forward_" KEY HINT, &forward, infer_forward, compute_forward);
  define("KerasCoffee_backward_" KEY HINT, &backward, infer_backward, compute_backward);
}
