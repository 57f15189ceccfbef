/* Every file of the committed corpora through its fuzz target: what once was found stays found, in
 * every build. With arguments: those folders of models instead. A failure ends the process; the
 * last name printed is the file's. */
#include "tests/fuzz/targets.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef int (*target_fn)(const uint8_t *data, size_t size);

static void replay_file(const char *path, target_fn target, unsigned *tried, unsigned *fine)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size_t length = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(length ? length : 1); /* exactly its size: a sanitizer sees the end */
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, length, file), length);
    fclose(file);
    *fine += (unsigned)target(bytes, length);
    ++*tried;
    free(bytes);
}

static void replay(const char *folder, target_fn target)
{
    struct dirent **entries;
    unsigned tried = 0, fine = 0;
    char path[1024];
    int count = scandir(folder, &entries, NULL, alphasort);
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
            printf("%s\n", entries[i]->d_name);
            fflush(stdout);
            replay_file(path, target, &tried, &fine);
        }
        free(entries[i]);
    }
    free(entries);
    print_message("%s: %u files, %u of them accepted\n", folder, tried, fine);
    assert_true(tried > 0 && fine > 0 && fine < tried);
}

static void onnx(void **state)
{
    (void)state;
    replay(SOURCE_DIR "/tests/fuzz/corpus/onnx", fuzz_onnx);
}

static void safetensors(void **state)
{
    (void)state;
    replay(SOURCE_DIR "/tests/fuzz/corpus/safetensors", fuzz_safetensors);
}

int main(int argc, char **argv)
{
    if (argc > 1) { /* other folders, of models */
        for (int i = 1; i < argc; i++)
            replay(argv[i], fuzz_onnx);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(onnx),
        cmocka_unit_test(safetensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
