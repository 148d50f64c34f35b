/* All blocks of a call on several threads, for frameworks that call a kernel by themselves. They are
 * threads of this call, because tasks that wait for others of the same pool can wait forever. */
#ifndef _WIN32
#include <pthread.h>
#endif

enum { MOST_ARRAYS = 48, MOST_THREADS = 64 };

/* Work worth a second thread: some hundred microseconds of it. */
enum { STATES_PER_THREAD = 1 << 18 };

typedef int kernel(const sizes *, real *const *arrays);

typedef struct {
  sizes s;
  kernel *run;
  real *const *arrays;
  int failed;
} share;

static void *run_share(void *data) {
  share *p = data;
  p->failed = p->run(&p->s, p->arrays);
  return NULL;
}

/* Blocks below each other. */
INLINE int64_t rows(const sizes *s) { return (s->batch + s->sequences - 1) / s->sequences; }

/* Parts of a sum over sequences. */
INLINE int64_t parts(const sizes *s) { return (rows(s) + s->together - 1) / s->together; }

/* Not zero if there is no memory. The sizes are those that follow `first` and `last`. */
static int run_blocks(sizes s, kernel *run, real *const *arrays, int64_t threads) {
  share shares[MOST_THREADS];
  /* What belongs to one part of a sum goes to one thread. */
  const int64_t count = rows(&s) * columns(&s), unit = s.together > 1 ? s.together * columns(&s) : 1;
  const int64_t units = (count + unit - 1) / unit;
  threads = least(least(threads, units), MOST_THREADS);
  threads = least(threads, s.batch * s.length * s.dim * s.states / STATES_PER_THREAD);
  threads = threads < 1 ? 1 : threads;
  for (int64_t k = 0; k < threads; k++) {
    shares[k] = (share){s, run, arrays, 0};
    shares[k].s.first = least(units * k / threads * unit, count);
    shares[k].s.last = least(units * (k + 1) / threads * unit, count);
  }
#ifndef _WIN32
  pthread_t handles[MOST_THREADS];
  int started[MOST_THREADS];
  for (int64_t k = 1; k < threads; k++)
    started[k] = !pthread_create(&handles[k], NULL, run_share, &shares[k]);
#endif
  run_share(&shares[0]);
  int failed = shares[0].failed;
  for (int64_t k = 1; k < threads; k++) {
#ifndef _WIN32
    if (started[k])
      pthread_join(handles[k], NULL);
    else
#endif
      run_share(&shares[k]);
    failed |= shares[k].failed;
  }
  return failed;
}
