/* SPDX-License-Identifier: Apache-2.0 */
/* agent/output/relay.c: output from pipes of the test to a slow reader, a terminal, files. */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/system/clock.h"
#include "common/mem.h"
#include "tests/rig/relay.h"
#include "tests/rig/unit.h"

enum { N_LINES = 100000 };

UNIT_TEST_WITH(test_lines_and_prefixes, NULL, relay_rig_close) {
  int out[2], err[2];
  relay_rig_open((struct relay_options){0});
  open_worker(0, "[0] ", &out[0], &err[0]);
  open_worker(1, "", &out[1], &err[1]);
  assert_true(fcntl(out[0], F_GETFD) & FD_CLOEXEC);
  assert_false(fcntl(out[0], F_GETFL) & O_NONBLOCK); /* a worker would not expect that of its stdout */
  const char *letters = "split over many writes\n";
  for (size_t i = 0; letters[i]; i++) put(out[0], (char[]){letters[i], '\0'});
  put(out[0], "dos\r\n\nno newline");
  put(err[0], "an error\n");
  close_worker(0, out[0], err[0]);
  check_content(d.out, "[0] split over many writes\n[0] dos\r\n[0] \n[0] no newline\n");
  check_content(d.err, "[0] an error\n");
  put(out[1], "plain\n");
  close_worker(1, out[1], err[1]);
  char *text = content(d.out);
  assert_non_null(strstr(text, "\nplain\n"));
  free(text);
}

/* Recent lines are kept wherever else they go, with the place that the worker had when it wrote them. */
UNIT_TEST_WITH(test_recent_lines, NULL, relay_rig_close) {
  int out, err;
  struct buf b = BUF_INIT;
  struct worker_line l;
  struct recent_answer a;
  struct relay_source w = {.local_rank = 1, .rank = 9, .round = 1, .prefix = "[9] "};
  relay_rig_open((struct relay_options){.workers = 2});
  open_any(w, &out, &err);
  put(out, "one\n10 %\r20 %\rlast\n30 %\r40 %\r");
  put(err, "two\nno newline");
  close_worker(1, out, err);
  check_content(d.out, "");
  relay_recent(d.r, &(struct recent_question){.rank = 9, .tail = -1, .max = 65536}, &b, &a);
  char out_text[256] = "", err_text[256] = "";
  for (size_t at = 0; at < b.len; at += (size_t)worker_line_get(b.data + at, b.len - at, &l, NULL)) {
    assert_true(worker_line_get(b.data + at, b.len - at, &l, NULL) > 0);
    assert_true(l.rank == 9 && l.round == 1 && l.wall_ms && l.prefix_len == 4);
    char *text = l.is_err ? err_text : out_text;
    strncat(text, l.text, l.text_len);
    strcat(text, "|");
  }
  assert_string_equal(err_text, "two|no newline|");
  assert_string_equal(out_text, "one|last|40 %|");
  buf_clear(&b);
  w.rank = 3, w.round = 2;
  open_any(w, &out, &err); /* the next round */
  put(out, "again\n");
  close_worker(1, out, err);
  relay_recent(d.r, &(struct recent_question){.rank = 3, .tail = -1, .max = 65536}, &b, &a);
  assert_int_equal(b.len, WORKER_LINE_HEADER + 4 + 5);
  buf_finish(&b);
}

/* When a worker printed is noted; and that nobody takes what it prints. */
UNIT_TEST_WITH(test_signs_of_output, NULL, relay_rig_close) {
  uint64_t from = boot_ms();
  int out[2], err[2], terminal[2];
  assert_int_equal(pipe(terminal), 0);
  relay_rig_open((struct relay_options){.out = terminal[1]});
  open_worker(0, "", &out[0], &err[0]);
  open_worker(2, "", &out[1], &err[1]);
  for (int i = 0; i < 3; i += 2) assert_int_equal(relay_heard_ms(d.pipes[i]), 0);
  put(err[1], "no newline");
  for (uint64_t end = from + DEADLINE_MS; !relay_heard_ms(d.pipes[2]) && boot_ms() < end;) usleep(1000);
  assert_in_range(relay_heard_ms(d.pipes[2]), from, boot_ms());
  assert_int_equal(relay_heard_ms(d.pipes[0]), 0);
  assert_false(relay_is_held(d.r));
  fcntl(out[0], F_SETFL, O_NONBLOCK);
  char text[4096];
  memset(text, '\n', sizeof(text));
  for (uint64_t end = boot_ms() + DEADLINE_MS; !relay_is_held(d.r) && boot_ms() < end; usleep(1000))
    while (write(out[0], text, sizeof(text)) > 0) continue;
  assert_true(relay_is_held(d.r));
  fcntl(terminal[0], F_SETFL, O_NONBLOCK);
  for (uint64_t end = boot_ms() + DEADLINE_MS; relay_is_held(d.r) && boot_ms() < end; usleep(1000))
    while (read(terminal[0], text, sizeof(text)) > 0) continue;
  assert_false(relay_is_held(d.r));
  close(out[0]);
  close(out[1]);
  close(err[0]);
  close(err[1]);
  close(terminal[0]); /* nobody is to read the rest */
}

UNIT_TEST_WITH(test_long_line, NULL, relay_rig_close) {
  int out, err;
  relay_rig_open((struct relay_options){0});
  open_worker(0, "> ", &out, &err);
  char *line = xmalloc(RELAY_LINE_MAX + 12);
  memset(line, 'x', RELAY_LINE_MAX + 10);
  memcpy(line + RELAY_LINE_MAX + 10, "\n", 2);
  put(out, line);
  close_worker(0, out, err);
  char *text = content(d.out);
  assert_int_equal(strlen(text), RELAY_LINE_MAX + 10 + 2 * 3);
  assert_string_equal(text + 2 + RELAY_LINE_MAX, "\n> xxxxxxxxxx\n");
  free(text);
  free(line);
}

/* ------------------------------------------------------------ many lines */

struct writer {
  int fd, id;
};

static void *write_lines(void *arg) {
  const struct writer *w = arg;
  char line[64];
  for (int i = 0; i < N_LINES; i++) {
    snprintf(line, sizeof(line), "%d %d abcdefghijklmnop\n", w->id, i);
    put(w->fd, line);
  }
  close(w->fd);
  return NULL;
}

/* Reads slowly at first, so that every pipe on the way is full; checks that each worker's lines are whole and in
 * order. */
static void read_lines(int fd, int n_workers) {
  int next[2] = {0};
  char line[128], *buffer = xmalloc(1 << 20);
  FILE *f = fdopen(fd, "r");
  setvbuf(f, buffer, _IOFBF, 100);
  for (long i = 0; i < (long)n_workers * N_LINES; i++) {
    int id, count;
    if (!fgets(line, sizeof(line), f)) fail_msg("the end after %ld lines", i);
    if (sscanf(line, "[%*d] %d %d abcdefghijklmnop\n", &id, &count) != 2 || id < 0 || id > 1)
      fail_msg("torn: %s", line);
    assert_int_equal(count, next[id]);
    next[id]++;
    if (i < 200) poll(NULL, 0, 1);
  }
  fclose(f);
  free(buffer);
}

UNIT_TEST_WITH(test_slow_reader, NULL, relay_rig_close) {
  int p[2], err[2];
  assert_int_equal(pipe2(p, O_CLOEXEC), 0);
  relay_rig_open((struct relay_options){.out = p[1]});
  struct writer w[2] = {{.id = 0}, {.id = 1}};
  pthread_t threads[2];
  open_worker(0, "[0] ", &w[0].fd, &err[0]);
  open_worker(1, "[1] ", &w[1].fd, &err[1]);
  for (int i = 0; i < 2; i++) {
    close(err[i]);
    pthread_create(&threads[i], NULL, write_lines, &w[i]);
  }
  read_lines(p[0], 2);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  close_worker(0, -1, -1);
  close_worker(1, -1, -1);
}

/* The descriptor may be non-blocking, made so by whoever else has it. */
UNIT_TEST_WITH(test_nonblocking_terminal, NULL, relay_rig_close) {
  int p[2], err;
  assert_int_equal(pipe2(p, O_CLOEXEC), 0);
  fcntl(p[1], F_SETFL, O_NONBLOCK);
  relay_rig_open((struct relay_options){.out = p[1]});
  struct writer w = {.id = 0};
  pthread_t thread;
  open_worker(0, "[0] ", &w.fd, &err);
  close(err);
  pthread_create(&thread, NULL, write_lines, &w);
  read_lines(p[0], 1);
  pthread_join(thread, NULL);
}

/* Nobody reads: destroy comes back after its deadline. */
UNIT_TEST_WITH(test_destroy_with_a_stuck_terminal, NULL, relay_rig_close) {
  int p[2], out, err;
  assert_int_equal(pipe2(p, O_CLOEXEC), 0);
  fcntl(p[1], F_SETPIPE_SZ, 4096);
  relay_rig_open((struct relay_options){.out = p[1]});
  open_worker(0, "", &out, &err);
  for (int i = 0; i < 1000; i++) put(out, "a line that fills the pipe behind which nobody sits and waits\n");
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  relay_destroy(d.r, 100);
  d.r = NULL;
  clock_gettime(CLOCK_MONOTONIC, &b);
  long took = (b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000;
  assert_true(took >= 99);
  close(out);
  close(err);
  close(p[0]);
}

/* What is in the pipes when the relay is destroyed is still written, though the worker holds them open. */
UNIT_TEST_WITH(test_destroy_reads_once_more, NULL, relay_rig_close) {
  int out, err;
  relay_rig_open((struct relay_options){0});
  open_worker(0, "", &out, &err);
  put(out, "the last words\nand a half");
  int kept = dup(d.out);
  relay_destroy(d.r, DEADLINE_MS);
  d.r = NULL;
  check_content(kept, "the last words\nand a half\n");
  assert_int_equal(write(out, "x", 1), -1);
  assert_int_equal(errno, EPIPE);
  close(out);
  close(err);
  close(kept);
}

UNIT_TEST_WITH(test_reader_gone, NULL, relay_rig_close) {
  int p[2], out, err;
  char text[RELAY_TROUBLE_MAX];
  assert_int_equal(pipe2(p, O_CLOEXEC), 0);
  close(p[0]);
  relay_rig_open((struct relay_options){.out = p[1]});
  open_worker(0, "", &out, &err);
  put(out, "nobody\n");
  next_trouble(text);
  assert_non_null(strstr(text, "stdout: Broken pipe"));
  put(out, "hears\n");
  put(err, "still here\n");
  close_worker(0, out, err);
  check_content(d.err, "still here\n");
}

/* ----------------------------------------------------------------- files */

static void remove_tree(const char *dir) {
  char command[600];
  snprintf(command, sizeof(command), "rm -rf '%s'", dir);
  assert_int_equal(system(command), 0);
}

static struct relay_source with_files(const char *dir, char names[2][128], bool shown) {
  snprintf(names[0], sizeof(names[0]), "%s/2/stdout.log", dir);
  snprintf(names[1], sizeof(names[1]), "%s/2/stderr.log", dir);
  return (struct relay_source){.local_rank = 2,
                               .prefix = "[2] ",
                               .out = {.file = names[0], .shown = shown},
                               .err = {.file = names[1], .shown = shown}};
}

UNIT_TEST_WITH(test_files, NULL, relay_rig_close) {
  char dir[] = "/tmp/rdzv-relay-XXXXXX", deep[64], names[2][128], tail[RELAY_TAIL_MAX + 1];
  assert_non_null(mkdtemp(dir));
  snprintf(deep, sizeof(deep), "%s/a/b", dir);
  int out, err;
  relay_rig_open((struct relay_options){0});
  open_any(with_files(deep, names, false), &out, &err);
  put(out, "to the file\nno end");
  put(err, "bad\r\n");
  close_worker(2, out, err);
  check_content(d.out, ""); /* only to files */
  check_content(d.err, "");
  check_file(deep, "2/stdout.log", "to the file\nno end");
  check_file(deep, "2/stderr.log", "bad\r\n");
  relay_tail(d.r, d.pipes[2], tail);
  assert_string_equal(tail, "bad\r\n");                /* what the terminal did not get the verdict has all the same */
  open_any(with_files(deep, names, true), &out, &err); /* the same again: appended; and shown */
  put(out, "\nmore\n");
  close_worker(2, out, err);
  check_file(deep, "2/stdout.log", "to the file\nno end\nmore\n");
  check_content(d.out, "[2] \n[2] more\n");
  remove_tree(dir);
}

UNIT_TEST_WITH(test_files_cannot_be_written, NULL, relay_rig_close) {
  char dir[] = "/tmp/rdzv-relay-XXXXXX", names[2][128], text[RELAY_TROUBLE_MAX];
  int fd = mkstemp(dir), out, err;
  assert_true(fd >= 0);
  close(fd);
  relay_rig_open((struct relay_options){0});
  open_any(with_files(dir, names, false), &out, &err); /* below a file */
  next_trouble(text);
  assert_non_null(strstr(text, "/2/stdout.log: Not a directory"));
  next_trouble(text);
  assert_non_null(strstr(text, "/2/stderr.log: Not a directory"));
  put(out, "not lost\n");
  close_worker(2, out, err);
  check_content(d.out, "[2] not lost\n");
  unlink(dir);
}

UNIT_TEST_WITH(test_not_shown, NULL, relay_rig_close) {
  int out, err;
  relay_rig_open((struct relay_options){0});
  open_any((struct relay_source){.err.shown = true, .prefix = "> "}, &out, &err);
  put(out, "not this\n");
  put(err, "this\n");
  close_worker(0, out, err);
  check_content(d.out, "");
  check_content(d.err, "> this\n");
}

/* Lines with one of the texts, of both workers, whole and labelled; the rest of the file's name is made. */
UNIT_TEST_WITH(test_filtered, NULL, relay_rig_close) {
  char dir[] = "/tmp/rdzv-relay-XXXXXX", name[64];
  const struct opt_strings texts = {.n = 2, .v = {"loss", "a, b"}};
  int out[2], err[2];
  assert_non_null(mkdtemp(dir));
  snprintf(name, sizeof(name), "%s/attempt_0/filtered_stdout.log", dir);
  relay_rig_open((struct relay_options){.out_filters = &texts});
  for (uint32_t i = 0; i < 2; i++) {
    const char *label = i ? "[default1]:" : "[default0]:";
    struct relay_place place = {.filtered = name, .shown = true};
    open_any((struct relay_source){.local_rank = i, .label = label, .out = place, .err = place}, &out[i], &err[i]);
  }
  put(out[0], "the lo");
  put(err[0], "loss: stderr has no filter\n");
  put(out[0], "ss is 1\nnothing\n");
  close_worker(0, out[0], err[0]);
  put(out[1], "los\nbetween a, b and c\nlast loss");
  close_worker(1, out[1], err[1]);
  check_file(dir, "attempt_0/filtered_stdout.log",
             "[default0]:the loss is 1\n[default1]:between a, b and c\n[default1]:last loss\n");
  check_content(d.out, "the loss is 1\nnothing\nlos\nbetween a, b and c\nlast loss\n");
  remove_tree(dir);
}

/* ------------------------------------------------------------ agent's own */

UNIT_TEST_WITH(test_tail, NULL, relay_rig_close) {
  int out, err;
  char tail[RELAY_TAIL_MAX + 1], line[64];
  relay_rig_open((struct relay_options){0});
  open_worker(5, "", &out, &err);
  relay_tail(d.r, d.pipes[5], tail);
  assert_string_equal(tail, "");
  for (int i = 0; i < 1000; i++) {
    snprintf(line, sizeof(line), "error %d\n", i);
    put(err, line);
  }
  put(err, "Segmentation");
  put(out, "not this\n");
  close_worker(5, out, err);
  relay_tail(d.r, d.pipes[5], tail);
  assert_memory_equal(tail, "error ", 6);
  size_t n = strlen(tail);
  assert_true(n > RELAY_TAIL_MAX - 20);
  assert_string_equal(tail + n - 23, "error 999\nSegmentation\n");
  open_worker(5, "", &out, &err); /* the next round begins with nothing */
  relay_tail(d.r, d.pipes[5], tail);
  assert_string_equal(tail, "");
  close_worker(5, out, err);
}

UNIT_TEST_WITH(test_many_rounds, NULL, relay_rig_close) {
  int out, err;
  char tail[RELAY_TAIL_MAX + 1];
  relay_rig_open((struct relay_options){0});
  for (int round = 0; round < 300; round++) {
    open_worker(0, "", &out, &err);
    put(err, "x\n");
    close_worker(0, out, err);
    relay_tail(d.r, d.pipes[0], tail);
    assert_string_equal(tail, "x\n");
  }
}

UNIT_TEST_WITH(test_queue_is_bounded, NULL, relay_rig_close) {
  int p[2];
  char line[64], *text;
  assert_int_equal(pipe2(p, O_CLOEXEC), 0);
  fcntl(p[1], F_SETPIPE_SZ, 4096);
  relay_rig_open((struct relay_options){.err = p[1]});
  for (int i = 0; i < 10 * RELAY_QUEUE_MAX; i++) { /* nobody reads: the thread hangs after the first pipe full */
    snprintf(line, sizeof(line), "agent says %d", i);
    relay_say(d.r, line);
  }
  struct buf b = BUF_INIT;
  snprintf(line, sizeof(line), "agent says %d\n", 10 * RELAY_QUEUE_MAX - 1);
  while (!b.len || !strstr(b.data, line)) {
    ssize_t n = read(p[0], buf_reserve(&b, 65536), 65536);
    assert_true(n > 0);
    buf_commit(&b, (size_t)n);
  }
  text = buf_steal(&b);
  long said = 0, dropped = 0; /* together: all of them */
  for (const char *at = text; (at = strstr(at, "agent says ")); at++) said++;
  for (const char *at = text; (at = strstr(at, " lines of the agent were dropped here")); at++) {
    const char *open = at;
    while (*open != '(') open--;
    dropped += strtol(open + 1, NULL, 10);
  }
  assert_true(dropped > 0);
  assert_int_equal(said + dropped, 10 * RELAY_QUEUE_MAX);
  free(text);
  close(p[0]);
}

UNIT_TEST_WITH(test_status_line, NULL, relay_rig_close) {
  int out, err, master = open_desk(true);
  relay_status(d.r, "step 1");
  check_terminal(master, "step 1\x1b[K", "\rstep 1\x1b[K");
  relay_say(d.r, "hello");
  check_terminal(master, "step 1\x1b[K", "\r\x1b[Khello\n\rstep 1\x1b[K");
  open_worker(0, "", &out, &err);
  put(out, "line\n");
  check_terminal(master, "step 1\x1b[K", "\r\x1b[Kline\n\rstep 1\x1b[K");
  relay_status(d.r, "\xc3\xa4\xc3\xb6 is cut to fit"); /* 11 columns of 12 */
  check_terminal(master, "\x1b[K", "\r\xc3\xa4\xc3\xb6 is cut t\x1b[K");
  relay_status(d.r, "");
  check_terminal(master, "\x1b[K", "\r\x1b[K");
  close_worker(0, out, err);
}

int main(void) {
  alarm(100);
  signal(SIGPIPE, SIG_IGN); /* nobody reads what some tests print */
  return unit_run(NULL, NULL);
}
