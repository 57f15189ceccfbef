/* Scanning model repositories: what is a model, what is refused with which reason, what harms
 * nothing. */
#include "scheduler/repository.h"

#include "tests/harness/t.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct repo {
    char base[T_PATH_MAX]; /* has "models" and things outside of it */
    struct sd_models models;
};

static int make_repo(void **state)
{
    struct repo *repo = calloc(1, sizeof *repo);
    t_make_dir(repo->base);
    assert_int_equal(sd_models_init(&repo->models, 1), CM_OK);
    *state = repo;
    return 0;
}

static int drop_repo(void **state)
{
    struct repo *repo = *state;
    t_remove_dir(repo->base);
    sd_models_fini(&repo->models);
    free(repo);
    return 0;
}

static const char *at(const struct repo *repo, const char *path)
{
    static char buffers[4][T_PATH_MAX * 3];
    static unsigned next;
    char *buffer = buffers[next++ % 4];
    snprintf(buffer, sizeof buffers[0], "%s/%s", repo->base, path);
    return buffer;
}

static void dir(const struct repo *repo, const char *path)
{
    char copy[T_PATH_MAX * 3];
    snprintf(copy, sizeof copy, "%s", at(repo, path));
    for (char *slash = copy + strlen(repo->base) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(copy, 0700);
        *slash = '/';
    }
    assert_int_equal(mkdir(copy, 0700), 0);
}

static void file(const struct repo *repo, const char *path, const char *text)
{
    FILE *out = fopen(at(repo, path), "w");
    assert_non_null(out);
    fputs(text, out);
    assert_int_equal(fclose(out), 0);
}

static void good_model(const struct repo *repo, const char *name, const char *version)
{
    char path[T_PATH_MAX];
    snprintf(path, sizeof path, "models/%s/%s", name, version);
    dir(repo, path);
    snprintf(path, sizeof path, "models/%s/%s/model.onnx", name, version);
    file(repo, path, "not read here");
}

static void scan(struct repo *repo)
{
    struct cm_error err;
    uint32_t skipped = 99;
    enum cm_err code = sd_repository_scan(at(repo, "models"), &repo->models, &err, &skipped);
    if (code != CM_OK)
        fail_msg("scan: %s", err.text);
    assert_int_equal(skipped, 0);
}

static const struct sd_model *find(const struct repo *repo, const char *name)
{
    for (uint32_t i = 0; i < repo->models.count; i++)
        if (strcmp(repo->models.items[i].name, name) == 0)
            return &repo->models.items[i];
    return NULL;
}

static void assert_reason(const struct repo *repo, const char *name, const char *part)
{
    const struct sd_model *model = find(repo, name);
    if (!model)
        fail_msg("%s is not in the table", name);
    if (model->state != SD_MODEL_FAILED || !model->broken || !strstr(model->reason, part))
        fail_msg("%s: state %s, reason \"%s\"", name, sd_model_state_name(model->state),
                 model->reason);
}

static void highest_version_is_taken(void **state)
{
    struct repo *repo = *state;
    good_model(repo, "digits", "2");
    good_model(repo, "digits", "10");
    good_model(repo, "digits", "9");
    dir(repo, "models/digits/011");
    dir(repo, "models/digits/notes");
    file(repo, "models/digits/config.yaml", "max_batch_size: 16\nmax_wait_us: 250\n");
    good_model(repo, "angle", "1");
    scan(repo);
    assert_int_equal(repo->models.count, 2);
    assert_string_equal(repo->models.items[0].name, "angle");
    const struct sd_model *digits = find(repo, "digits");
    assert_int_equal(digits->version, 10);
    assert_int_equal(digits->state, SD_MODEL_LOADING);
    assert_false(digits->broken);
    assert_int_equal(digits->config.max_batch_size, 16);
    assert_int_equal(digits->config.max_wait_us, 250);
    assert_int_equal(find(repo, "angle")->config.max_queue, 4096);
    sd_models_renumber(&repo->models, 77);
    assert_int_equal(digits->ref.generation, 77);
}

static void what_is_wrong_is_said_and_harms_nothing(void **state)
{
    struct repo *repo = *state;
    good_model(repo, "good", "1");
    good_model(repo, "bad_config", "1");
    file(repo, "models/bad_config/config.yaml", "max_batch_size: many\n");
    good_model(repo, "bad name", "1");
    good_model(repo, "a..b", "1");
    dir(repo, "models/empty");
    dir(repo, "models/no_file/3");
    dir(repo, "models/folder/1/model.onnx");
    good_model(repo, "fifo", "1");
    unlink(at(repo, "models/fifo/1/model.onnx"));
    assert_int_equal(mkfifo(at(repo, "models/fifo/1/model.onnx"), 0600), 0);
    good_model(repo, "fifo_config", "1");
    assert_int_equal(mkfifo(at(repo, "models/fifo_config/config.yaml"), 0600), 0);
    file(repo, "models/README.md", "a plain file is no model");
    dir(repo, "models/.hidden/1");
    scan(repo);
    assert_int_equal(repo->models.count, 9);
    assert_int_equal(find(repo, "good")->state, SD_MODEL_LOADING);
    assert_reason(repo, "bad_config", "bad_config/config.yaml:1");
    assert_reason(repo, "bad?name", "not a model name");
    assert_reason(repo, "a..b", "not a model name");
    assert_reason(repo, "empty", "no version");
    assert_reason(repo, "no_file", "cannot open model.onnx of version 3");
    assert_reason(repo, "folder", "not a regular file");
    assert_reason(repo, "fifo", "not a regular file");
    assert_reason(repo, "fifo_config", "config.yaml is not a regular file");
}

/* Mounted volumes are full of links: inside the repository they count, outside they are refused. */
static void links_stay_inside(void **state)
{
    struct repo *repo = *state;
    dir(repo, "outside/1");
    file(repo, "outside/1/model.onnx", "secret");
    file(repo, "outside/secret.yaml", "max_batch_size: 3\n");
    good_model(repo, "real", "1");
    dir(repo, "models/..data/1");
    file(repo, "models/..data/1/model.onnx", "x");
    assert_int_equal(symlink("..data", at(repo, "models/mounted")), 0);
    assert_int_equal(symlink("real", at(repo, "models/alias")), 0);
    assert_int_equal(symlink("../outside", at(repo, "models/leaves")), 0);
    char absolute[T_PATH_MAX * 3];
    snprintf(absolute, sizeof absolute, "%s", at(repo, "outside"));
    assert_int_equal(symlink(absolute, at(repo, "models/absolute")), 0);
    dir(repo, "models/file_leaves/1");
    assert_int_equal(
        symlink("../../../outside/1/model.onnx", at(repo, "models/file_leaves/1/model.onnx")), 0);
    good_model(repo, "config_leaves", "1");
    assert_int_equal(
        symlink("../../outside/secret.yaml", at(repo, "models/config_leaves/config.yaml")), 0);
    assert_int_equal(symlink("loop", at(repo, "models/loop")), 0);
    assert_int_equal(symlink("nowhere", at(repo, "models/dangling")), 0);
    scan(repo);
    assert_int_equal(find(repo, "mounted")->state, SD_MODEL_LOADING);
    assert_int_equal(find(repo, "alias")->state, SD_MODEL_LOADING);
    assert_reason(repo, "leaves", "outside the model repository");
    assert_reason(repo, "absolute", "outside the model repository");
    assert_reason(repo, "file_leaves", "outside the model repository");
    assert_reason(repo, "config_leaves", "outside the model repository");
    assert_reason(repo, "loop", "cannot open");
    assert_reason(repo, "dangling", "cannot open");
}

static void long_names_cannot_pass_for_others(void **state)
{
    struct repo *repo = *state;
    char name[128] = "";
    memset(name, 'a', 70);
    good_model(repo, name, "1");
    scan(repo);
    assert_int_equal(repo->models.count, 1);
    const char *shown = repo->models.items[0].name;
    assert_true(strlen(shown) <= CM_MODEL_NAME_MAX);
    assert_false(cm_model_name_valid(shown, strlen(shown)));
    assert_true(repo->models.items[0].broken);
}

static void too_many_models_are_counted(void **state)
{
    struct repo *repo = *state;
    struct cm_error err;
    uint32_t skipped = 0;
    for (int i = 0; i < 260; i++) {
        char name[16];
        snprintf(name, sizeof name, "m%03d", i);
        good_model(repo, name, "1");
    }
    assert_int_equal(sd_repository_scan(at(repo, "models"), &repo->models, &err, &skipped), CM_OK);
    assert_int_equal(repo->models.count, SD_MAX_MODELS);
    assert_int_equal(skipped, 4);
    assert_string_equal(repo->models.items[255].name, "m255");
}

static void a_missing_repository_is_an_error(void **state)
{
    struct repo *repo = *state;
    struct cm_error err;
    uint32_t skipped;
    assert_int_equal(sd_repository_scan(at(repo, "none"), &repo->models, &err, &skipped),
                     CM_NOT_FOUND);
    assert_non_null(strstr(err.text, "cannot open the model repository"));
    dir(repo, "models");
    scan(repo);
    assert_int_equal(repo->models.count, 0);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, make_repo, drop_repo)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(highest_version_is_taken),    TEST(what_is_wrong_is_said_and_harms_nothing),
        TEST(links_stay_inside),           TEST(long_names_cannot_pass_for_others),
        TEST(too_many_models_are_counted), TEST(a_missing_repository_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
