/* SPDX-License-Identifier: Apache-2.0 */
/* c10d_server: a store with many keys is freed beside the loop, not in it. */

#include "common/net/c10d_server.h"

#include <stdio.h>
#include "tests/rig/conn.h"
#include "tests/rig/unit.h"

static void on_closed(void *ctx) {
  *(bool *)ctx = true;
}

static void check_close(int keys, bool at_once) {
  struct c10d_server *server;
  struct err e = ERR_INIT;
  bool closed = false;
  const struct c10d_server_config config = {.name = "store", .store = {.seed = 7}};
  if (c10d_server_create(&loop, &config, &server, &e) < 0) fail_msg("%s", e.text);
  struct store_client *c = store_client_create((struct store *)(uintptr_t)c10d_server_store(server), NULL);
  for (int i = 0; i < keys; i++) {
    char key[16];
    int n = snprintf(key, sizeof(key), "%d", i);
    assert_int_equal(store_set(c, (struct slice){key, (size_t)n}, (struct slice){"v", 1}, &e), 0);
  }
  store_client_destroy(c, 0);
  c10d_server_close(server, on_closed, &closed);
  uv_run(&loop, UV_RUN_NOWAIT); /* the handles' own ends */
  if (at_once) assert_true(closed);
  uv_run(&loop, UV_RUN_DEFAULT);
  assert_true(closed);
}

UNIT_TEST_WITH(test_close, set_up, tear_down) {
  check_close(1000, true);
  check_close(300000, false);
}
