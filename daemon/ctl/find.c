/* SPDX-License-Identifier: Apache-2.0 */
/* Which daemon of this machine a question is for. */

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/mem.h"
#include "daemon/ctl/client.h"
#include "daemon/ctl/answers.h"

const char *ctl_user_name(uid_t uid) {
  const struct passwd *user = getpwuid(uid);
  return user ? user->pw_name : "?";
}

static void keep_sockets(struct client *c, char *const *paths, size_t n) {
  for (size_t i = 0; i < TARGETS_MAX; i++) {
    free(c->sockets[i]);
    c->sockets[i] = i < n ? xstrdup(paths[i]) : NULL;
  }
  c->n_endpoints = n < TARGETS_MAX ? n : TARGETS_MAX;
}

/* The last ones stay if no daemon is left: the page then says that none listens there. */
void ctl_find_sockets_again(struct client *c) {
  char **paths;
  struct control_foreign foreign;
  size_t n = control_socket_find(0, &paths, &foreign);
  if (n > 0) keep_sockets(c, paths, n);
  control_socket_free(paths, n);
}

int ctl_choose_socket(struct client *c, uint16_t port) {
  char **paths;
  struct control_foreign foreign;
  size_t n = control_socket_find(port, &paths, &foreign);
  /* A question about a job goes to the daemon that has it. A drain and a look at all jobs go to all daemons. */
  const char *verb = c->request.verb;
  bool many = c->request.job[0] || !strcmp(verb, "drain") || !strcmp(verb, "undrain") || ctl_may_look_at_all(c);
  int code = 0;
  if (n == 0) {
    char where[48] = "runs on this machine";
    if (port) snprintf(where, sizeof(where), "listens on port %d of this machine", port);
    if (foreign.path[0])
      code = ctl_complain(
          c, EXIT_CODE_NO_DAEMON,
          "no rdzvd of this user, of root or of rdzvd.service %s; %s belongs to user %s (uid %u): if you trust that "
          "user, pass it with --socket",
          where, foreign.path, ctl_user_name(foreign.uid), (unsigned)foreign.uid);
    else
      code = ctl_complain(c, EXIT_CODE_NO_DAEMON, "no rdzvd that this user can reach %s; %s", where,
                          port ? "if it was started with --socket, pass the same --socket"
                               : "run rdzvctl on the machine of the daemon");
  } else if (n == 1) {
    c->found = true;
    snprintf(c->path, sizeof(c->path), "%s", paths[0]);
  } else if (many && n <= TARGETS_MAX) {
    keep_sockets(c, paths, n);
  } else {
    static const char sentence[] = "several daemons run here; choose one with --port or --socket";
    struct buf text = BUF_INIT;
    code = EXIT_CODE_USAGE;
    if (c->options.json) {
      json_t *list = json_array(), *more = json_pack("{s:o}", "sockets", list);
      for (size_t i = 0; i < n; i++) json_array_append_new(list, json_text(paths[i]));
      ctl_put_failure(&text, code, sentence, more);
      json_decref(more);
    } else {
      buf_printf(&text, "rdzvctl: %s:\n", sentence);
      for (size_t i = 0; i < n; i++) buf_printf(&text, "  --socket %s\n", paths[i]);
    }
    ctl_print_printable(c->options.json ? stdout : stderr, buf_text(&text), text.len, c->options.json);
    buf_finish(&text);
  }
  control_socket_free(paths, n);
  return code;
}
