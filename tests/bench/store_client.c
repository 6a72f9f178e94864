/* SPDX-License-Identifier: Apache-2.0 */
/* A client of stores for tests/bench/store: many connections in one thread, each in a closed loop.
 *
 *   store-client VERB name=value...
 *
 *   load     op=get|set|incr  conns, depth, keys, seconds: each connection sends `depth` requests at once and the next ones when
 *            all are answered. Prints requests per second, latency of a batch (p50, p99), the server's CPU per request.
 *   fill     keys: sets them all
 *   barrier  conns, sources, rounds: all of them, from that many addresses of 127.0.0.0/8, meet at a fresh key each time
 *   connect  conns, sources: opens them and lets each be answered once; prints the time and what
 *            the server's resident memory has grown by, when all are at rest
 *
 * host and port say where, pid whose CPU and memory (0: not asked), protocol=redis that it is Redis. What has no
 * reply (SET in c10d) is followed by a PING, so that it is known to have been done: then one "set" is two requests to
 * the server.
 *
 * CPU is user and system of all threads: from schedstat where the kernel has it (nanoseconds), else from stat
 * (ticks). */

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/mem.h"
#include "proto/c10d.h"

enum { VALUE_BYTES = 32, EVENTS = 512, FILL_BATCH = 1000, SAMPLES_MAX = 1 << 23 };

static struct {
  const char *host, *op, *protocol;
  long port, pid, conns, depth, keys, rounds, sources;
  double seconds;
  bool redis;
} o = {.host = "127.0.0.1",
       .op = "get",
       .protocol = "c10d",
       .conns = 1,
       .depth = 1,
       .keys = 1000,
       .rounds = 10,
       .sources = 100,
       .seconds = 1};

struct link {
  int fd;
  long waiting; /* replies that are still to come */
  double sent_at;
  struct buf in;
};

static struct link *links;
static int epoll_fd;
static uint64_t random_state = 88172645463325252u;

static _Noreturn void die(const char *what) {
  fprintf(stderr, "store-client: %s: %s\n", what, errno ? strerror(errno) : "wrong");
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

/* The server ------------------------------------------------------------------------------------------------------- */

static double cpu_of_task(const char *task) {
  char path[300];
  snprintf(path, sizeof(path), "/proc/%ld/task/%s/schedstat", o.pid, task);
  FILE *f = fopen(path, "r");
  double ns = 0;
  if (f && fscanf(f, "%lf", &ns) != 1) ns = 0;
  if (f) fclose(f);
  return ns * 1e-9;
}

static double cpu_from_stat(void) {
  char path[64], line[1024];
  snprintf(path, sizeof(path), "/proc/%ld/stat", o.pid);
  FILE *f = fopen(path, "r");
  unsigned long user = 0, sys = 0;
  if (!f || !fgets(line, sizeof(line), f)) die(path);
  fclose(f);
  const char *behind = strrchr(line, ')');
  if (!behind || sscanf(behind + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &sys) != 2) die(path);
  return (double)(user + sys) / (double)sysconf(_SC_CLK_TCK);
}

static double server_cpu(void) {
  if (!o.pid) return 0;
  char path[64];
  snprintf(path, sizeof(path), "/proc/%ld/task", o.pid);
  DIR *d = opendir(path);
  double sum = 0;
  if (!d) die(path);
  for (struct dirent *e; (e = readdir(d));)
    if (e->d_name[0] != '.') sum += cpu_of_task(e->d_name);
  closedir(d);
  return sum > 0 ? sum : cpu_from_stat();
}

static double server_kib(void) {
  if (!o.pid) return 0;
  char path[64], line[256];
  double kib = 0;
  snprintf(path, sizeof(path), "/proc/%ld/status", o.pid);
  FILE *f = fopen(path, "r");
  if (!f) die(path);
  while (fgets(line, sizeof(line), f))
    if (sscanf(line, "VmRSS: %lf", &kib) == 1) break;
  fclose(f);
  return kib;
}

/* Requests --------------------------------------------------------------------------------------------------------- */

static void put_request(struct buf *b, struct c10d_request r) {
  size_t n = c10d_encode(C10D_SINCE_2_2, &r, NULL, 0);
  c10d_encode(C10D_SINCE_2_2, &r, buf_reserve(b, n), n);
  buf_commit(b, n);
}

static void put_redis(struct buf *b, const char *op, const char *key, size_t key_len, const char *value) {
  buf_printf(b, "*%d\r\n$%zu\r\n%s\r\n$%zu\r\n%.*s\r\n", value ? 3 : 2, strlen(op), op, key_len, (int)key_len, key);
  if (value) buf_printf(b, "$%d\r\n%.*s\r\n", VALUE_BYTES, VALUE_BYTES, value);
}

/* Key number i: names of equal length, in a name space that says whether it is a number that is counted. */
static size_t name_key(char out[40], bool counted, uint64_t i) {
  return (size_t)snprintf(out, 40, "/bench/%s/%012llu", counted ? "n" : "v", (unsigned long long)i);
}

static void put_op(struct buf *b, const char *op, uint64_t i) {
  static const char value[VALUE_BYTES + 1] = "0123456789abcdef0123456789abcdef";
  char name[40];
  bool counts = op[0] == 'i', sets = op[0] == 's';
  size_t len = name_key(name, counts, i);
  struct slice key = {name, len};
  if (o.redis) {
    put_redis(b, counts ? "INCR" : sets ? "SET" : "GET", name, len, sets ? value : NULL);
  } else if (counts) {
    put_request(b, (struct c10d_request){.op = C10D_ADD, .key = key, .number = 1});
  } else if (sets) {
    put_request(b, (struct c10d_request){.op = C10D_SET, .key = key, .value = {value, VALUE_BYTES}});
    put_request(b, (struct c10d_request){.op = C10D_PING, .number = (int64_t)(i & 0xFFFFFFFF)});
  } else {
    put_request(b, (struct c10d_request){.op = C10D_GET, .key = key});
  }
}

/* Bytes of the first whole reply, 0: not all there. */
static size_t redis_reply_size(const char *data, size_t len) {
  const char *end = memchr(data, '\n', len);
  if (!end) return 0;
  size_t head = (size_t)(end - data) + 1, all = head;
  if (data[0] == '-') die(data);
  if (data[0] == '$') all += data[1] == '-' ? 0 : (size_t)atol(data + 1) + 2;
  return all <= len ? all : 0;
}

static size_t reply_size(enum c10d_op op, const char *data, size_t len) {
  if (o.redis) return redis_reply_size(data, len);
  struct c10d_progress p = {0};
  struct c10d_reply r;
  size_t size;
  const char *why = "";
  int rc = c10d_parse_reply(op, 0, data, len, &p, &r, &size, &why);
  if (rc < 0) die(why);
  return rc > 0 ? size : 0;
}

/* Connections ------------------------------------------------------------------------------------------------------ */

static void raise_limit(void) {
  struct rlimit l;
  if (getrlimit(RLIMIT_NOFILE, &l) < 0) die("getrlimit");
  l.rlim_cur = l.rlim_max;
  setrlimit(RLIMIT_NOFILE, &l);
}

static void send_all(int fd, const struct buf *b) {
  for (size_t at = 0; at < b->len;) {
    ssize_t n = send(fd, b->data + at, b->len - at, MSG_NOSIGNAL);
    if (n < 0) die("send");
    at += (size_t)n;
  }
}

static int open_connection(long source) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  if (fd < 0) die("socket");
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (source > 0) {
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7F010000u + (uint32_t)source)};
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *)&from, sizeof(from)) < 0) die("bind");
  }
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)o.port)};
  if (inet_pton(AF_INET, o.host, &to.sin_addr) != 1) die("host");
  if (connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0) die("connect");
  return fd;
}

static void watch(struct link *l) {
  struct epoll_event ev = {.events = EPOLLIN, .data.ptr = l};
  if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, l->fd, &ev) < 0) die("epoll_ctl");
}

/* Opens all; with `greet` each of them said who it is and had an answer. */
static void open_links(long sources, bool greet) {
  struct buf hello = BUF_INIT;
  raise_limit();
  epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  links = xcalloc((size_t)o.conns, sizeof(*links));
  if (!o.redis) {
    put_request(&hello, (struct c10d_request){.op = C10D_VALIDATE, .number = C10D_VALIDATE_MAGIC});
    put_request(&hello, (struct c10d_request){.op = C10D_PING, .number = 7});
  } else {
    buf_puts(&hello, "PING\r\n");
  }
  for (long i = 0; i < o.conns; i++) {
    links[i].fd = open_connection(sources ? 1 + i % sources : 0);
    if (greet) send_all(links[i].fd, &hello);
    watch(&links[i]);
  }
  char answer[7];
  ssize_t size = o.redis ? 7 : 4;
  for (long i = 0; i < o.conns && greet; i++)
    if (recv(links[i].fd, answer, (size_t)size, MSG_WAITALL) != size) die("no answer to PING");
  buf_finish(&hello);
}

/* Reads once; counts off whole replies. True: none is waited for any more. */
static bool read_replies(struct link *l, enum c10d_op op) {
  ssize_t n = recv(l->fd, buf_reserve(&l->in, 65536), 65536, 0);
  if (n <= 0) die("the server closed a connection");
  buf_commit(&l->in, (size_t)n);
  size_t at = 0;
  for (size_t size; l->waiting > 0 && (size = reply_size(op, l->in.data + at, l->in.len - at)) > 0; at += size)
    l->waiting--;
  buf_consume(&l->in, at);
  return l->waiting == 0;
}

static void send_batch(struct link *l, struct buf *b) {
  buf_clear(b);
  for (long i = 0; i < o.depth; i++) put_op(b, o.op, next_random() % (uint64_t)o.keys);
  l->waiting = o.depth;
  l->sent_at = now();
  send_all(l->fd, b);
}

/* Verbs ------------------------------------------------------------------------------------------------------------ */

static int by_size(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

static void load(void) {
  enum c10d_op op = o.op[0] == 'i' ? C10D_ADD : o.op[0] == 's' ? C10D_PING : C10D_GET;
  float *samples = xmalloc(SAMPLES_MAX * sizeof(*samples));
  size_t n = 0, batches = 0;
  struct buf b = BUF_INIT;
  struct epoll_event events[EVENTS];
  open_links(0, true);
  for (long i = 0; i < o.conns; i++) send_batch(&links[i], &b);
  double begin = now(), t = begin, warm = begin + o.seconds * 0.15, cpu = 0;
  for (double end = begin + o.seconds; t < end;) {
    int k = epoll_wait(epoll_fd, events, EVENTS, 1000);
    t = now();
    if (cpu == 0 && t >= warm) {
      cpu = server_cpu();
      begin = t = now();
      end = begin + o.seconds;
      n = batches = 0;
    }
    if (k == 0) die("no answer for a second");
    for (int i = 0; i < k; i++) {
      struct link *l = events[i].data.ptr;
      if (!read_replies(l, op)) continue;
      if (n < SAMPLES_MAX) samples[n++] = (float)(now() - l->sent_at);
      batches++;
      send_batch(l, &b);
    }
  }
  double seconds = now() - begin, requests = (double)batches * (double)o.depth;
  cpu = server_cpu() - cpu;
  qsort(samples, n, sizeof(*samples), by_size);
  printf("rate=%.0f p50_us=%.1f p99_us=%.1f cpu_us=%.3f requests=%.0f\n", requests / seconds,
         1e6 * (double)samples[n / 2], 1e6 * (double)samples[n * 99 / 100], 1e6 * cpu / requests, requests);
}

static void fill_batch(struct buf *b, const char *op, long at, long n) {
  struct link *l = &links[0];
  buf_clear(b);
  for (long i = 0; i < n; i++) put_op(b, op, (uint64_t)(at + i));
  l->waiting = n;
  send_all(l->fd, b);
  while (!read_replies(l, op[0] == 's' ? C10D_PING : C10D_ADD)) {
  }
}

static void fill(void) {
  struct buf b = BUF_INIT;
  o.conns = 1;
  open_links(0, true);
  double begin = now();
  for (long at = 0; at < o.keys; at += FILL_BATCH) {
    long n = o.keys - at < FILL_BATCH ? o.keys - at : FILL_BATCH;
    fill_batch(&b, "set", at, n);
    fill_batch(&b, "incr", at, n);
  }
  printf("seconds=%.3f\n", now() - begin);
}

static void meet(long round, struct buf *b, struct epoll_event *events) {
  char key[64];
  int len = snprintf(key, sizeof(key), "/barrier/%ld/%llx", round, (unsigned long long)next_random());
  buf_clear(b);
  put_request(b, (struct c10d_request){.op = C10D_BARRIER, .key = {key, (size_t)len}, .number = o.conns});
  for (long i = 0; i < o.conns; i++) {
    links[i].waiting = 1;
    send_all(links[i].fd, b);
  }
  for (long left = o.conns; left > 0;) {
    int k = epoll_wait(epoll_fd, events, EVENTS, 10000);
    if (k == 0) die("a barrier was not released in 10 s");
    for (int i = 0; i < k; i++) left -= read_replies(events[i].data.ptr, C10D_BARRIER);
  }
}

static void barrier(void) {
  struct buf b = BUF_INIT;
  struct epoll_event events[EVENTS];
  open_links(o.sources, true);
  float *samples = xcalloc((size_t)o.rounds, sizeof(*samples));
  random_state ^= (uint64_t)getpid() << 20;
  meet(-1, &b, events);
  double cpu = server_cpu();
  for (long i = 0; i < o.rounds; i++) {
    double begin = now();
    meet(i, &b, events);
    samples[i] = (float)(now() - begin);
  }
  cpu = server_cpu() - cpu;
  qsort(samples, (size_t)o.rounds, sizeof(*samples), by_size);
  printf("ms=%.3f cpu_us=%.3f\n", 1e3 * (double)samples[o.rounds / 2], 1e6 * cpu / (double)o.rounds / (double)o.conns);
}

static void connect_many(void) {
  double kib = server_kib(), begin = now();
  open_links(o.sources, true);
  double seconds = now() - begin;
  usleep(200000);
  double cpu = server_cpu(), grown = server_kib() - kib;
  usleep(300000);
  printf("seconds=%.3f kib_each=%.3f cpu_at_rest_us=%.0f\n", seconds, grown / (double)o.conns,
         1e6 * (server_cpu() - cpu));
}

/* Arguments -------------------------------------------------------------------------------------------------------- */

static bool take_argument(const char *arg) {
  static const struct {
    const char *name;
    long *number;
    const char **text;
  } known[] = {{"port", &o.port, NULL},        {"pid", &o.pid, NULL},   {"conns", &o.conns, NULL},
               {"depth", &o.depth, NULL},      {"keys", &o.keys, NULL}, {"rounds", &o.rounds, NULL},
               {"sources", &o.sources, NULL},  {"host", NULL, &o.host}, {"op", NULL, &o.op},
               {"protocol", NULL, &o.protocol}};
  const char *value = strchr(arg, '=');
  if (!value) return false;
  size_t n = (size_t)(value++ - arg);
  if (n == 7 && !strncmp(arg, "seconds", n)) return (o.seconds = atof(value)) > 0;
  for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
    if (strlen(known[i].name) != n || strncmp(arg, known[i].name, n) != 0) continue;
    if (known[i].text)
      *known[i].text = value;
    else
      return (*known[i].number = atol(value)) >= 0;
    return true;
  }
  return false;
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } verbs[] = {{"load", load}, {"fill", fill}, {"barrier", barrier}, {"connect", connect_many}};
  for (int i = 2; i < argc; i++) {
    errno = EINVAL;
    if (!take_argument(argv[i])) die(argv[i]);
  }
  o.redis = !strcmp(o.protocol, "redis");
  for (size_t i = 0; argc > 1 && i < sizeof(verbs) / sizeof(verbs[0]); i++) {
    if (strcmp(argv[1], verbs[i].name) != 0) continue;
    verbs[i].run();
    return 0;
  }
  fprintf(stderr, "usage: store-client load|fill|barrier|connect name=value...\n");
  return 64;
}
