/* The one table of subcommands, in the order of `ingot --help`. */
#include "deploy/ingot/command.h"

const struct ig_command *const ig_commands[] = {
    &ig_command_up,  &ig_command_status, &ig_command_down, &ig_command_models,
    &ig_command_mem, &ig_command_infer,  &ig_command_run,  NULL,
};
