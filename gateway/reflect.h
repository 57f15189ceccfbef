/* Server reflection: answers about the services' descriptors, which are part of the program.
 *
 * v1 and v1alpha have the same messages, so one function serves both. Pure after creation: any
 * thread. */
#ifndef GATEWAY_REFLECT_H
#define GATEWAY_REFLECT_H

#include "common/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GW_REFLECTION_REQUEST_MAX 4096u
#define GW_REFLECTION_ANSWER_MAX  65536u

struct gw_reflection;

/* The descriptors that were serialized at build time. */
const uint8_t *gw_reflection_set(size_t *ret_length);

/* set: a serialized FileDescriptorSet, borrowed. CM_CORRUPT: it is none. */
CM_MUST_CHECK enum cm_err gw_reflection_create(const uint8_t *set, size_t length,
                                               struct gw_reflection **ret_reflection);
void gw_reflection_destroy(struct gw_reflection *reflection); /* NULL is allowed */

/* Answers a ServerReflectionRequest of at most GW_REFLECTION_REQUEST_MAX bytes (what is not known
 * is an answer too). False: it is malformed. answer has GW_REFLECTION_ANSWER_MAX bytes. */
CM_MUST_CHECK bool gw_reflection_answer(const struct gw_reflection *reflection,
                                        const uint8_t *request, size_t length, uint8_t *answer,
                                        size_t *ret_length);

#endif
