/* SPDX-License-Identifier: Apache-2.0 */
#include "common/endpoint_list.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* As far as the text tells: two names may stand for one machine. */
static bool is_same(const struct endpoint *a, const struct endpoint *b) {
  struct ipaddr x = ipaddr_parse(a->host), y = ipaddr_parse(b->host);
  bool numeric = x.family && y.family;
  return a->port == b->port && (numeric ? ipaddr_compare(&x, &y) == 0 : strcasecmp(a->host, b->host) == 0);
}

static int parse_one(const char *text, size_t len, uint16_t default_port, struct endpoint *ep, struct err *e) {
  char one[ENDPOINT_TEXT_MAX];
  if (len == 0)
    return err_set(e, -EINVAL, "an address is missing beside a comma: write HOST:PORT,HOST:PORT; is a variable unset?");
  if (len >= sizeof(one))
    return err_set(e, -EINVAL, "\"%.40s...\" is not host:port: it is longer than %d characters", text,
                   ENDPOINT_TEXT_MAX - 1);
  memcpy(one, text, len);
  one[len] = '\0';
  if (one[0] == ':' && one[1] != ':')
    return err_set(e, -EINVAL, "the host in front of the colon is missing: write HOST:PORT; is a variable unset?");
  if (len > 1 && one[len - 1] == ':' && memchr(one, ':', len - 1) == NULL)
    return err_set(e, -EINVAL, "the port behind the colon is missing: write HOST:PORT; is a variable unset?");
  return endpoint_parse(one, default_port, ep, e);
}

int endpoint_list_parse(const char *text, uint16_t default_port, struct endpoint *list, size_t max, size_t *n,
                        struct err *e) {
  size_t found = 0;
  for (const char *at = text; at;) {
    size_t len = strcspn(at, ",");
    struct endpoint ep;
    int rc = parse_one(at, len, default_port, &ep, e);
    if (rc) return rc;
    if (found == max) return err_set(e, -EINVAL, "more than %zu addresses: name at most %zu", max, max);
    for (size_t i = 0; i < found; i++)
      if (is_same(&list[i], &ep)) return err_set(e, -EINVAL, "%.*s is named twice: remove one of them", (int)len, at);
    list[found++] = ep;
    at = at[len] ? at + len + 1 : NULL;
  }
  *n = found;
  return 0;
}
