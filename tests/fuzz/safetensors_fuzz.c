/* Safetensors headers as a fuzz target: any bytes as a file. What is accepted must be consistent:
 * an entry that points outside the file would be read there. */
#include "gpu-worker/graph/safetensors.h"
#include "tests/fuzz/targets.h"

#include <stdlib.h>
#include <string.h>

static void need(bool fact)
{
    if (!fact)
        abort();
}

static void check(const struct wk_safetensors *file, size_t start, size_t size)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < file->n; i++) {
        const struct wk_safetensor *t = &file->tensors[i];
        size_t bytes;
        need(t->begin >= start && t->begin <= t->end && t->end <= size);
        need(t->shape.rank <= CM_MAX_RANK);
        need(wk_safetensors_find(file, t->name) == t);
        if (t->dtype != CM_DTYPE_NONE)
            need(cm_shape_bytes(&t->shape, t->dtype, &bytes) == CM_OK &&
                 bytes == t->end - t->begin);
        sum += t->end - t->begin;
    }
    need(sum == size - start);
}

int fuzz_safetensors(const uint8_t *data, size_t size)
{
    struct wk_safetensors file = {0};
    struct cm_error err = {0};
    size_t length;
    if (size < WK_SAFETENSORS_PREFIX ||
        wk_safetensors_header(data, size, "f", &err, &length) != CM_OK)
        return 0;
    need(length <= size - WK_SAFETENSORS_PREFIX);
    /* In memory of its own, so that a byte read behind the header shows. */
    char *header = malloc(length);
    need(header);
    memcpy(header, data + WK_SAFETENSORS_PREFIX, length);
    enum cm_err code = wk_safetensors_parse(header, length, size, "f", &err, &file);
    free(header);
    if (code == CM_OK)
        check(&file, WK_SAFETENSORS_PREFIX + length, size);
    else
        need(err.code == code && err.text[0] && !file.tensors);
    wk_safetensors_fini(&file);
    return code == CM_OK;
}
