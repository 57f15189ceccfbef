/* ingot-gateway: arguments, run, exit code. */
#include "common/log.h"
#include "common/proc.h"
#include "gateway/gw_priv.h"
#include "gateway/options.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    struct gw_options options;
    struct cm_error error;
    if (gw_options_parse(argc, argv, &error, &options) != CM_OK) {
        fprintf(stderr, "ingot-gateway: %s\nTry 'ingot-gateway --help'.\n", error.text);
        return CM_EXIT_USAGE;
    }
    if (options.help) {
        gw_options_help();
        return CM_EXIT_OK;
    }
    cm_proc_early(CM_ROLE_GATEWAY, (uint32_t)options.index);
    return gw_run(&options);
}
