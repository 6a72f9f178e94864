/* SPDX-License-Identifier: Apache-2.0 */
/* Claims in a folder, on this machine's disk and in its memory. linkat is wrapped, so that its answer can be lost. */

#include "daemon/claim/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tests/rig/unit.h"

enum { RACERS = 2, CLAIMS = 1000, RUNS = 50, NOBODY = 65534 };

int __real_linkat(int from, const char *a, int to, const char *b, int flags);
int __wrap_linkat(int from, const char *a, int to, const char *b, int flags);

static int lost;           /* not 0: linkat's answer, whatever happens */
static bool carried_out;   /* it happens */
static void (*then)(void); /* what another daemon does right behind it; once */

int __wrap_linkat(int from, const char *a, int to, const char *b, int flags) {
  if (then) {
    void (*act)(void) = then;
    then = NULL;
    assert_int_equal(__real_linkat(from, a, to, b, flags), 0);
    act();
    return 0;
  }
  if (!lost) return __real_linkat(from, a, to, b, flags);
  if (carried_out) __real_linkat(from, a, to, b, flags);
  errno = lost;
  return -1;
}

/* Every test runs in a folder of each. */
static const char *const roots[] = {"/tmp", "/dev/shm"};
static char path[64];
static struct folder *folder;

static struct folder *open_folder(const char *at) {
  struct folder *f = NULL;
  struct err e = ERR_INIT;
  struct buf warning = BUF_INIT;
  if (folder_open(at, &f, &warning, &e)) fail_msg("%s", e.text);
  buf_finish(&warning);
  return f;
}

static void remove_tree(const char *at) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", at);
  assert_int_equal(system(command), 0);
}

static void on_each(void (*test)(void)) {
  for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
    snprintf(path, sizeof path, "%s/test_folder.XXXXXX", roots[i]);
    assert_non_null(mkdtemp(path));
    folder = open_folder(path);
    test();
    folder_close(folder);
    remove_tree(path);
  }
}

static size_t count_files(void) {
  DIR *d = opendir(path);
  size_t n = 0;
  for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
  closedir(d);
  return n;
}

static void expect(const char *name, const char *content, enum claim_answer wanted, const char *text) {
  struct buf there = BUF_INIT;
  enum claim_answer a = folder_create(folder, name, content, &there);
  if (a != wanted || !strstr(buf_text(&there), text)) fail_msg("%s: %d, '%s'", name, (int)a, buf_text(&there));
  if (a == CLAIM_TAKEN) assert_string_equal(buf_text(&there), text);
  buf_finish(&there);
}

static char *in_folder(const char *name) {
  static char at[160];
  snprintf(at, sizeof at, "%s/%s", path, name);
  return at;
}

static void put_file(const char *name, const char *text) {
  FILE *f = fopen(in_folder(name), "w");
  fputs(text, f);
  fclose(f);
}

static void once(void) {
  struct err e = ERR_INIT;
  struct stat st;
  expect("0/j/i/1", "mine", CLAIM_WON, "");
  expect("0/j/i/1", "mine", CLAIM_WON, "");
  expect("0/j/i/1", "mine and more", CLAIM_TAKEN, "mine");
  expect("0/j/i/2", "", CLAIM_WON, "");
  expect("0/j/i/2", "x", CLAIM_TAKEN, "");
  expect("0/job/i/1", "other", CLAIM_WON, "");
  assert_int_equal(count_files(), 3); /* no temporary file */
  assert_int_equal(stat(in_folder("0,j,i,1"), &st), 0);
  assert_int_equal(st.st_mode & 07777, 0600);
  expect("../x", "y", CLAIM_WON, "");
  assert_int_equal(folder_end(folder, "0/j", CLAIM_ENDED, &e), -EINVAL);
  expect("0", "y", CLAIM_FAILED, "has a slash");
  assert_int_equal(access(in_folder("+2e.,x"), F_OK), 0);
}

static void ends(void) {
  expect("0/j/i/1", "mine", CLAIM_WON, "");
  expect("0/j/i/2", "mine", CLAIM_WON, "");
  expect("0/j/i2/1", "other", CLAIM_WON, "");
  expect("0/j/en", "other", CLAIM_WON, "");
  assert_int_equal(folder_end(folder, "0/j/i/", CLAIM_ENDED, NULL), 0);
  assert_int_equal(count_files(), 3);
  expect("0/j/i/1", "mine", CLAIM_TAKEN, CLAIM_ENDED);
  expect("0/j/i/3", "mine", CLAIM_TAKEN, CLAIM_ENDED);
  expect("0/j/i2/1", "x", CLAIM_TAKEN, "other");
  expect("0/j/en", "x", CLAIM_TAKEN, "other");
  assert_int_equal(folder_end(folder, "0/j/i/", CLAIM_ENDED, NULL), 0);
  assert_int_equal(folder_end(folder, "0/none/", CLAIM_ENDED, NULL), 0);
  assert_int_equal(count_files(), 4);
}

UNIT_TEST(test_an_end) {
  on_each(ends);
}

static void end_now(void) {
  assert_int_equal(folder_end(folder, "0/j/", CLAIM_ENDED, NULL), 0);
}

static void end_without_removal(void) {
  FILE *f = fopen(in_folder("0,j2,end"), "w");
  fputs(CLAIM_ENDED, f);
  fclose(f);
}

static void ends_that_come_between(void) {
  then = end_now;
  expect("0/j/1", "mine", CLAIM_TAKEN, CLAIM_ENDED);
  then = end_without_removal;
  expect("0/j2/1", "mine", CLAIM_TAKEN, CLAIM_ENDED);
  assert_int_equal(count_files(), 2); /* the ends */
}

UNIT_TEST(test_ends_that_come_between) {
  on_each(ends_that_come_between);
}

static void expect_run(const char *prefix, const char *content, enum claim_answer wanted, const char *text) {
  struct buf there = BUF_INIT;
  enum claim_answer a = folder_claim_run(folder, prefix, content, &there);
  if (a != wanted || !strstr(buf_text(&there), text)) fail_msg("%s: %d, '%s'", prefix, (int)a, buf_text(&there));
  if (a == CLAIM_TAKEN) assert_string_equal(buf_text(&there), text);
  buf_finish(&there);
}

static void runs(void) {
  expect_run("0/j/i/", "mine", CLAIM_WON, "");
  expect_run("0/j/k/", "other", CLAIM_TAKEN, "mine");
  expect_run("0/j/i/", "mine", CLAIM_WON, "");
  expect_run("0/job/i/", "of another job", CLAIM_WON, "");
  expect_run("0/j/ik/", "other", CLAIM_TAKEN, "mine"); /* its name only begins as i does */
  expect("0/j/i/1", "mine", CLAIM_WON, "");
  assert_int_equal(folder_end(folder, "0/j/i/", CLAIM_ENDED, NULL), 0);
  assert_int_equal(count_files(), 2); /* of the other job, and the end */
  expect_run("0/j/i/", "mine", CLAIM_TAKEN, CLAIM_ENDED);
  expect_run("0/j/k/", "other", CLAIM_WON, "");
  put_file("0,j,k,end", CLAIM_ENDED); /* its daemon died before it could remove the rest */
  expect_run("0/j/l/", "third", CLAIM_WON, "");
  assert_int_equal(count_files(), 4);
  expect_run("0/j/l", "x", CLAIM_FAILED, "with a slash");
}

UNIT_TEST(test_runs) {
  on_each(runs);
}

static void begin_another_run(void) {
  put_file("0,j,run,k,00", "theirs");
}

/* Somebody else begins at once. Neither may win now. */
static void runs_that_begin_at_once(void) {
  then = begin_another_run;
  expect_run("0/j/i/", "mine", CLAIM_TAKEN, "theirs");
  assert_int_equal(count_files(), 1);
}

UNIT_TEST(test_runs_that_begin_at_once) {
  on_each(runs_that_begin_at_once);
}

static void end_this_run(void) {
  assert_int_equal(folder_end(folder, "0/j/i/", CLAIM_ENDED, NULL), 0);
}

static void runs_that_end_meanwhile(void) {
  then = end_this_run;
  expect_run("0/j/i/", "mine", CLAIM_TAKEN, CLAIM_ENDED);
  then = end_without_removal;
  expect_run("0/j2/", "mine", CLAIM_TAKEN, CLAIM_ENDED);
  assert_int_equal(count_files(), 2); /* the ends */
}

UNIT_TEST(test_runs_that_end_meanwhile) {
  on_each(runs_that_end_meanwhile);
}

/* Each racer begins a run, says so, and ends it. */
static void race_for_runs(int me, int *running) {
  struct folder *f = open_folder(path);
  char prefix[48];
  int won = 0;
  for (int i = 0; won < RUNS; i++) {
    struct buf there = BUF_INIT;
    snprintf(prefix, sizeof prefix, "1000/race/%d-%d/", me, i);
    if (folder_claim_run(f, prefix, "x", &there) == CLAIM_WON) {
      if (__atomic_add_fetch(running, 1, __ATOMIC_SEQ_CST) != 1) _exit(1);
      usleep(100);
      __atomic_sub_fetch(running, 1, __ATOMIC_SEQ_CST);
      if (folder_end(f, prefix, CLAIM_ENDED, NULL)) _exit(2);
      won++;
    }
    buf_finish(&there);
  }
  folder_close(f);
  _exit(0);
}

static void one_run_at_a_time(void) {
  int *running = mmap(NULL, sizeof *running, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), status;
  assert_ptr_not_equal(running, MAP_FAILED);
  for (int r = 0; r < RACERS + 2; r++)
    if (fork() == 0) race_for_runs(r, running);
  for (int r = 0; r < RACERS + 2; r++) {
    assert_true(wait(&status) > 0);
    assert_int_equal(status, 0);
  }
  munmap(running, sizeof *running);
}

UNIT_TEST(test_one_run_at_a_time) {
  on_each(one_run_at_a_time);
}

UNIT_TEST(test_once) {
  on_each(once);
}

static void answers_that_are_lost(void) {
  for (int code = 0; code < 3; code++) {
    char name[32];
    lost = (const int[]){EEXIST, EIO, ETIMEDOUT}[code];
    carried_out = true;
    snprintf(name, sizeof name, "0/a/%d", code);
    expect(name, "mine", CLAIM_WON, "");
    carried_out = false;
    snprintf(name, sizeof name, "0/b/%d", code);
    expect(name, "mine", CLAIM_FAILED, "cannot link a file in /");
    lost = 0;
    expect(name, "mine", CLAIM_WON, "");
  }
  lost = EOPNOTSUPP;
  expect("0/c/1", "mine", CLAIM_FAILED, "has no hard links");
  lost = 0;
  assert_int_equal(count_files(), 6);
}

UNIT_TEST(test_answers_that_are_lost) {
  on_each(answers_that_are_lost);
}

/* The other daemon comes between the look at the name and the link. */
static void a_name_that_comes_between(void) {
  int fd = open(path, O_RDONLY | O_DIRECTORY);
  put_file("temp", "mine");
  put_file("theirs", "theirs");
  assert_int_equal(folder_has_linked(fd, "temp", "theirs"), 0);
  assert_int_equal(folder_has_linked(fd, "none", "theirs"), -ENOENT);
  assert_int_equal(__real_linkat(fd, "temp", fd, "ours", 0), 0);
  assert_int_equal(folder_has_linked(fd, "temp", "ours"), 1);
  assert_int_equal(folder_has_linked(fd, "temp", "theirs"), 0);
  assert_int_equal(folder_has_linked(fd, "temp", "none"), -ENOENT);
  close(fd);
}

UNIT_TEST(test_a_name_that_comes_between) {
  on_each(a_name_that_comes_between);
}

/* won[i]: the racers that won claim i; bit 7: one saw another content than the winner's. */
static void race(int me, unsigned char *won) {
  struct folder *f = open_folder(path);
  char mine[32], name[48];
  snprintf(mine, sizeof mine, "racer %d", me);
  for (int i = 0; i < CLAIMS; i++) {
    struct buf there = BUF_INIT;
    snprintf(name, sizeof name, "1000/race/5f/%d", i);
    enum claim_answer a = folder_create(f, name, mine, &there);
    bool good = a == CLAIM_WON || (a == CLAIM_TAKEN && strncmp(buf_text(&there), "racer ", 6) == 0 &&
                                   atoi(buf_text(&there) + 6) == 1 - me);
    __atomic_or_fetch(&won[i], (unsigned char)((a == CLAIM_WON ? 1 << me : 0) | (good ? 0 : 0x80)), __ATOMIC_SEQ_CST);
    buf_finish(&there);
  }
  folder_close(f);
  _exit(0);
}

static void race_of_two(void) {
  unsigned char *won = mmap(NULL, CLAIMS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int wins[RACERS] = {0}, status;
  assert_ptr_not_equal(won, MAP_FAILED);
  for (int r = 0; r < RACERS; r++)
    if (fork() == 0) race(r, won);
  for (int r = 0; r < RACERS; r++) assert_true(wait(&status) > 0 && status == 0);
  for (int i = 0; i < CLAIMS; i++) {
    if (won[i] != 1 && won[i] != 2) fail_msg("claim %d: %#x", i, won[i]);
    wins[won[i] - 1]++;
  }
  printf("%s: %d and %d of %d claims\n", path, wins[0], wins[1], CLAIMS);
  assert_int_equal(count_files(), CLAIMS);
  assert_int_equal(folder_end(folder, "1000/race/", CLAIM_ENDED, NULL), 0);
  assert_int_equal(count_files(), 1);
  munmap(won, CLAIMS);
}

UNIT_TEST(test_one_alone_wins) {
  on_each(race_of_two);
}

static void sweeping(void) {
  struct timeval old[2] = {{time(NULL) - FOLDER_TEMP_AGE_S - 10, 0}, {time(NULL) - FOLDER_TEMP_AGE_S - 10, 0}};
  struct timeval very_old[2] = {{time(NULL) - FOLDER_END_AGE_S - 10, 0}, {time(NULL) - FOLDER_END_AGE_S - 10, 0}};
  put_file(".claim-dead", "x");
  put_file(".other", "x");
  put_file(".claim-young", "x");
  put_file("0,old,end", CLAIM_ENDED);
  put_file("0,young,end", CLAIM_ENDED);
  assert_int_equal(utimes(in_folder("0,old,end"), very_old), 0);
  assert_int_equal(utimes(in_folder(".claim-dead"), old), 0);
  assert_int_equal(utimes(in_folder(".other"), old), 0);
  assert_int_equal(folder_end(folder, "0/none/", CLAIM_ENDED, NULL), 0);
  assert_int_equal(access(in_folder(".claim-dead"), F_OK), -1);
  assert_int_equal(access(in_folder(".claim-young"), F_OK), 0);
  assert_int_equal(access(in_folder(".other"), F_OK), 0);
  assert_int_equal(access(in_folder("0,old,end"), F_OK), -1);
  assert_int_equal(access(in_folder("0,young,end"), F_OK), 0);
  assert_int_equal(utimes(in_folder(".claim-young"), old), 0);
  folder_close(open_folder(path));
  assert_int_equal(access(in_folder(".claim-young"), F_OK), -1);
}

UNIT_TEST(test_files_of_the_dead_are_swept) {
  on_each(sweeping);
}

static void what_is_no_claim(void) {
  static char large[CLAIM_CONTENT_MAX + 2];
  memset(large, 'x', sizeof large - 1);
  put_file("precious", "mine");
  assert_int_equal(symlink("precious", in_folder("0,link")), 0);
  expect("0/link", "mine", CLAIM_FAILED, "Too many levels of symbolic links");
  assert_int_equal(mkfifo(in_folder("0,fifo"), 0600), 0);
  expect("0/fifo", "mine", CLAIM_FAILED, "0,fifo is not a claim");
  put_file("0,large", large);
  expect("0/large", "mine", CLAIM_FAILED, "is not a claim: a claim is a file of at most 65536 bytes");
  assert_int_equal(mkdir(in_folder("0,folder"), 0700), 0);
  expect("0/folder", "mine", CLAIM_FAILED, "is not a claim");
  large[CLAIM_CONTENT_MAX] = '\0';
  expect("0/longest", large, CLAIM_WON, "");
  expect("0/longest", "x", CLAIM_TAKEN, large);
}

UNIT_TEST(test_what_is_no_claim) {
  on_each(what_is_no_claim);
}

static void check_refused(const char *at, const char *why) {
  struct folder *f = NULL;
  struct err e = ERR_INIT;
  struct buf warning = BUF_INIT;
  assert_true(folder_open(at, &f, &warning, &e) < 0);
  if (!strstr(e.text, why)) fail_msg("'%s' does not say '%s'", e.text, why);
  buf_finish(&warning);
}

static void folders(void) {
  char at[160], name[160];
  struct stat st;
  snprintf(at, sizeof at, "%s/new//", path);
  folder_close(open_folder(at));
  assert_int_equal(stat(at, &st), 0);
  assert_int_equal(st.st_mode & 07777, 0700);
  snprintf(name, sizeof name, "%s/no/such", path);
  check_refused(name, "cannot create");
  assert_int_equal(symlink(in_folder("new"), strcat(strcpy(name, path), "/link")), 0);
  check_refused(name, "is a symbolic link");
  check_refused(strcat(name, "/"), "is a symbolic link");
  put_file("file", "");
  check_refused(in_folder("file"), "cannot open");
  at[strlen(at) - 2] = '\0';
  assert_int_equal(chmod(at, 0770), 0);
  check_refused(at, "chmod go-w it, or name a folder of your own, such as ");
  assert_int_equal(chmod(at, 0707), 0);
  check_refused(at, "other users can write to");
  assert_int_equal(chmod(at, 01777), 0); /* others could make the next claim, or the end */
  check_refused(at, "could make the next claim");
  assert_int_equal(chmod(at, 01755), 0);
  folder_close(open_folder(at));
}

UNIT_TEST(test_folders) {
  on_each(folders);
}

/* A permission that is lost, and a folder that goes, while the daemon runs. */
static void a_folder_that_changes(void) {
  assert_int_equal(chmod(path, 0777), 0);
  expect("0/j/1", "mine", CLAIM_FAILED, "could make the next claim");
  assert_int_equal(chmod(path, 0700), 0);
  expect("0/j/1", "mine", CLAIM_WON, "");
  remove_tree(path);
  expect("0/j/2", "mine", CLAIM_FAILED, "cannot open");
  assert_int_equal(folder_end(folder, "0/j/", CLAIM_ENDED, NULL), -ENOENT);
  assert_int_equal(mkdir(path, 0700), 0);
  expect("0/j/2", "mine", CLAIM_WON, "");
}

UNIT_TEST(test_a_folder_that_changes) {
  on_each(a_folder_that_changes);
}

static void as_nobody(void) {
  assert_int_equal(chmod(path, 0755), 0);
  if (fork() == 0) {
    struct buf warning = BUF_INIT;
    struct folder *f = NULL;
    struct err e = ERR_INIT;
    if (setuid(NOBODY) || folder_open(path, &f, &warning, &e) == 0 || !strstr(e.text, "cannot create a file in"))
      _exit(1); /* root's folder is good, but not to be written to */
    _exit(0);
  }
  int status;
  assert_true(wait(&status) > 0 && status == 0);
  assert_int_equal(chown(path, 12345, 12345), 0);
  assert_int_equal(chmod(path, 0755), 0);
  if (fork() == 0) {
    struct buf warning = BUF_INIT;
    struct folder *f = NULL;
    struct err e = ERR_INIT;
    if (setuid(NOBODY) || folder_open(path, &f, &warning, &e) == 0 ||
        !strstr(e.text, "belongs to another user (uid 12345)"))
      _exit(1);
    _exit(0);
  }
  assert_true(wait(&status) > 0 && status == 0);
  folder_close(open_folder(path)); /* root may */
}

UNIT_TEST(test_other_users) {
  if (geteuid() != 0) skip();
  on_each(as_nobody);
}

/* As a file system that is read-only for a while. Returns a step that went wrong, or 0. */
static int begin_in_a_closed_folder(const char *at) {
  struct buf warning = BUF_INIT, text = BUF_INIT;
  struct folder *f = NULL;
  struct err e = ERR_INIT;
  if (chmod(at, 0555)) return 1;
  if (folder_open(at, &f, &warning, &e)) return 2;
  if (!strstr(buf_text(&warning), "cannot create a file in")) return 3;
  if (!strstr(buf_text(&warning), "Permission denied; jobs wait until that has changed")) return 4;
  if (folder_create(f, "0/j/1", "mine", &text) != CLAIM_FAILED || !strstr(buf_text(&text), "cannot create")) return 5;
  if (chmod(at, 0755)) return 6;
  if (folder_create(f, "0/j/1", "mine", &text) != CLAIM_WON) return 7;
  folder_close(f);
  buf_finish(&warning);
  buf_finish(&text);
  return 0;
}

static void closed_for_a_while(void) {
  int status;
  assert_int_equal(chown(path, NOBODY, NOBODY), 0);
  if (fork() == 0) _exit(setuid(NOBODY) ? 9 : begin_in_a_closed_folder(path));
  assert_true(wait(&status) > 0 && WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

UNIT_TEST(test_a_folder_that_is_closed_for_a_while) {
  if (geteuid() != 0) skip();
  on_each(closed_for_a_while);
}

int main(void) {
  umask(022);
  return unit_run(NULL, NULL);
}
