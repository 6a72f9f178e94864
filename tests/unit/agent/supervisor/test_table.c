/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "agent/supervisor/supervisor.h"
#include "tests/rig/unit.h"

static bool has_row(const char *event) {
  for (size_t row = 0; row < supervisor_table_size(); row++)
    if (!strcmp(supervisor_table_event(row), event)) return true;
  return false;
}

/* CONTROL_REPLY is for rdzvctl, and the store's door has its own. */
static bool is_for_the_mind(enum msg_type type) {
  return msg_direction(type) == TO_AGENT && type != MSG_CONTROL_REPLY && type != MSG_FIND_OWNERS &&
         type != MSG_OWNERS && type != MSG_FETCH_LOG && type != MSG_PAIR;
}

UNIT_TEST(test_every_message_to_an_agent_has_a_row) {
  for (int type = MSG_NONE + 1; type < MSG_COUNT; type++)
    if (is_for_the_mind((enum msg_type)type)) assert_true(has_row(msg_name((enum msg_type)type)));
}

UNIT_TEST(test_every_event_has_one_row) {
  size_t messages = 0;
  for (int type = MSG_NONE + 1; type < MSG_COUNT; type++) messages += is_for_the_mind((enum msg_type)type);
  assert_int_equal(supervisor_table_size(), messages + SUP_TICK); /* SUP_MSG has no row of its own */
  for (size_t a = 0; a < supervisor_table_size(); a++)
    for (size_t b = 0; b < a; b++) assert_string_not_equal(supervisor_table_event(a), supervisor_table_event(b));
}

UNIT_TEST(test_an_impossible_cell_has_a_reason) {
  for (size_t row = 0; row < supervisor_table_size(); row++)
    for (int st = 0; st < SUPERVISOR_STATE_COUNT; st++) {
      bool impossible;
      const char *reason = supervisor_table_reason(row, (enum supervisor_state)st, &impossible);
      if (impossible || st == SUPERVISOR_DONE) assert_true(reason && reason[0]);
    }
}
