/* A subcommand: its manual page as data, its options, and the function that runs it.
 *
 * One table lists them all (commands.c). What --help prints and what getopt_long accepts come from
 * the same lines, so they cannot differ. Main thread only: getopt keeps global state. */
#ifndef DEPLOY_INGOT_COMMAND_H
#define DEPLOY_INGOT_COMMAND_H

#include "common/err.h"
#include "deploy/ingot/exit.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define IG_MAX_OPTIONS 24

/* One option. A list of them ends with a NULL name. help NULL: not in the manual page. */
struct ig_option {
    int id; /* what take is called with; > 0, unique in the list */
    const char *name;
    const char *argument; /* its name in the manual page; NULL if the option takes none */
    const char *help;     /* plain sentences; wrapped when printed */
};

struct ig_command {
    const char *name;
    const char *summary;  /* one line, no full stop */
    const char *synopsis; /* what follows "ingot NAME", one form a line */
    const char *description;
    const struct ig_option *options;
    const char *files;   /* lines "PATH\tmeaning"; NULL for none */
    unsigned exit_codes; /* IG_EXIT_BIT(...) | ... */
    const char *example;
    int (*run)(const struct ig_command *command, int argc, char **argv);
};

/* Hands every option to take, which complains and returns false if it is not acceptable. Returns
 * IG_OPTIONS_TAKEN, and argv[optind] is the first of at most max_operands others; or the exit code
 * to end with. */
#define IG_OPTIONS_TAKEN (-1)
int ig_take_options(const struct ig_command *command, int argc, char **argv,
                    bool (*take)(const struct ig_command *command, int id, const char *value,
                                 void *target),
                    void *target, int max_operands);

/* Prints "ingot NAME: sentence" and where to read more; returns IG_EXIT_USAGE. */
int ig_usage(const struct ig_command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Prints "ingot NAME: sentence"; returns code. */
int ig_complain(const struct ig_command *command, enum ig_exit code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The manual page. */
void ig_print_manual(const struct ig_command *command, FILE *out);

/* The option that every command with a cluster has. */
#define IG_OPTION_RUN_DIR(id)                                                        \
    {                                                                                \
        id, "run-dir", "DIR",                                                        \
            "The cluster's run directory. Default: $INGOT_RUN_DIR, else "            \
            "$XDG_RUNTIME_DIR/ingot, else /run/ingot for root, else /tmp/ingot-UID." \
    }

/* Decimal, no sign, within [minimum, maximum]; false otherwise. */
bool ig_parse_number(const char *text, uint64_t minimum, uint64_t maximum, uint64_t *ret_number);

/* The value of --option, from 1 to maximum; false with a complaint. */
bool ig_take_number(const struct ig_command *command, const char *option, const char *value,
                    uint64_t maximum, uint64_t *ret_number);

/* One NAME=FILE argument, split in place into two strings that live as long as text. */
struct ig_binding {
    char name[256];
    const char *file;
};
CM_MUST_CHECK enum cm_err ig_parse_binding(const char *text, struct cm_error *err,
                                           struct ig_binding *ret_binding);

/* Takes one --option NAME=FILE into list, which has room for max; false with a complaint, also for
 * a name that the list has. */
bool ig_add_binding(const struct ig_command *command, const char *option, const char *value,
                    struct ig_binding *list, unsigned max, unsigned *count);

/* The file that list has for name; NULL if it has none. */
const char *ig_binding_file(const struct ig_binding *list, unsigned count, const char *name);

extern const struct ig_command ig_command_up, ig_command_down, ig_command_status, ig_command_infer,
    ig_command_run, ig_command_models, ig_command_mem;

/* The table; NULL at its end. */
extern const struct ig_command *const ig_commands[];

#endif
