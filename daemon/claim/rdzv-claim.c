/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv-claim WHERE: creates claims for rdzvd --claim WHERE, in a folder or in etcd.
 *
 * A call to a file server has no deadline, and may hold a process in the kernel; libcurl and its libraries are large.
 * Neither belongs into the daemon. So it writes requests to our stdin and reads answers from our stdout (line.h), and
 * kills us if we do not answer.
 *
 * Several lanes, a thread each, carry out requests, so that the claims of many jobs do not wait for each other while
 * etcd is slow. The requests of one job share a lane and keep their order. A request
 * that has waited too long in its lane is answered as failed.
 *
 * At the end of stdin no daemon waits for a creation any more, and a claim that nobody knows of would only stop the next
 * daemon: creations are dropped, ends are carried out. A file server that hangs ends that after a while. The daemon
 * decides when we end: signals from a terminal are ignored. */

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "common/claim_place.h"
#include "common/exit_codes.h"
#include "common/mem.h"
#include "common/siphash.h"
#include "common/system/clock.h"
#include "common/system/file.h"
#include "daemon/claim/etcd.h"
#include "daemon/claim/folder.h"
#include "daemon/claim/line.h"
#include "daemon/claim/name.h"
#include "daemon/job/limits.h"

enum {
  LANES = 16,
  ANSWER_MS = JOB_CLAIM_MS - 1000, /* we answer before the daemon gives up */
  END_S = JOB_CLAIM_MS / 1000,     /* from the end of stdin to ours */
};

struct task {
  struct task *next;
  struct claim_request request;
  uint64_t deadline_ms;
};

struct lane {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t more;
  struct task *first, **last;
  bool ended; /* no task follows */
  struct etcd *etcd;
};

static struct claim_place place;
static struct folder *folder; /* NULL: etcd */
static struct lane lanes[LANES];
static pthread_mutex_t out_mutex = PTHREAD_MUTEX_INITIALIZER;

/* A daemon that is gone reads no answer: the end of stdin ends us, once the ends are created. */
static void answer(uint64_t serial, enum claim_answer a, const char *text) {
  struct buf line = BUF_INIT;
  claim_put_reply(&line, serial, a, text);
  pthread_mutex_lock(&out_mutex);
  file_write_all(STDOUT_FILENO, line.data, line.len);
  pthread_mutex_unlock(&out_mutex);
  buf_finish(&line);
}

/* Lanes. ----------------------------------------------------------------------------------------------------------- */

static void carry_out(struct lane *l, const struct task *t) {
  const struct claim_request *r = &t->request;
  struct buf text = BUF_INIT;
  struct err e = ERR_INIT;
  enum claim_answer a = CLAIM_FAILED;
  if (claim_name_check(r->name, r->ends || r->run, &e)) {
    buf_puts(&text, e.text);
  } else if (monotonic_ms() >= t->deadline_ms) {
    buf_puts(&text, "too many claims wait for this place");
  } else if (r->ends) {
    int rc = folder ? folder_end(folder, r->name, r->content, &e)
                    : etcd_end(l->etcd, r->name, r->content, t->deadline_ms, &e);
    if (rc) buf_puts(&text, e.text);
    a = rc ? CLAIM_FAILED : CLAIM_WON;
  } else if (folder) {
    a = (r->run ? folder_claim_run : folder_create)(folder, r->name, r->content, &text);
  } else {
    a = etcd_claim(l->etcd, r->run, r->name, r->content, t->deadline_ms, &text);
  }
  answer(r->serial, a, buf_text(&text));
  buf_finish(&text);
}

static void *run_lane(void *arg) {
  struct lane *l = arg;
  for (;;) {
    pthread_mutex_lock(&l->mutex);
    while (!l->first && !l->ended) pthread_cond_wait(&l->more, &l->mutex);
    struct task *t = l->first;
    if (t) l->first = t->next;
    if (!l->first) l->last = &l->first;
    bool ended = l->ended;
    pthread_mutex_unlock(&l->mutex);
    if (!t) return NULL;
    if (!ended || t->request.ends) carry_out(l, t);
    claim_request_finish(&t->request);
    free(t);
  }
}

static int start_lanes(struct err *e) {
  for (size_t i = 0; i < LANES; i++) {
    struct lane *l = &lanes[i];
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->more, NULL);
    l->last = &l->first;
    if (!folder) l->etcd = etcd_create(&place);
    int rc = pthread_create(&l->thread, NULL, run_lane, l);
    if (rc) return err_sys(e, -rc, "rdzv-claim cannot start a thread");
  }
  return 0;
}

/* The program. ----------------------------------------------------------------------------------------------------- */

static bool read_line(const char *line, size_t len) {
  struct claim_request r;
  struct err e = ERR_INIT;
  if (claim_read_request(line, len, &r, &e)) {
    fprintf(stderr, "rdzv-claim: a line on stdin is not a request: %s\n", e.text);
    return false;
  }
  struct task *t = xcalloc(1, sizeof *t);
  /* By the first two parts of the name: the user and the job. */
  static const struct siphash_key key;
  size_t n = strcspn(r.name, "/");
  if (r.name[n]) n += 1 + strcspn(r.name + n + 1, "/");
  struct lane *l = &lanes[siphash(&key, r.name, n) % LANES];
  t->request = r;
  t->deadline_ms = monotonic_ms() + ANSWER_MS;
  pthread_mutex_lock(&l->mutex);
  *l->last = t;
  l->last = &t->next;
  pthread_cond_signal(&l->more);
  pthread_mutex_unlock(&l->mutex);
  return true;
}

static int read_requests(void) {
  struct buf in = BUF_INIT;
  bool ok = true;
  for (ssize_t n = 1; ok && n > 0;) {
    n = read(STDIN_FILENO, buf_reserve(&in, 65536), 65536);
    if (n < 0 && errno == EINTR)
      n = 1;
    else if (n > 0)
      buf_commit(&in, (size_t)n);
    for (char *nl; ok && in.len && (nl = memchr(in.data, '\n', in.len));) {
      ok = read_line(in.data, (size_t)(nl - in.data));
      buf_consume(&in, (size_t)(nl - in.data) + 1);
    }
    if (in.len > CLAIM_LINE_MAX) {
      fprintf(stderr, "rdzv-claim: a line on stdin has more than %d bytes\n", CLAIM_LINE_MAX);
      ok = false;
    }
  }
  buf_finish(&in);
  /* A lane that hangs ends with the process. */
  struct timespec until;
  for (size_t i = 0; i < LANES; i++) {
    pthread_mutex_lock(&lanes[i].mutex);
    lanes[i].ended = true;
    pthread_cond_signal(&lanes[i].more);
    pthread_mutex_unlock(&lanes[i].mutex);
  }
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += END_S;
  for (size_t i = 0; i < LANES; i++)
    if (pthread_timedjoin_np(lanes[i].thread, NULL, &until)) _exit(EXIT_CODE_SYSTEM);
  for (size_t i = 0; i < LANES; i++) etcd_destroy(lanes[i].etcd);
  folder_close(folder);
  return ok ? EXIT_CODE_OK : EXIT_CODE_USAGE;
}

static const char help[] =
    "usage: rdzv-claim DIR|etcd://HOST:PORT[,HOST:PORT...]\n\n"
    "Creates claims in a folder or in etcd. rdzvd --claim runs it. By hand, a request on a line of stdin:\n"
    "  {\"serial\": 1, \"create\": \"0/test/1\", \"content\": \"anything\"}   answers won, taken or failed\n"
    "  {\"serial\": 2, \"end\": \"0/test/\"}                             removes it, and ends the test\n"
    "  {\"serial\": 3, \"run\": \"0/job/1/\", \"content\": \"anything\"}   taken while \"0/job/2/\" has claimed the run\n";

int main(int argc, char **argv) {
  static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGTSTP, SIGUSR1, SIGUSR2};
  struct err e = ERR_INIT;
  struct buf warning = BUF_INIT;
  if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) return fputs(help, stdout) < 0;
  if (argc != 2 || argv[1][0] == '-') {
    fprintf(stderr, "rdzv-claim: one argument is needed, the place of claims; rdzv-claim --help describes it\n");
    return EXIT_CODE_USAGE;
  }
  for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
  int code = EXIT_CODE_USAGE;
  if (claim_place_parse(argv[1], &place, &e) == 0) {
    int rc = place.folder ? folder_open(place.folder, &folder, &warning, &e) : etcd_init(&e);
    if (rc == 0) rc = start_lanes(&e);
    code = rc == -ENOSYS ? EXIT_CODE_USAGE : rc ? EXIT_CODE_SYSTEM : EXIT_CODE_OK;
  }
  answer(CLAIM_READY_SERIAL, code ? CLAIM_FAILED : CLAIM_WON, code ? e.text : buf_text(&warning));
  buf_finish(&warning);
  return code ? code : read_requests();
}
