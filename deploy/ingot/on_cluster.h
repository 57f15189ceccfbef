/* What the commands that look at a running cluster share: their options and how they begin.
 *
 * Main thread. */
#ifndef DEPLOY_INGOT_ON_CLUSTER_H
#define DEPLOY_INGOT_ON_CLUSTER_H

#include "deploy/ingot/cluster.h"
#include "deploy/ingot/command.h"

enum { IG_ON_CLUSTER_RUN_DIR = 1, IG_ON_CLUSTER_JSON };

/* --run-dir and --json. A command may have a list of its own with these ids and no others. */
extern const struct ig_option ig_on_cluster_options[];

/* Takes the options and calls act with the resolved run directory; returns act's exit code, or one
 * of its own with a complaint. */
int ig_on_cluster(const struct ig_command *command, int argc, char **argv,
                  int (*act)(const struct ig_command *command, const char *run_dir, bool json));

/* Asks once the cluster is known to be there: when there is none, that has the plainer answer. An
 * exit code, with a complaint; IG_EXIT_OK: the caller frees *ret_answer as ig_bus_ask says. */
int ig_on_cluster_ask(const struct ig_command *command, const char *run_dir,
                      enum cm_err (*ask)(const char *run_dir, struct cm_error *err,
                                         Ingot__Ipc__Envelope **ret_answer),
                      Ingot__Ipc__Envelope **ret_answer);

#endif
