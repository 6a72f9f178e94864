/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent or rdzvctl says when a daemon refuses its key. */

#include "proto/refusal.h"

#include "tests/rig/unit.h"

static void expect(const struct refusal *r, const char *sentence) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  refusal_put(&b, r);
  assert_string_equal(buf_text(&b), sentence);
}

static const struct endpoint usual = {.host = "gpu1", .port = RDZV_DEFAULT_PORT};
static const struct endpoint other = {.host = "gpu1", .port = 29401};

#define COPY "(umask 077; mkdir -p ~/.config/rdzv; cd ~/.config/rdzv && ssh gpu1 rdzvctl --port "

/* rdzvctl there asks the daemon of that port. */
UNIT_TEST(test_the_command_names_the_daemon) {
  struct refusal r = {.status = CHANNEL_WRONG_KEY,
                      .source = CHANNEL_SOURCE_HOME,
                      .where = "gpu1:29400",
                      .endpoint = &usual,
                      .who = "this agent",
                      .key_from = "~/.config/rdzv/key"};
  expect(&r, "rdzvd at gpu1:29400 has another key (its user's ~/.config/rdzv/key) than this agent "
             "(~/.config/rdzv/key): if another user runs it, choose another port; if it is yours, copy it: " COPY
             "29400 key >new && mv new key)");
  r.endpoint = &other;
  r.where = "gpu1:29401";
  r.munge = "no munged runs on rdzvd's machine";
  expect(&r, "rdzvd at gpu1:29401 has another key (its user's ~/.config/rdzv/key) than this agent "
             "(~/.config/rdzv/key): if another user runs it, choose another port; if it is yours, copy it: " COPY
             "29401 key >new && mv new key); "
             "MUNGE brings none: no munged runs on rdzvd's machine");
}

/* The default file would not be read, so a copy there would not help. */
UNIT_TEST(test_a_key_that_was_named) {
  expect(&(struct refusal){.status = CHANNEL_WRONG_KEY,
                           .source = CHANNEL_SOURCE_STATE,
                           .where = "gpu1:29401",
                           .endpoint = &other,
                           .who = "this agent",
                           .key_from = "RDZV_KEY",
                           .named = true},
         "rdzvd at gpu1:29401 has another key (its service's state folder) than this agent (RDZV_KEY): put the "
         "daemon's key there; this prints it: ssh gpu1 rdzvctl --port 29401 key");
}

UNIT_TEST(test_what_else_it_says) {
  struct refusal r = {.status = CHANNEL_WRONG_KEY,
                      .source = CHANNEL_SOURCE_RANDOM,
                      .where = "gpu1:29400",
                      .endpoint = &usual,
                      .who = "this rdzvctl",
                      .key_from = "RDZV_KEY"};
  expect(&r, "rdzvd at gpu1:29400 has another key (drawn by the agent that started it) than this rdzvctl (RDZV_KEY): "
             "give all of them the same one, with --key-file or RDZV_KEY");
  r.status = CHANNEL_NO_KEY;
  expect(&r, "rdzvd at gpu1:29400 runs without a key, and this rdzvctl has one (RDZV_KEY): start rdzvd without "
             "--insecure, or give --insecure to both");
  r.status = CHANNEL_BUSY;
  expect(&r, "rdzvd at gpu1:29400 is too busy to open a channel");
}
