/* config.yaml: defaults, values, and every kind of mistake with its line. */
#include "common/model_config.h"

#include "common/check.h"
#include "tests/harness/t.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum cm_err parse(const char *text, struct cm_error *err, struct cm_model_config *config)
{
    return cm_model_config_parse("m/config.yaml", text, strlen(text), err, config);
}

static void test_defaults(void **state)
{
    (void)state;
    const char *const empty[] = {"",      "\n\n", "# only a comment\n",
                                 "---\n", "{}\n", "--- {}\n...\n"};
    for (size_t i = 0; i < CM_COUNT_OF(empty); i++) {
        struct cm_error err = {0};
        struct cm_model_config config;
        memset(&config, 0xff, sizeof config);
        if (parse(empty[i], &err, &config) != CM_OK)
            fail_msg("'%s': %s", empty[i], err.text);
#define X(key, field, type, minimum, maximum, initial, meaning) \
    assert_int_equal(config.field, initial);
        CM_MODEL_CONFIG_MAP(X)
#undef X
    }
}

static void test_values(void **state)
{
    (void)state;
    struct cm_error err;
    struct cm_model_config config;
    assert_int_equal(
        parse("max_batch_size: 16\nmax_wait_us: 2000 # two\nmax_queue: 1\n", &err, &config), CM_OK);
    assert_int_equal(config.max_batch_size, 16);
    assert_int_equal(config.max_wait_us, 2000);
    assert_int_equal(config.max_queue, 1);
    assert_int_equal(parse("{max_queue: 65536, 'max_wait_us': 1000000}", &err, &config), CM_OK);
    assert_int_equal(config.max_queue, 65536);
    assert_int_equal(config.max_batch_size, 0);
}

static void test_mistakes(void **state)
{
    (void)state;
    const struct {
        const char *text;
        const char *begins; /* of the sentence, after "m/config.yaml:" */
        const char *has;
    } cases[] = {
        {"max_batch: 3\n", "1:", "unknown key 'max_batch'"},
        {"max_queue: 3\n\nmax_bath_size: 3\n", "3:", "the keys are max_batch_size, max_wait_us"},
        {"max_queue: many\n", "1:", "whole number"},
        {"\nmax_queue: -1\n", "2:", "whole number from 1 to 65536"},
        {"max_queue: +1\n", "1:", "whole number"},
        {"max_queue: 1.5\n", "1:", "whole number"},
        {"max_queue: 0x10\n", "1:", "whole number"},
        {"max_queue: \"10\"\n", "1:", "whole number"},
        {"max_queue: '10'\n", "1:", "whole number"},
        {"max_queue:\n", "1:", "whole number"},
        {"max_queue: true\n", "1:", "whole number"},
        {"max_queue: [1]\n", "1:", "whole number"},
        {"max_queue:\n  a: 1\n", "2:", "whole number"},
        {"max_queue: !!int 5\n", "1:", "whole number"},
        {"max_queue: &a 5\n", "1:", "whole number"},
        {"max_queue: *a\n", "1:", "whole number"},
        {"max_queue: 0\n", "1:", "must be from 1 to 65536"},
        {"max_queue: 65537\n", "1:", "must be from 1 to 65536"},
        {"max_queue: 4294967297\n", "1:", "must be from 1 to 65536"},
        {"max_queue: 18446744073709551617\n", "1:", "whole number"},
        {"max_batch_size: 129\n", "1:", "must be from 0 to 128"},
        {"max_wait_us: 1\nmax_queue: 2\nmax_wait_us: 1\n", "3:", "there twice"},
        {"- max_queue\n", "1:", "'key: value' lines"},
        {"\n\njust words\n", "3:", "'key: value' lines"},
        {"'': 1\n", "1:", "unknown key ''"},
        {"? [a]\n: 1\n", "1:", "a key must be a word"},
        {"&x max_queue: 1\n", "1:", "anchors"},
        {"!t {max_queue: 1}\n", "1:", "'key: value' lines"},
        {"max_queue: 1\n---\nmax_queue: 2\n", "2:", "second document"},
        {"max_queue: 1\n\tmax_wait_us: 1\n", "2:", "not valid YAML"},
        {"max_queue: {\n", "2:", NULL},
        {"max_queue: \xff\n", "1:", "not valid YAML"},
    };
    for (size_t i = 0; i < CM_COUNT_OF(cases); i++) {
        struct cm_error err = {0};
        struct cm_model_config config, before;
        memset(&config, 0x5a, sizeof config);
        before = config;
        enum cm_err rc = parse(cases[i].text, &err, &config);
        if (rc != CM_INVALID)
            fail_msg("'%s': %s", cases[i].text, cm_err_name(rc));
        assert_memory_equal(&config, &before, sizeof config); /* untouched on failure */
        const char *file = "m/config.yaml:";
        bool right = strncmp(err.text, file, strlen(file)) == 0 &&
                     (!cases[i].has || strstr(err.text, cases[i].has)) &&
                     (!cases[i].has || strncmp(err.text + strlen(file), cases[i].begins,
                                               strlen(cases[i].begins)) == 0);
        if (!right)
            fail_msg("'%s': %s", cases[i].text, err.text);
    }
}

static void test_huge_and_nul(void **state)
{
    (void)state;
    struct cm_error err;
    struct cm_model_config config;
    size_t size = 1024 * 1024;
    char *text = malloc(size);
    memset(text, '\n', size);
    assert_int_equal(cm_model_config_parse("f", text, size, &err, &config), CM_INVALID);
    memset(text, '[', 60000);
    assert_int_equal(cm_model_config_parse("f", text, 60000, &err, &config), CM_INVALID);
    memset(text, 0, 100);
    assert_int_equal(cm_model_config_parse("f", text, 100, &err, &config), CM_INVALID);
    assert_int_equal(cm_model_config_parse("f", "max_queue\0: 1", 13, &err, &config), CM_INVALID);
    free(text);
}

static void test_fuzz(void **state)
{
    (void)state;
    const char valid[] = "max_batch_size: 16\nmax_wait_us: 2000\nmax_queue: 4096\n";
    const char alphabet[] = "0129:-\n\t {}[],&*!|>'\"%@`#\xff\xc3\0ab";
    uint64_t seed = 77;
    for (int round = 0; round < 20000; round++) {
        char text[sizeof valid];
        memcpy(text, valid, sizeof valid);
        for (uint64_t k = t_random(&seed) % 6; k > 0; k--) {
            uint64_t n = t_random(&seed);
            text[n % (sizeof valid - 1)] = alphabet[n / 256 % sizeof alphabet];
        }
        struct cm_error err;
        struct cm_model_config config;
        enum cm_err rc = cm_model_config_parse("f", text, sizeof valid - 1, &err, &config);
        assert_true(rc == CM_OK || rc == CM_INVALID);
        if (rc == CM_OK)
            assert_true(config.max_batch_size <= 128 && config.max_wait_us <= 1000000 &&
                        config.max_queue >= 1 && config.max_queue <= 65536);
        else
            assert_true(strncmp(err.text, "f:", 2) == 0);
    }
}

static void test_names(void **state)
{
    (void)state;
    const struct {
        const char *name;
        bool valid;
    } cases[] = {
        {"digits", true}, {"a", true},     {"7b", true},   {"A.b_c-d", true}, {"a.", true},
        {"", false},      {".a", false},   {"-a", false},  {"_a", false},     {"a..b", false},
        {"..", false},    {"a/b", false},  {"a b", false}, {"a\n", false},    {"\xc3\xa4", false},
        {"a:b", false},   {"a\\b", false},
    };
    for (size_t i = 0; i < CM_COUNT_OF(cases); i++)
        if (cm_model_name_valid(cases[i].name, strlen(cases[i].name)) != cases[i].valid)
            fail_msg("'%s'", cases[i].name);
    char name[CM_MODEL_NAME_MAX + 1];
    memset(name, 'a', sizeof name);
    assert_true(cm_model_name_valid(name, CM_MODEL_NAME_MAX));
    assert_false(cm_model_name_valid(name, CM_MODEL_NAME_MAX + 1));
    assert_false(cm_model_name_valid("a\0b", 3));
}

static void test_versions(void **state)
{
    (void)state;
    const struct {
        const char *text;
        uint32_t version;
    } cases[] = {
        {"1", 1},
        {"42", 42},
        {"2147483647", 2147483647u},
        {"2147483648", 0},
        {"4294967297", 0},
        {"0", 0},
        {"01", 0},
        {"+1", 0},
        {"-1", 0},
        {"1 ", 0},
        {" 1", 0},
        {"", 0},
        {"1a", 0},
        {"99999999999999999999", 0},
    };
    for (size_t i = 0; i < CM_COUNT_OF(cases); i++)
        if (cm_model_version_parse(cases[i].text, strlen(cases[i].text)) != cases[i].version)
            fail_msg("'%s'", cases[i].text);
    assert_int_equal(cm_model_version_parse("12x", 2), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_values),
        cmocka_unit_test(test_mistakes), cmocka_unit_test(test_huge_and_nul),
        cmocka_unit_test(test_fuzz),     cmocka_unit_test(test_names),
        cmocka_unit_test(test_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
