/* Failing allocations on purpose. Link harness_alloc: it wraps malloc, calloc, realloc and strdup
 * of everything that is linked statically (our libraries and the test, not shared libraries).
 *
 *     for (unsigned n = 1; ; n++) {
 *         t_alloc_fail_at(n);
 *         enum cm_err rc = code_under_test();
 *         if (!t_alloc_failed()) break;      // it needs fewer than n: every one has been tried
 *         assert_int_equal(rc, CM_NOMEM);
 *     }
 *
 * Counts allocations of the calling thread only. */
#ifndef TESTS_HARNESS_ALLOC_H
#define TESTS_HARNESS_ALLOC_H

#include <stdbool.h>

/* The n-th allocation from now on returns NULL, those before and after it succeed. */
void t_alloc_fail_at(unsigned n);

/* Disarms; true if the failure was delivered. */
bool t_alloc_failed(void);

#endif
