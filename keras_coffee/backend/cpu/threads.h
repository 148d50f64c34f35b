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
} part;

static void *run_part(void *data) {
  part *p = data;
  p->failed = p->run(&p->s, p->arrays);
  return NULL;
}

/* Blocks below each other. */
INLINE int64_t rows(const sizes *s) { return (s->batch + s->sequences - 1) / s->sequences; }

/* Not zero if there is no memory. The sizes are those that follow `first` and `last`. */
static int run_blocks(sizes s, kernel *run, real *const *arrays, int64_t threads) {
  part parts[MOST_THREADS];
  const int64_t count = rows(&s) * columns(&s);
  threads = least(least(threads, count), MOST_THREADS);
  threads = least(threads, s.batch * s.length * s.dim * s.states / STATES_PER_THREAD);
  threads = threads < 1 ? 1 : threads;
  for (int64_t k = 0; k < threads; k++) {
    parts[k] = (part){s, run, arrays, 0};
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
