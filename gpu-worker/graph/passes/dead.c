/* Pass: nodes whose results nothing needs. The loader has dropped the file's own; these are what
 * other passes left behind. See passes.h. */
#include "gpu-worker/graph/passes/edit.h"

enum cm_err pass_dead(struct wk_pass *pass)
{
    for (uint32_t i = 0; i < pass->graph->n_nodes; i++)
        if (pass->idle[i])
            pass_remove(pass, &pass->graph->nodes[i]);
    return CM_OK;
}
