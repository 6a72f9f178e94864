/* SPDX-License-Identifier: Apache-2.0 */
/* Which daemon a question is for. */

#include <netdb.h>
#include <pwd.h>
#include <stdio.h>
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/limit.h"
#include "common/system/loop.h"
#include "daemon/ctl/client.h"
#include "daemon/ctl/failure.h"

const char *ctl_user_name(uid_t uid) {
  const struct passwd *user = getpwuid(uid);
  return user ? user->pw_name : "?";
}

/* rdzvctl trusts no daemon of this machine. */
static int complain_none(const struct client *c, uint16_t port, const struct control_foreign *foreign) {
  char where[48] = "runs on this machine";
  if (port) snprintf(where, sizeof(where), "listens on port %d of this machine", port);
  if (foreign->path[0])
    return ctl_complain(
        c, EXIT_CODE_NO_DAEMON,
        "no rdzvd of this user, of root or of rdzvd.service %s; %s belongs to user %s (uid %u): if you trust that "
        "user, pass it with --socket",
        where, foreign->path, ctl_user_name(foreign->uid), (unsigned)foreign->uid);
  return ctl_complain(c, EXIT_CODE_NO_DAEMON, "no rdzvd that this user can reach %s; %s", where,
                      port ? "if it was started with --socket, pass the same --socket"
                           : "run rdzvctl on the machine of the daemon");
}

static int complain_several(const struct client *c, char *const *paths, size_t n) {
  static const char sentence[] = "several daemons run here; choose one with --port or --socket";
  struct buf text = BUF_INIT;
  if (c->options.json) {
    json_t *list = json_array(), *more = json_pack("{s:o}", "sockets", list);
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_text(paths[i]));
    ctl_put_failure(&text, EXIT_CODE_USAGE, sentence, more);
    json_decref(more);
  } else {
    buf_printf(&text, "rdzvctl: %s:\n", sentence);
    for (size_t i = 0; i < n; i++) buf_printf(&text, "  --socket %s\n", paths[i]);
  }
  ctl_print_printable(c->options.json ? stdout : stderr, buf_text(&text), text.len, c->options.json);
  buf_finish(&text);
  return EXIT_CODE_USAGE;
}

int ctl_choose_socket(struct client *c, uint16_t port) {
  char **paths;
  struct control_foreign foreign;
  size_t n = control_socket_find(port, &paths, &foreign);
  int code = n == 0 ? complain_none(c, port, &foreign) : n > 1 ? complain_several(c, paths, n) : 0;
  if (n == 1) {
    c->found = true;
    snprintf(c->path, sizeof(c->path), "%s", paths[0]);
  }
  control_socket_free(paths, n);
  return code;
}

/* Whether the daemon at the endpoint has a control socket here. */
static bool has_socket(struct client *c, uint16_t port) {
  char **paths;
  struct control_foreign foreign;
  size_t n = control_socket_find(port, &paths, &foreign);
  if (n > 0) snprintf(c->path, sizeof(c->path), "%s", paths[0]);
  c->found = n > 0;
  control_socket_free(paths, n);
  return n > 0;
}

static void on_lookup(uv_getaddrinfo_t *request, int status, struct addrinfo *result) {
  struct client *c = request->data;
  struct endpoint ep;
  endpoint_parse(c->options.endpoint, RDZV_DEFAULT_PORT, &ep, NULL);
  bool own = status == 0 && addresses_keep(&c->addresses, result, ep.port);
  uv_freeaddrinfo(result);
  if (status < 0) {
    ctl_finish(c, ctl_complain(c, EXIT_CODE_NO_DAEMON, "--endpoint %s: unknown host: %s", c->options.endpoint,
                               uv_strerror(status)));
    return;
  }
  c->remote = !own || !has_socket(c, ep.port);
  if (c->remote) endpoint_format(&ep, c->path);
  int code = c->remote ? ctl_prepare_remote(c, &ep) : 0;
  if (code)
    ctl_finish(c, code);
  else if (c->remote && c->key && ctl_wants_token(c))
    ctl_print_token(c);
  else
    ctl_start(c);
}

int ctl_look_up(struct client *c) {
  struct endpoint ep;
  struct err e = ERR_INIT;
  if (endpoint_parse(c->options.endpoint, RDZV_DEFAULT_PORT, &ep, &e) < 0)
    return ctl_complain(c, EXIT_CODE_USAGE, "--endpoint %s", e.text);
  if (loop_start_pool(&c->loop, POOL, &e) < 0)
    return limit_explain(&e), ctl_complain(c, EXIT_CODE_SYSTEM, "%s", e.text);
  snprintf(c->waits_for, sizeof(c->waits_for), "the address of %.100s", ep.host);
  c->lookup.data = c;
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  int rc = uv_getaddrinfo(&c->loop, &c->lookup, on_lookup, ep.host, NULL, &hints);
  return rc < 0 ? ctl_complain(c, EXIT_CODE_SYSTEM, "--endpoint %s: %s", c->options.endpoint, uv_strerror(rc)) : 0;
}
