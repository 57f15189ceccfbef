/* Writes libFuzzer's dictionary for models to the file that is named: every operator and attribute
 * of the operator table. */
#include "gpu-worker/graph/graph.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc != 2 || !freopen(argv[1], "w", stdout))
        return 1;
    for (int op = 0; op < WK_OP_COUNT; op++) {
        const struct wk_op_version *version = wk_op_version((enum wk_op)op, WK_MAX_OPSET);
        printf("\"%s\"\n", wk_op_name((enum wk_op)op));
        for (const char *at = version ? version->attributes : ""; *at;) {
            printf("\"%.*s\"\n", (int)strcspn(at, ":"), at);
            at += strcspn(at, " ");
            at += *at == ' ';
        }
    }
    return fclose(stdout) != 0;
}
