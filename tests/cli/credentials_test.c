/* Certificates that a person names: what is none is refused in a sentence, before gRPC core sees
 * it. */
#include "common/check.h"
#include "deploy/ingot/rpc.h"
#include "tests/harness/t.h"

static void credentials_must_be_pem(void **state)
{
    static const struct ig_rpc_credentials cases[] = {
        {.ca_pem = ""},
        {.ca_pem = "root:x:0:0::/root:/bin/sh"},
        {.ca_pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
        {.cert_pem = "no", .key_pem = "no"},
    };
    struct cm_error err;
    struct ig_rpc *rpc = NULL;
    (void)state;
    for (unsigned i = 0; i < CM_COUNT_OF(cases); i++)
        assert_int_equal(ig_rpc_open("localhost:1", &cases[i], &err, &rpc), CM_INVALID);
    assert_int_equal(ig_rpc_open("localhost:1", &(struct ig_rpc_credentials){0}, &err, &rpc),
                     CM_OK);
    ig_rpc_close(rpc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(credentials_must_be_pem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
