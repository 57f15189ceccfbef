/* Options and manual pages of the subcommands. Main thread. */
#include "deploy/ingot/command.h"

#include "common/check.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH       80
#define HELP_ID     1000 /* above every command's own ids */
#define OPTION_TEXT 12   /* column of an option's text */
#define NEXT_HELP   (-1)
#define NEXT_BAD    (-2)

static unsigned count_options(const struct ig_command *command)
{
    unsigned n = 0;
    while (command->options[n].name)
        n++;
    CM_ASSERT(n <= IG_MAX_OPTIONS);
    return n;
}

/* The next option's id, with its argument in optarg; 0 at the end. Negative: help or a complaint
 * was printed. */
static int next_option(const struct ig_command *command, int argc, char **argv)
{
    struct option table[IG_MAX_OPTIONS + 2] = {0};
    unsigned n = count_options(command);
    for (unsigned i = 0; i < n; i++) {
        const struct ig_option *option = &command->options[i];
        table[i].name = option->name;
        table[i].has_arg = option->argument ? required_argument : no_argument;
        table[i].val = option->id;
    }
    table[n] = (struct option){.name = "help", .has_arg = no_argument, .val = HELP_ID};
    opterr = 0;
    int id = getopt_long(argc, argv, ":h", table, NULL);
    switch (id) {
    case -1:
        return 0;
    case 'h':
    case HELP_ID:
        ig_print_manual(command, stdout);
        return NEXT_HELP;
    case ':':
        ig_usage(command, "option %s needs a value", argv[optind - 1]);
        return NEXT_BAD;
    case '?':
        ig_usage(command, "option %s is unknown, ambiguous or takes no value", argv[optind - 1]);
        return NEXT_BAD;
    default:
        return id;
    }
}

int ig_take_options(const struct ig_command *command, int argc, char **argv,
                    bool (*take)(const struct ig_command *command, int id, const char *value,
                                 void *target),
                    void *target, int max_operands)
{
    int id;
    while ((id = next_option(command, argc, argv)) > 0)
        if (!take(command, id, optarg, target))
            return IG_EXIT_USAGE;
    if (id != 0)
        return id == NEXT_HELP ? IG_EXIT_OK : IG_EXIT_USAGE;
    if (argc - optind > max_operands)
        return ig_usage(command, "unexpected argument '%s'", argv[optind + max_operands]);
    return IG_OPTIONS_TAKEN;
}

int ig_usage(const struct ig_command *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "ingot %s: ", command->name);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\nTry 'ingot %s --help'.\n", command->name);
    va_end(args);
    return IG_EXIT_USAGE;
}

int ig_complain(const struct ig_command *command, enum ig_exit code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "ingot %s: ", command->name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return (int)code;
}

/* Prints text in lines of at most WIDTH columns, the first starting at column (already printed),
 * the others after indent spaces. Newlines in text are kept; a line that starts with a space is
 * printed as it is. */
static void print_wrapped(FILE *out, const char *text, size_t column, size_t indent)
{
    bool verbatim = *text == ' ';
    while (*text) {
        if (*text == '\n') {
            verbatim = text[1] == ' ';
            fputc('\n', out);
            column = 0;
            text++;
            continue;
        }
        size_t length = verbatim ? strcspn(text, "\n") : strcspn(text, " \n");
        if (column > indent && column + 1 + length > WIDTH) {
            fputc('\n', out);
            column = 0;
        }
        if (column == 0)
            column = (size_t)fprintf(out, "%*s", (int)indent, "");
        else if (column > indent)
            column += (size_t)fprintf(out, " ");
        column += (size_t)fprintf(out, "%.*s", (int)length, text);
        text += length;
        while (!verbatim && *text == ' ')
            text++;
    }
    fputc('\n', out);
}

static void print_option(FILE *out, const char *name, const char *argument, const char *help)
{
    fprintf(out, "    --%s%s%s\n%*s", name, argument ? " " : "", argument ? argument : "",
            OPTION_TEXT, "");
    print_wrapped(out, help, OPTION_TEXT, OPTION_TEXT);
}

static void print_files(FILE *out, const char *files)
{
    while (*files) {
        size_t line = strcspn(files, "\n");
        size_t path = strcspn(files, "\t");
        CM_ASSERT(path < line);
        char meaning[512];
        snprintf(meaning, sizeof meaning, "%.*s", (int)(line - path - 1), files + path + 1);
        fprintf(out, "    %.*s\n%*s", (int)path, files, OPTION_TEXT, "");
        print_wrapped(out, meaning, OPTION_TEXT, OPTION_TEXT);
        files += line + (files[line] == '\n');
    }
}

/* One form of the command a line. */
static void print_synopsis(FILE *out, const struct ig_command *command)
{
    const char *line = command->synopsis;
    while (line) {
        const char *end = strchr(line, '\n');
        char form[1024];
        snprintf(form, sizeof form, "%.*s", (int)(end ? (size_t)(end - line) : strlen(line)), line);
        size_t column = (size_t)fprintf(out, "    ingot %s", command->name);
        print_wrapped(out, form, column, 8);
        line = end ? end + 1 : NULL;
    }
}

void ig_print_manual(const struct ig_command *command, FILE *out)
{
    fprintf(out, "NAME\n    ingot %s - %s\n\nSYNOPSIS\n", command->name, command->summary);
    print_synopsis(out, command);
    fprintf(out, "\nDESCRIPTION\n");
    print_wrapped(out, command->description, 0, 4);
    fprintf(out, "\nOPTIONS\n");
    for (const struct ig_option *option = command->options; option->name; option++)
        if (option->help)
            print_option(out, option->name, option->argument, option->help);
    print_option(out, "help", NULL, "Print this page.");
    if (command->files) {
        fprintf(out, "\nFILES\n");
        print_files(out, command->files);
    }
    fprintf(out, "\nEXIT STATUS\n");
#define X(name, number, meaning)                 \
    if (command->exit_codes & IG_EXIT_BIT(name)) \
        fprintf(out, "    %d  %s\n", (number), (meaning));
    IG_EXIT_MAP(X)
#undef X
    fprintf(out, "\nEXAMPLE\n");
    print_wrapped(out, command->example, 0, 4);
}

bool ig_parse_number(const char *text, uint64_t minimum, uint64_t maximum, uint64_t *ret_number)
{
    if (*text < '0' || *text > '9')
        return false;
    char *end = NULL;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno || *end || number < minimum || number > maximum)
        return false;
    *ret_number = number;
    return true;
}

bool ig_take_number(const struct ig_command *command, const char *option, const char *value,
                    uint64_t maximum, uint64_t *ret_number)
{
    if (ig_parse_number(value, 1, maximum, ret_number))
        return true;
    ig_usage(command, "--%s '%s' is not a number from 1 to %llu", option, value,
             (unsigned long long)maximum);
    return false;
}

enum cm_err ig_parse_binding(const char *text, struct cm_error *err, struct ig_binding *ret_binding)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || !equals[1])
        return cm_fail(err, CM_INVALID, "'%s' is not NAME=FILE", text);
    size_t length = (size_t)(equals - text);
    if (length >= sizeof ret_binding->name)
        return cm_fail(err, CM_INVALID, "the tensor name in '%.40s...' is longer than %zu bytes",
                       text, sizeof ret_binding->name - 1);
    memcpy(ret_binding->name, text, length);
    ret_binding->name[length] = '\0';
    ret_binding->file = equals + 1;
    return CM_OK;
}

bool ig_add_binding(const struct ig_command *command, const char *option, const char *value,
                    struct ig_binding *list, unsigned max, unsigned *count)
{
    struct cm_error err = {0};
    if (*count == max) {
        ig_usage(command, "more than %u --%s", max, option);
        return false;
    }
    struct ig_binding *binding = &list[*count];
    if (ig_parse_binding(value, &err, binding) != CM_OK) {
        ig_usage(command, "--%s: %s", option, err.text);
        return false;
    }
    for (unsigned i = 0; i < *count; i++) {
        if (strcmp(list[i].name, binding->name) == 0) {
            ig_usage(command, "--%s %s is given twice", option, binding->name);
            return false;
        }
    }
    (*count)++;
    return true;
}

const char *ig_binding_file(const struct ig_binding *list, unsigned count, const char *name)
{
    for (unsigned i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0)
            return list[i].file;
    return NULL;
}
