/* Exit codes of `ingot`: those of every program (common/proc.h) and its own. Any thread.
 *
 * Scripts depend on them: append only, and deploy/README.md has the same table. */
#ifndef DEPLOY_INGOT_EXIT_H
#define DEPLOY_INGOT_EXIT_H

#include "common/proc.h"

/* X(name, number, meaning) */
#define IG_EXIT_MAP(X)                                                            \
    X(OK, CM_EXIT_OK, "success")                                                  \
    X(FAILURE, CM_EXIT_FAILURE, "the operation failed; standard error says why")  \
    X(USAGE, CM_EXIT_USAGE, "wrong arguments or files: trying again cannot help") \
    X(NO_CLUSTER, CM_EXIT_LOST, "no cluster answers in the run directory")        \
    X(NOT_READY, 4, "the cluster runs, but not every process and model is ready") \
    X(REFUSED, 5, "the server refused the request: it is wrong or not allowed")   \
    X(UNAVAILABLE, 6, "the server cannot take the request now: try again later")  \
    X(DEADLINE, 7, "the deadline passed first")                                   \
    X(SERVER, 8, "the server failed while it worked on the request")

enum ig_exit {
#define X(name, number, meaning) IG_EXIT_##name = (number),
    IG_EXIT_MAP(X)
#undef X
};

/* For masks of exit codes, as a command's manual page lists them. */
#define IG_EXIT_BIT(name) (1u << IG_EXIT_##name)

#endif
