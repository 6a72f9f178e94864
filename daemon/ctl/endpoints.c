/* SPDX-License-Identifier: Apache-2.0 */
/* The daemons of --endpoint, one after the other.
 *
 *   look the name up -> this machine: its control socket; else the port, with a key -> ask
 *
 * If several are named, the first that answers is asked. A question about one job is for the daemon in charge of it, so
 * each daemon is asked for the job's status first, on a connection of its own: a daemon answers one question per
 * connection. A failure is a reason to ask the next one, and the last failure names them all. */

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include "common/endpoint.h"
#include "common/exit_codes.h"
#include "common/key/secret.h"
#include "common/err.h"
#include "common/system/loop.h"
#include "daemon/ctl/answers.h"
#include "daemon/ctl/client.h"

enum { ELSEWHERE = 1 }; /* as of a daemon that has no such job */

const struct endpoint *ctl_endpoint(const struct client *c) {
  return &c->endpoints[c->at];
}

static bool is_address_of_this_machine(const struct sockaddr *sa) {
  char text[64], own[64];
  if (uv_ip_name(sa, text, sizeof(text)) < 0) return false;
  struct ipaddr wanted = ipaddr_parse(text);
  if (ipaddr_is_loopback(&wanted)) return true;
  uv_interface_address_t *v;
  int n = 0;
  bool found = false;
  if (uv_interface_addresses(&v, &n) < 0) return false;
  for (int i = 0; i < n && !found; i++) {
    uv_ip_name((const struct sockaddr *)&v[i].address, own, sizeof(own));
    struct ipaddr a = ipaddr_parse(own);
    found = ipaddr_compare(&a, &wanted) == 0;
  }
  uv_free_interface_addresses(v, n);
  return found;
}

/* Takes them from a lookup, with the port. Returns whether one of them is this machine's. */
static bool keep_addresses(struct addresses *all, const struct addrinfo *found, uint16_t port) {
  bool own = false;
  for (const struct addrinfo *a = found; a && all->n < ADDRESSES_MAX; a = a->ai_next) {
    if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
    own = own || is_address_of_this_machine(a->ai_addr);
    struct sockaddr_storage *to = &all->v[all->n++];
    memcpy(to, a->ai_addr, a->ai_addrlen);
    if (a->ai_family == AF_INET)
      ((struct sockaddr_in *)to)->sin_port = htons(port);
    else
      ((struct sockaddr_in6 *)to)->sin6_port = htons(port);
  }
  return own;
}

static void on_lookup(uv_getaddrinfo_t *request, int status, struct addrinfo *result) {
  struct client *c = request->data;
  size_t which = (size_t)(request - c->lookups);
  bool wanted = c->looking[which] == LOOKUP_AWAITED;
  c->looking[which] = LOOKUP_NONE;
  bool own = wanted && status == 0 && keep_addresses(&c->addresses, result, ctl_endpoint(c)->port);
  uv_freeaddrinfo(result);
  if (!wanted) return;
  if (status < 0) {
    ctl_fail(c, EXIT_CODE_NO_DAEMON, "--endpoint %s: unknown host: %s", c->path, uv_strerror(status));
    return;
  }
  c->remote = true;
  if (own) { /* the daemon there may have a control socket here */
    char **paths;
    struct control_foreign foreign;
    size_t n = control_socket_find(ctl_endpoint(c)->port, &paths, &foreign);
    if (n > 0) snprintf(c->path, sizeof(c->path), "%s", paths[0]);
    c->found = n > 0;
    c->remote = !c->found;
    control_socket_free(paths, n);
  }
  if (c->remote && !ctl_prepare_remote(c)) return;
  if (c->remote && c->key && ctl_wants_token(c))
    ctl_print_token(c);
  else
    ctl_start(c);
}

void ctl_daemon_name(const struct client *c, size_t at, char name[TARGET_MAX]) {
  char text[ENDPOINT_TEXT_MAX];
  if (!c->sockets[at]) endpoint_format(&c->endpoints[at], text);
  snprintf(name, TARGET_MAX, "%s", c->sockets[at] ? c->sockets[at] : text);
}

static void begin_endpoint(struct client *c) {
  if (c->sockets[c->at]) {
    /* One of several daemons of this machine. */
    snprintf(c->path, sizeof(c->path), "%s", c->sockets[c->at]);
    c->remote = false;
    c->found = true;
    c->sounding = c->request.job[0];
    ctl_start(c);
    return;
  }
  endpoint_format(ctl_endpoint(c), c->path);
  secret_free(c->key);
  c->key = NULL;
  c->addresses.n = c->address = 0;
  c->remote = c->found = false;
  c->sounding = c->n_endpoints > 1 && c->request.job[0];
  uv_timer_start(&c->timer, ctl_on_deadline, ctl_patience_ms(c), 0);
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  uv_getaddrinfo_t *request = &c->lookups[c->at];
  snprintf(c->waits_for, sizeof(c->waits_for), "the address of %.100s", ctl_endpoint(c)->host);
  request->data = c;
  int rc = c->looking[c->at] == LOOKUP_NONE
               ? uv_getaddrinfo(&c->loop, request, on_lookup, ctl_endpoint(c)->host, NULL, &hints)
               : 0; /* the name server still has not answered the last question */
  c->looking[c->at] = rc < 0 ? LOOKUP_NONE : LOOKUP_AWAITED;
  if (rc < 0) ctl_fail(c, EXIT_CODE_SYSTEM, "--endpoint %s: %s", c->path, uv_strerror(rc));
}

int ctl_begin_endpoints(struct client *c) {
  struct err e = ERR_INIT;
  if (endpoint_list_parse(c->options.endpoint, RDZV_DEFAULT_PORT, c->endpoints, DAEMONS_MAX, &c->n_endpoints, &e) < 0)
    return ctl_complain(c, EXIT_CODE_USAGE, "--endpoint %s: %s", c->options.endpoint, e.text);
  if (loop_start_pool(&c->loop, POOL, &e) < 0)
    return limit_explain(&e), ctl_complain(c, EXIT_CODE_SYSTEM, "%s", e.text);
  begin_endpoint(c);
  return 0;
}

static void begin_question(struct client *c) {
  c->asked = 0;
  buf_clear(&c->failures);
  c->failure_code = 0;
  if (ctl_looks_at_all(c)) ctl_begin_look(c);
}

void ctl_start_again(struct client *c) {
  begin_question(c);
  ctl_start(c);
}

void ctl_begin_again(struct client *c) {
  begin_question(c);
  if (c->n_endpoints > 1 || c->sockets[0])
    begin_endpoint(c);
  else
    ctl_start(c);
}

void ctl_go_to(struct client *c, size_t at) {
  if (c->looking[c->at] == LOOKUP_AWAITED) c->looking[c->at] = LOOKUP_LATE;
  c->at = at;
  ctl_cancel_munge(c);
  c->then = begin_endpoint;
  if (c->has_conn)
    conn_close(&c->conn);
  else
    begin_endpoint(c);
}

/* A daemon that answered explains more than one that did not. */
bool ctl_ask_next(struct client *c, int exit_code, const char *why) {
  if (c->n_endpoints < 2) return false;
  buf_printf(&c->failures, "%s%s", c->failures.len ? "; " : "", why);
  if (!c->failure_code || exit_code != EXIT_CODE_NO_DAEMON) c->failure_code = exit_code;
  if (++c->asked >= c->n_endpoints) return false;
  ctl_go_to(c, (c->at + 1) % c->n_endpoints);
  return true;
}

bool ctl_is_right_daemon(struct client *c, int code, const char *json, size_t len) {
  char text[TARGET_MAX];
  struct buf said = BUF_INIT;
  enum ctl_standing standing = ctl_standing_of(code, json, len, &said);
  ctl_daemon_name(c, c->at, text);
  c->sounding = false;
  if (standing != CTL_IN_CHARGE) ctl_fail(c, code ? code : ELSEWHERE, "%s: %s", text, buf_text(&said));
  buf_finish(&said);
  return standing == CTL_IN_CHARGE;
}
