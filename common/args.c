/* Command lines; see args.h. */
#include "common/args.h"

#include "common/check.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#define HELP CM_MAX_ARGS /* getopt's value of --help; an option's is its place in the list */

bool cm_arg_text(const struct cm_arg *arg, const char *text)
{
    *(const char **)arg->target = text;
    return true;
}

bool cm_arg_number(const struct cm_arg *arg, const char *text)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value < arg->minimum || value > arg->maximum)
        return false;
    *(uint32_t *)arg->target = (uint32_t)value;
    return true;
}

static unsigned make_options(const struct cm_arg *args, struct option *options)
{
    unsigned n = 0;
    for (; args[n].name; n++) {
        CM_ASSERT(n < CM_MAX_ARGS);
        options[n] = (struct option){args[n].name, required_argument, NULL, (int)n};
    }
    options[n] = (struct option){"help", no_argument, NULL, HELP};
    options[n + 1] = (struct option){0};
    return n;
}

bool cm_args_parse(int argc, char **argv, const char *usage, const struct cm_arg *args,
                   enum cm_exit *ret_exit)
{
    struct option options[CM_MAX_ARGS + 2];
    bool seen[CM_MAX_ARGS] = {false}, good = true;
    unsigned n = make_options(args, options);
    int at;
    optind = 0; /* glibc: from the start, also in a second call */
    while (good && (at = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (at == HELP) {
            fputs(usage, stdout);
            *ret_exit = CM_EXIT_OK;
            return false;
        }
        good = at >= 0 && at < (int)n; /* getopt has complained of all else */
        if (good && !args[at].take(&args[at], optarg)) {
            fprintf(stderr, "%s: --%s '%s' is not acceptable\n", argv[0], args[at].name, optarg);
            good = false;
        }
        if (good)
            seen[at] = true;
    }
    for (unsigned i = 0; i < n; i++)
        good = good && (seen[i] || !args[i].required);
    if (good && optind == argc)
        return true;
    fputs(usage, stderr);
    *ret_exit = CM_EXIT_USAGE;
    return false;
}
