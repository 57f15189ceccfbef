/* The command line of a process that `ingot up` starts: --NAME VALUE pairs and --help.
 *
 * Main thread only: getopt keeps global state. */
#ifndef COMMON_ARGS_H
#define COMMON_ARGS_H

#include "common/proc.h"

#include <stdbool.h>
#include <stdint.h>

/* One option. A list of them ends with a NULL name and has at most CM_MAX_ARGS. */
struct cm_arg {
    const char *name;
    /* Puts the value into target; false if it is not acceptable. */
    bool (*take)(const struct cm_arg *arg, const char *text);
    void *target;
    uint32_t minimum, maximum; /* of a number */
    bool required;
};

#define CM_MAX_ARGS 8

/* Two takers: target is a const char *, which then points into argv; or a uint32_t for a decimal
 * without sign within [minimum, maximum]. */
bool cm_arg_text(const struct cm_arg *arg, const char *text);
bool cm_arg_number(const struct cm_arg *arg, const char *text);

/* True: go on. False: help or usage was printed, exit with *ret_exit. */
bool cm_args_parse(int argc, char **argv, const char *usage, const struct cm_arg *args,
                   enum cm_exit *ret_exit);

#endif
