/* SPDX-License-Identifier: Apache-2.0 */
/* host:port as people write it, and numeric addresses that can be compared. No name is looked up here.
 *
 * The colon is the difficulty: "a:1" is a host with a port, "::1" is an address without one. The rule: brackets hold an
 * IPv6 address, and a port may follow. Without brackets one colon separates host and port, and two or more make the
 * whole text an IPv6 address. So "::1:2940" is an address without a port, "::1:29400" is an error whose sentence shows
 * the brackets, and "fe80:1" is host "fe80", port 1.
 *
 * A name that no resolver can know ("node 1", "tcp://node1") is refused here, where the sentence can give the reason.
 * Digits and dots that are not an IPv4 address are refused too: "10.0.1" is 10.0.0.1 to some resolvers. */

#include "common/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "common/ascii.h"
#include "common/buf.h"

enum { SCOPE_MAX = 15 }; /* IFNAMSIZ - 1 */

static bool is_name_char(char c) {
  return ascii_is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
}

static bool is_scope(const char *s) {
  size_t n = strlen(s);
  for (size_t i = 0; i < n; i++)
    if (!is_name_char(s[i]) && s[i] != '.') return false;
  return n > 0 && n <= SCOPE_MAX;
}

struct ipaddr ipaddr_parse(const char *text) {
  static const uint8_t mapped[12] = {[10] = 0xFF, [11] = 0xFF};
  struct ipaddr a = {.family = 4}, v4 = a;
  char address[INET6_ADDRSTRLEN];
  size_t n = strcspn(text, "%");
  if (inet_pton(AF_INET, text, a.bytes) == 1) return a;
  if (n >= sizeof(address) || (text[n] && !is_scope(text + n + 1))) return (struct ipaddr){0};
  memcpy(address, text, n);
  address[n] = '\0';
  if (inet_pton(AF_INET6, address, a.bytes) != 1) return (struct ipaddr){0};
  a.family = 6;
  memcpy(v4.bytes, a.bytes + 12, 4);
  return memcmp(a.bytes, mapped, sizeof(mapped)) == 0 ? v4 : a;
}

int ipaddr_compare(const struct ipaddr *a, const struct ipaddr *b) {
  if (a->family != b->family) return a->family < b->family ? -1 : 1;
  return memcmp(a->bytes, b->bytes, sizeof(a->bytes));
}

struct ipaddr ipaddr_network(const struct ipaddr *a) {
  struct ipaddr network = *a;
  if (a->family == 6) memset(network.bytes + 8, 0, 8);
  return network;
}

bool ipaddr_is_loopback(const struct ipaddr *a) {
  static const uint8_t one[16] = {[15] = 1};
  return a->family == 4 ? a->bytes[0] == 127 : a->family == 6 && memcmp(a->bytes, one, sizeof(one)) == 0;
}

bool ipaddr_is_linklocal(const struct ipaddr *a) {
  if (a->family == 4) return a->bytes[0] == 169 && a->bytes[1] == 254;
  return a->family == 6 && a->bytes[0] == 0xFE && (a->bytes[1] & 0xC0) == 0x80;
}

/* Sets "\"<text>\": <why>". */
static int refuse(struct err *e, const char *text, const char *why) {
  char shown[TEXT_SHOWN];
  return err_set(e, -EINVAL, "\"%s\" is not host:port: %s", text_shown(shown, text, strlen(text)), why);
}

/* The error in a host, or NULL. */
static const char *check_host(const char *host, bool brackets) {
  size_t n = strlen(host);
  bool numeric = true;
  if (n == 0) return "the host is missing";
  if (brackets || strchr(host, ':')) {
    if (ipaddr_parse(host).family == 0 || !strchr(host, ':'))
      return "text with several colons or with brackets must be an IPv6 address, as in [::1]:29400";
    return NULL;
  }
  for (size_t i = 0; i < n; i++) {
    if (!is_name_char(host[i]) && host[i] != '.') return "a host has letters, digits, dots and dashes only";
    numeric = numeric && (ascii_is_digit(host[i]) || host[i] == '.');
  }
  if (numeric && ipaddr_parse(host).family == 0) return "these digits are not an IPv4 address";
  if (host[0] == '.' || host[0] == '-' || strstr(host, ".."))
    return "a host must not begin with a dot or dash, or have two dots in a row";
  return NULL;
}

static bool parse_port(const char *s, uint16_t *port) {
  unsigned v = 0;
  size_t n = strlen(s);
  if (n == 0 || n > 5) return false;
  for (size_t i = 0; i < n; i++) {
    if (!ascii_is_digit(s[i])) return false;
    v = v * 10 + (unsigned)(s[i] - '0');
  }
  *port = (uint16_t)v;
  return v <= 65535;
}

int endpoint_parse(const char *text, uint16_t default_port, struct endpoint *ep, struct err *e) {
  bool brackets = text[0] == '[';
  const char *host = brackets ? text + 1 : text, *end = NULL, *port = NULL;
  if (strstr(text, "://")) return refuse(e, text, "write it without the scheme");
  if (brackets) {
    end = strchr(host, ']');
    if (!end) return refuse(e, text, "the closing bracket is missing");
    if (end[1] != '\0' && end[1] != ':') return refuse(e, text, "only :port may follow the bracket");
    port = end[1] ? end + 2 : NULL;
  } else {
    const char *colon = strchr(host, ':');
    bool one = colon && !strchr(colon + 1, ':');
    end = one ? colon : host + strlen(host);
    port = one ? colon + 1 : NULL;
  }
  size_t n = (size_t)(end - host);
  if (n >= ENDPOINT_HOST_MAX) return refuse(e, text, "the host is longer than 255 characters");
  struct endpoint out = {.port = default_port};
  memcpy(out.host, host, n);
  const char *why = check_host(out.host, brackets);
  if (why) return refuse(e, text, why);
  if (port && !parse_port(port, &out.port)) return refuse(e, text, "a port is a number from 0 to 65535");
  *ep = out;
  return 0;
}

void endpoint_format(const struct endpoint *ep, char out[ENDPOINT_TEXT_MAX]) {
  bool v6 = strchr(ep->host, ':') != NULL;
  snprintf(out, ENDPOINT_TEXT_MAX, "%s%s%s:%u", v6 ? "[" : "", ep->host, v6 ? "]" : "", (unsigned)ep->port);
}

/* Lists. ----------------------------------------------------------------------------------------------------------- */

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
    struct ipaddr addr = ipaddr_parse(ep.host);
    for (size_t i = 0; i < found; i++) { /* as far as the text tells: two names may stand for one machine */
      struct ipaddr other = ipaddr_parse(list[i].host);
      bool same = addr.family && other.family ? ipaddr_compare(&addr, &other) == 0 : !strcasecmp(list[i].host, ep.host);
      if (same && list[i].port == ep.port)
        return err_set(e, -EINVAL, "%.*s is named twice: remove one of them", (int)len, at);
    }
    list[found++] = ep;
    at = at[len] ? at + len + 1 : NULL;
  }
  *n = found;
  return 0;
}
