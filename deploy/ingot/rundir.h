/* The run directory: where a cluster keeps its sockets, logs and certificates.
 *
 * Blocking file system calls; main thread. */
#ifndef DEPLOY_INGOT_RUNDIR_H
#define DEPLOY_INGOT_RUNDIR_H

#include "common/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* Longest path of a run directory: its longest socket name must still fit into sun_path. */
#define IG_RUN_DIR_MAX 76

/* Files below the run directory that this program makes or reads. */
#define IG_FILE_LOCK    "supervisor.lock"
#define IG_FILE_FAMILY  "processes.lock"
#define IG_FILE_CONTROL "supervisor.sock"
#define IG_FILE_NOTIFY  "notify.sock"
#define IG_FILE_GATEWAY "gateway.json"
#define IG_FILE_LOG_DIR "log"
#define IG_FILE_TLS_DIR "tls"
#define IG_FILE_BUS_DIR "bus"
#define IG_FILE_CA      "tls/ca.pem"
#define IG_FILE_CERT    "tls/server.pem"
#define IG_FILE_KEY     "tls/server.key"

/* given, or the default if it is NULL, as an absolute path. It need not exist. CM_LIMIT: too long
 * for the sockets in it. */
CM_MUST_CHECK enum cm_err ig_run_dir_resolve(const char *given, struct cm_error *err,
                                             char ret_path[PATH_MAX]);

/* Makes it (0700) with its subfolders, or checks that an existing one is a directory of this user
 * that nobody else may enter: everything in it is trusted. */
CM_MUST_CHECK enum cm_err ig_run_dir_prepare(const char *run_dir, struct cm_error *err);

/* run_dir/file into buffer. Asserts that it fits. Returns buffer. */
const char *ig_run_path(const char *run_dir, const char *file, char buffer[PATH_MAX]);

/* A whole small file, terminated; the caller frees it. CM_LIMIT if it is larger than max bytes,
 * CM_INVALID if it is not a regular file. */
CM_MUST_CHECK enum cm_err ig_read_file(const char *path, size_t max, struct cm_error *err,
                                       unsigned char **ret_bytes, size_t *ret_length);

/* Writes a file whole or not at all (temporary name beside it, then rename); mode is narrowed by
 * the umask. What exists and is no regular file (a pipe, /dev/stdout) is written to as it is. */
CM_MUST_CHECK enum cm_err ig_write_file(const char *path, unsigned mode, const void *bytes,
                                        size_t length, struct cm_error *err);

#endif
