/* `ingot`: finds the subcommand and runs it; sees to it that the standard streams are there before
 * and that what was printed has arrived afterwards. Main thread. */
#include "deploy/ingot/command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void print_help(FILE *out)
{
    fprintf(out, "ingot - run and use an inference cluster on this machine\n\n"
                 "  ingot COMMAND [OPTION...]\n\n");
    for (unsigned i = 0; ig_commands[i]; i++)
        fprintf(out, "  %-8s  %s\n", ig_commands[i]->name, ig_commands[i]->summary);
    fprintf(out, "\n'ingot COMMAND --help' is the manual page of a command; 'ingot --version' "
                 "prints the version.\n");
}

/* What follows `ingot help`; the list for no or an unknown command. */
static int help(const char *name)
{
    for (unsigned i = 0; name && ig_commands[i]; i++) {
        if (strcmp(ig_commands[i]->name, name) == 0) {
            ig_print_manual(ig_commands[i], stdout);
            return IG_EXIT_OK;
        }
    }
    print_help(stdout);
    return IG_EXIT_OK;
}

static int run(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        return help(argc > 2 ? argv[2] : NULL);
    if (strcmp(name, "--version") == 0) {
        printf("ingot %s\n", INGOT_VERSION);
        return IG_EXIT_OK;
    }
    for (unsigned i = 0; ig_commands[i]; i++)
        if (strcmp(ig_commands[i]->name, name) == 0)
            return ig_commands[i]->run(ig_commands[i], argc - 1, argv + 1);
    if (*name)
        fprintf(stderr, "ingot: there is no command '%s'\n\n", name);
    print_help(stderr);
    return IG_EXIT_USAGE;
}

/* A descriptor 0, 1 or 2 that the caller closed would be taken by the next socket or file, into
 * which somebody's error message is then written; libuv asserts that it never closes one of them.
 */
static int open_standard_streams(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR); // the lowest number that is free
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd < 0)
        return -1;
    close(fd);
    return 0;
}

int main(int argc, char **argv)
{
    if (open_standard_streams() != 0) {
        fprintf(stderr, "ingot: /dev/null cannot be opened: %s\n", strerror(errno));
        return IG_EXIT_FAILURE;
    }
    int code = run(argc, argv);
    /* A script that gets half a report must not read success. The supervisor's work is the cluster:
     * it may well outlive whoever read its report. */
    bool failed = fflush(stdout) != 0 || ferror(stdout);
    if (failed && code == IG_EXIT_OK && strcmp(argv[1], "up") != 0) {
        fprintf(stderr, "ingot: standard output cannot be written: %s\n", strerror(errno));
        return IG_EXIT_FAILURE;
    }
    return code;
}
