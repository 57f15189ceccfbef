/* Every error code has its line in the table, and the lines say what the design's list of cases
 * says. */
#include "gateway/status.h"
#include "tests/harness/t.h"

#define X(name, number, text) +1
enum { ERRORS = 0 CM_ERR_MAP(X) };
#undef X
#define X(ours, theirs, pushback) +1
enum { LINES = 0 GW_STATUS_MAP(X) };
#undef X
_Static_assert(ERRORS == (int)LINES, "each error code once");

static void codes_match_the_list(void **state)
{
    (void)state;
    static const struct {
        enum cm_err ours;
        grpc_status_code theirs;
    } cases[] = {
        {CM_OK, GRPC_STATUS_OK},
        {CM_INVALID, GRPC_STATUS_INVALID_ARGUMENT},
        {CM_NOT_FOUND, GRPC_STATUS_NOT_FOUND},
        {CM_UNAVAILABLE, GRPC_STATUS_UNAVAILABLE},
        {CM_FULL, GRPC_STATUS_UNAVAILABLE},
        {CM_PRECONDITION, GRPC_STATUS_FAILED_PRECONDITION},
        {CM_LIMIT, GRPC_STATUS_RESOURCE_EXHAUSTED},
        {CM_DEADLINE, GRPC_STATUS_DEADLINE_EXCEEDED},
        {CM_CANCELLED, GRPC_STATUS_CANCELLED},
        {CM_UNSUPPORTED, GRPC_STATUS_UNIMPLEMENTED},
        {CM_CORRUPT, GRPC_STATUS_DATA_LOSS},
        {CM_INTERNAL, GRPC_STATUS_INTERNAL},
        {CM_POISON, GRPC_STATUS_INTERNAL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(gw_status_from(cases[i].ours).code, cases[i].theirs);
    assert_int_equal(gw_status_from((enum cm_err)9999).code, GRPC_STATUS_INTERNAL);
}

/* Only what a retry can help with invites one; what is used up for good forbids it. */
static void retries_are_invited_where_they_help(void **state)
{
    (void)state;
    for (int i = 0; i < ERRORS; i++) {
        struct gw_status status = gw_status_from((enum cm_err)i);
        assert_int_equal(status.pushback_ms > 0, status.code == GRPC_STATUS_UNAVAILABLE);
        assert_int_equal(status.pushback_ms < 0, status.code == GRPC_STATUS_RESOURCE_EXHAUSTED);
    }
}

static void names_are_grpcs(void **state)
{
    (void)state;
    assert_string_equal(gw_status_name(GRPC_STATUS_OK), "OK");
    assert_string_equal(gw_status_name(GRPC_STATUS_UNAUTHENTICATED), "UNAUTHENTICATED");
    assert_string_equal(gw_status_name((grpc_status_code)17), "UNKNOWN");
    assert_string_equal(gw_status_name((grpc_status_code)-1), "UNKNOWN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_match_the_list),
        cmocka_unit_test(retries_are_invited_where_they_help),
        cmocka_unit_test(names_are_grpcs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
