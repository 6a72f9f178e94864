/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's line at a terminal, in a pipe and in JSON. */

#include "daemon/ctl/logs.h"

#include <string.h>
#include "tests/rig/unit.h"

static void check(const char *text, size_t n, const struct logs_form *form, const char *shown) {
  struct buf out = BUF_INIT;
  logs_put_line(&out,
                &(struct worker_line){.number = 1,
                                      .wall_ms = 9,
                                      .rank = 3,
                                      .round = 2,
                                      .is_err = true,
                                      .prefix = "[3] ",
                                      .prefix_len = 4,
                                      .text = text,
                                      .text_len = n},
                form);
  assert_string_equal(buf_text(&out), shown);
  buf_finish(&out);
}

UNIT_TEST(test_terminal) {
  static const struct {
    const char *text, *shown;
  } t[] = {
      {"plain\ttext é", "plain\ttext é"},
      {"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m\x1b[0m"},
      {"\x1b[1;38:5:208mbold", "\x1b[1;38:5:208mbold\x1b[0m"},
      {"\x1b[2J\x1b[Hcleared", "cleared"},  /* the screen, the cursor */
      {"\x1b[6nasks", "asks"},              /* the terminal would type an answer */
      {"\x1b]0;title\x07text", "text"},     /* the window's title */
      {"\x1b]52;c;aGk=\x1b\\text", "text"}, /* the clipboard */
      {"\x1bPq#0\x1b\\text", "text"},       /* a picture */
      {"\x1b]0;never ends", ""},
      {"\x1b[31", ""},
      {"\x1b", ""},
      {"\x1b[3\x1b[31mred", "\x1b[31mred\x1b[0m"}, /* one begins within another */
      {"\x1b"
       "cfull reset",
       "full reset"},
      {"\x1b(0lines", "0lines"},
      {"over\rwritten\b\a\x7f", "overwritten"},
      {"\xc2\x9b"
       "31m",
       "\\u009b31m"},                       /* CSI in one character */
      {"\xff\xe2\x80\xae", "\\xff\\u202e"}, /* not UTF-8; a direction */
  };
  for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
    struct buf shown = BUF_INIT;
    buf_printf(&shown, "%s\n", t[i].shown);
    check(t[i].text, strlen(t[i].text), &(struct logs_form){.to_terminal = true}, buf_text(&shown));
    buf_finish(&shown);
  }
  check("x", 1, &(struct logs_form){.to_terminal = true, .prefix = true}, "[3] x\n");
}

UNIT_TEST(test_pipe) {
  check("\x1b[2Jas it is\r\xff", strlen("\x1b[2Jas it is\r\xff"), &(struct logs_form){.prefix = true},
        "[3] \x1b[2Jas it is\r\xff\n");
  check("x", 1, &(struct logs_form){0}, "x\n");
}

UNIT_TEST(test_json) {
  struct logs_form form = {.json = true, .job = "j", .host = "h\x1b"};
  check("a\0\"\x1b\xff", 5, &form,
        "{\"job\":\"j\",\"host\":\"h\\u001B\",\"rank\":3,\"round\":2,\"stream\":\"stderr\",\"wall_ms\":9,\"text\":\"a "
        "\\\"\\u001B\xef\xbf\xbd\"}\n");
}
