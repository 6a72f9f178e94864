/* SPDX-License-Identifier: Apache-2.0 */
/* answers: which daemon's answer is that of the one in charge. */

#include "daemon/ctl/answers.h"

#include <string.h>
#include "tests/rig/unit.h"

static void check(int code, const char *json, enum ctl_standing want, const char *says) {
  struct buf said = BUF_INIT;
  assert_int_equal(ctl_standing_of(code, json, strlen(json), &said), want);
  assert_string_equal(buf_text(&said), says);
  buf_finish(&said);
}

UNIT_TEST(test_standings) {
  check(0, "{\"jobs\":[{\"job\":\"j\",\"daemon\":{\"in_charge\":true}}]}\n", CTL_IN_CHARGE, "");
  check(0, "{\"jobs\":[{\"job\":\"j\",\"daemon\":{\"in_charge\":false}}]}\n", CTL_NOT_IN_CHARGE,
        "not in charge of the job");
  check(0, "{\"jobs\":[{\"job\":\"j\",\"uid\":0,\"moved_to\":\"gpu2 (10.0.0.2:7)\"}]}", CTL_NOT_IN_CHARGE,
        "the job has moved to gpu2 (10.0.0.2:7)");
  check(0, "{\"jobs\":[{\"daemon\":{\"in_charge\":true}},{\"moved_to\":\"gpu1\"}]}", CTL_IN_CHARGE, "");
  check(0, "{\"jobs\":[{\"job\":\"j\"}]}", CTL_IN_CHARGE, "");
  /* of two users */
  check(0, "{\"jobs\":[{\"daemon\":{\"in_charge\":false}},{\"daemon\":{\"in_charge\":true}}]}", CTL_IN_CHARGE, "");
  check(0, "{\"jobs\":[{\"daemon\":{\"in_charge\":true}},{\"daemon\":{\"in_charge\":false}}]}", CTL_IN_CHARGE, "");
  check(1, "{\"ok\":false,\"code\":1,\"text\":\"no job has the id j; there are no jobs\"}\n", CTL_NO_ANSWER,
        "no job has the id j; there are no jobs");
  check(0, "{\"jobs\":[]}", CTL_NO_ANSWER, "its answer is not understood");
  check(0, "", CTL_NO_ANSWER, "its answer is not understood");
  check(0, "[1", CTL_NO_ANSWER, "its answer is not understood");
  check(77, "{\"text\":7}", CTL_NO_ANSWER, "its answer is not understood");
}
