/* `ingot`: finds the subcommand and runs it. Main thread. */
#include "deploy/ingot/command.h"

#include <stdio.h>
#include <string.h>

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

int main(int argc, char **argv)
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
