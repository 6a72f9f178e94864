/* SPDX-License-Identifier: Apache-2.0 */
/* source, file: the words that give a key, files that are refused, and a default file that eight processes create. */

#include "common/key/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/key/secret.h"
#include "tests/rig/tree.h"
#include "tests/rig/unit.h"

#define DIGITS "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define OTHER  "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

enum { RACERS = 8 };

static struct tree tree;

static const char *in_tree(const char *path) {
  static char text[2][256];
  static int turn;
  turn = !turn;
  snprintf(text[turn], sizeof(text[turn]), "%s/%s", tree.root, path);
  return text[turn];
}

static const char *put(const char *path, const char *text, mode_t mode) {
  tree_put(&tree, text, "%s", path);
  assert_int_equal(chmod(in_tree(path), mode), 0);
  return in_tree(path);
}

/* A file of mode 0600 with this key. */
static const char *put_key(const char *path, const char *text) {
  return put(path, text, 0600);
}

static int setup(void **state) {
  static const char *const names[] = {"RDZV_KEY", "RDZV_KEY_FILE", "RDZV_INSECURE", "STATE_DIRECTORY", "HOME"};
  for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) unsetenv(names[i]);
  tree_init(&tree);
  setenv("XDG_CONFIG_HOME", in_tree("config"), 1);
  return 0;
}

static int teardown(void **state) {
  tree_finish(&tree);
  return 0;
}

/* What is found. --------------------------------------------------------------------------------------------------- */

static struct key_origin origin;
static struct err error;
static char found[KEY_TEXT_MAX + 1]; /* the key's text; "": none */

static void note(struct key *key) {
  found[0] = '\0';
  if (key) key_format(key, found);
  secret_free(key);
}

static int find(struct key_options o) {
  struct key_env env;
  struct key *key = NULL;
  error = (struct err)ERR_INIT;
  key_env_take(&env);
  int rc = key_find_given(&o, &env, &key, &origin, &error);
  assert_null(env.key);
  note(key);
  return rc;
}

static int find_default(bool create) {
  struct key *key = NULL;
  error = (struct err)ERR_INIT;
  int rc = key_find_default(create, &key, &origin, &error);
  note(key);
  return rc;
}

static const struct key_options none = {.fd = -1, .prefix = "RDZV_AGENT_"};

static struct key_options with_file(const char *path, enum opt_source rank) {
  struct key_options o = none;
  o.file = path;
  o.file_from = rank;
  return o;
}

static struct key_options with_insecure(bool on, enum opt_source rank) {
  struct key_options o = none;
  o.insecure = on;
  o.insecure_from = rank;
  return o;
}

static void assert_found(int rc, const char *key, enum key_source kind, const char *text) {
  assert_string_equal(error.text, "");
  assert_int_equal(rc, 0);
  assert_string_equal(found, key);
  assert_int_equal(origin.kind, kind);
  assert_string_equal(origin.text, text);
}

static void assert_refused(int rc, const char *part) {
  assert_true(rc < 0 && rc == error.code);
  assert_string_equal(found, "");
  if (!strstr(error.text, part)) fail_msg("\"%s\" lacks \"%s\"", error.text, part);
  assert_null(strstr(error.text, "0102030405"));
}

UNIT_TEST_WITH(test_nothing_was_given, setup, teardown) {
  assert_found(find(none), "", KEY_SOURCE_UNSET, "");
}

UNIT_TEST_WITH(test_each_word_gives_a_key, setup, teardown) {
  char text[300];
  const char *path = put_key("a", DIGITS "\n");
  snprintf(text, sizeof(text), "--key-file %s", path);
  assert_found(find(with_file(path, OPT_FROM_ARGV)), DIGITS, KEY_SOURCE_FILE, text);
  snprintf(text, sizeof(text), "key-file in agent.conf %s", path);
  assert_found(find(with_file(path, OPT_FROM_FILE)), DIGITS, KEY_SOURCE_FILE, text);
  setenv("RDZV_KEY_FILE", path, 1);
  snprintf(text, sizeof(text), "RDZV_KEY_FILE %s", path);
  assert_found(find(none), DIGITS, KEY_SOURCE_FILE, text);
  unsetenv("RDZV_KEY_FILE");
  setenv("RDZV_KEY", "7:" OTHER, 1);
  assert_found(find(none), "7:" OTHER, KEY_SOURCE_ENV, "RDZV_KEY");
  assert_null(getenv("RDZV_KEY"));
  setenv("RDZV_INSECURE", "1", 1);
  assert_found(find(none), "", KEY_SOURCE_INSECURE, "none (RDZV_INSECURE)");
  setenv("RDZV_INSECURE", "no", 1);
  assert_found(find(none), "", KEY_SOURCE_UNSET, "");
  assert_found(find(with_insecure(true, OPT_FROM_ARGV)), "", KEY_SOURCE_INSECURE, "none (--insecure)");
}

UNIT_TEST_WITH(test_the_nearest_word_counts, setup, teardown) {
  char a[256], b[256];
  snprintf(a, sizeof(a), "%s", put_key("a", DIGITS));
  snprintf(b, sizeof(b), "%s", put_key("b", OTHER));
  setenv("RDZV_KEY_FILE", b, 1);
  assert_int_equal(find(with_file(a, OPT_FROM_ARGV)), 0);
  assert_string_equal(found, DIGITS);
  assert_int_equal(find(with_file(a, OPT_FROM_FILE)), 0);
  assert_string_equal(found, OTHER);
  assert_refused(find(with_file(a, OPT_FROM_ENV)), "RDZV_AGENT_KEY_FILE and RDZV_KEY_FILE exclude each other");
  unsetenv("RDZV_KEY_FILE");
  setenv("RDZV_INSECURE", "1", 1);
  assert_int_equal(find(with_file(a, OPT_FROM_ARGV)), 0);
  assert_int_equal(origin.kind, KEY_SOURCE_FILE);
  assert_int_equal(find(with_insecure(false, OPT_FROM_ARGV)), 0);
  assert_int_equal(origin.kind, KEY_SOURCE_UNSET);
}

UNIT_TEST_WITH(test_two_words_of_a_rank_exclude_each_other, setup, teardown) {
  struct key_options o = with_file(put_key("a", DIGITS), OPT_FROM_ARGV);
  o.insecure = true;
  o.insecure_from = OPT_FROM_ARGV;
  assert_refused(find(o), "--key-file and --insecure exclude each other");
  setenv("RDZV_KEY", DIGITS, 1);
  setenv("RDZV_INSECURE", "yes", 1);
  assert_refused(find(none), "RDZV_KEY and RDZV_INSECURE exclude each other");
}

UNIT_TEST_WITH(test_a_wrong_variable_is_refused_unless_overridden, setup, teardown) {
  setenv("RDZV_KEY", OTHER "0", 1);
  assert_refused(find(none), "RDZV_KEY: a key is 64 hex digits");
  assert_null(getenv("RDZV_KEY"));
  setenv("RDZV_KEY", "", 1);
  assert_refused(find(none), "RDZV_KEY: a key is 64 hex digits");
  setenv("RDZV_KEY", "x", 1);
  assert_int_equal(find(with_file(put_key("a", DIGITS), OPT_FROM_ARGV)), 0);
  setenv("RDZV_INSECURE", "perhaps", 1);
  assert_refused(find(none), "RDZV_INSECURE=perhaps: ");
  unsetenv("RDZV_INSECURE");
  setenv("RDZV_KEY_FILE", "", 1);
  assert_refused(find(none), "RDZV_KEY_FILE is empty");
}

/* /proc/PID/environ shows the memory in which the process got its environment. */
UNIT_TEST_WITH(test_the_environment_that_the_kernel_shows_has_no_key, setup, teardown) {
  char text[65536];
  int ends[2], status;
  assert_int_equal(pipe(ends), 0);
  pid_t pid = fork();
  if (pid == 0) {
    setenv("RDZV_KEY", DIGITS, 1);
    dup2(ends[1], 9);
    execl("/proc/self/exe", "look", (char *)NULL);
    _exit(99);
  }
  close(ends[1]);
  size_t len = 0;
  for (ssize_t n; (n = read(ends[0], text + len, sizeof(text) - len)) > 0;) len += (size_t)n;
  close(ends[0]);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
  assert_non_null(memmem(text, len, "XDG_CONFIG_HOME=", 16));
  assert_null(memmem(text, len, "0102", 4));
}

/* The process of the test above: the variable's key is there, and its text is not. */
static int look(void) {
  struct key_env env;
  char text[65536];
  key_env_take(&env);
  if (!env.key || getenv("RDZV_KEY")) return 98;
  secret_free(env.key);
  int fd = open("/proc/self/environ", O_RDONLY);
  ssize_t n;
  while ((n = read(fd, text, sizeof(text))) > 0)
    if (write(9, text, (size_t)n) != n) return 97;
  return 0;
}

/* Descriptors. ----------------------------------------------------------------------------------------------------- */

static int fd_of(const char *text) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  assert_int_equal(write(ends[1], text, strlen(text)), strlen(text));
  close(ends[1]);
  return ends[0];
}

static int find_fd(int fd) {
  struct key_options o = none;
  o.fd = fd;
  return find(o);
}

UNIT_TEST_WITH(test_a_descriptor_is_read_to_its_end_and_closed, setup, teardown) {
  char text[32];
  int fd = fd_of("5:" DIGITS "\n");
  snprintf(text, sizeof(text), "--key-fd %d", fd);
  assert_found(find_fd(fd), "5:" DIGITS, KEY_SOURCE_OTHER, text);
  assert_int_equal(fcntl(fd, F_GETFD), -1);
  assert_refused(find_fd(fd), "cannot read the key: Bad file descriptor");
  fd = fd_of(DIGITS " 9\n"); /* a source of a later release */
  snprintf(text, sizeof(text), "--key-fd %d", fd);
  assert_found(find_fd(fd), DIGITS, KEY_SOURCE_OTHER, text);
  assert_refused(find_fd(fd_of("")), "this has 0 characters");
  assert_refused(find_fd(fd_of(DIGITS " x")), "a key is");
  assert_refused(find_fd(fd_of(DIGITS DIGITS)), "more than a key");
}

UNIT_TEST_WITH(test_a_pipe_carries_key_and_source, setup, teardown) {
  static const char *const words[] = {"",          " (default file)",   " (key file)", " (RDZV_KEY)",
                                      " (random)", " (state directory)"};
  char text[64];
  struct key key;
  assert_int_equal(key_parse("4294967294:" DIGITS, strlen("4294967294:" DIGITS), &key, NULL), 0);
  for (int i = KEY_SOURCE_OTHER; i <= KEY_SOURCE_STATE; i++) {
    int fd = key_pipe(&key, (enum key_source)i, NULL);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    snprintf(text, sizeof(text), "--key-fd %d%s", fd, words[i]);
    assert_found(find_fd(fd), "4294967294:" DIGITS, (enum key_source)i, text);
  }
}

/* Files. ----------------------------------------------------------------------------------------------------------- */

static int find_file(const char *path) {
  return find(with_file(path, OPT_FROM_ARGV));
}

UNIT_TEST_WITH(test_a_file_of_others_is_refused, setup, teardown) {
  static const mode_t wrong[] = {0644, 0640, 0604, 0620, 0602, 0610, 0601};
  put_key("a", DIGITS);
  assert_int_equal(chown(in_tree("a"), (uid_t)-1, geteuid() == 0 ? 7 : getegid()), 0);
  for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
    assert_int_equal(chmod(in_tree("a"), wrong[i]), 0);
    if (wrong[i] == 0640 && getegid() == 0 && geteuid() != 0) continue;
    assert_refused(find_file(in_tree("a")), "other users have access to it (mode 06");
  }
  assert_int_equal(chmod(in_tree("a"), 0400), 0);
  assert_int_equal(find_file(in_tree("a")), 0);
  if (geteuid() != 0) return;
  assert_int_equal(chown(in_tree("a"), 0, 0), 0);
  assert_int_equal(chmod(in_tree("a"), 0440), 0); /* as systemd passes a credential */
  assert_int_equal(find_file(in_tree("a")), 0);
  assert_int_equal(chmod(in_tree("a"), 0460), 0);
  assert_refused(find_file(in_tree("a")), "other users have access to it (mode 0460)");
  assert_int_equal(chmod(in_tree("a"), 0400), 0);
  assert_int_equal(chown(in_tree("a"), 4711, 0), 0);
  assert_refused(find_file(in_tree("a")), "it belongs to uid 4711");
}

UNIT_TEST_WITH(test_what_is_not_a_file_is_refused, setup, teardown) {
  assert_refused(find_file(in_tree("none")), "none: cannot open it: No such file");
  assert_int_equal(mkfifo(in_tree("fifo"), 0600), 0);
  assert_refused(find_file(in_tree("fifo")), "it is not a regular file");
  assert_int_equal(mkdir(in_tree("folder"), 0700), 0);
  assert_refused(find_file(in_tree("folder")), "it is not a regular file");
  assert_refused(find_file("/dev/zero"), "it is not a regular file");
}

UNIT_TEST_WITH(test_what_is_not_a_key_is_refused, setup, teardown) {
  static const char *const texts[] = {"", "\n", "secret\n", OTHER "0\n", DIGITS "\n" DIGITS "\n"};
  for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
    put_key("a", texts[i]);
    assert_int_not_equal(find_file(in_tree("a")), 0);
    assert_null(strstr(error.text, "0102030405"));
  }
  assert_refused(find_file(put_key("big", DIGITS DIGITS DIGITS)), "it is larger than a key");
}

UNIT_TEST_WITH(test_a_named_link_is_followed_if_it_is_ours, setup, teardown) {
  put_key("a", DIGITS);
  assert_int_equal(symlink("a", in_tree("link")), 0);
  assert_int_equal(find_file(in_tree("link")), 0);
  put("a", DIGITS, 0644);
  assert_refused(find_file(in_tree("link")), "other users have access to it");
  if (geteuid() != 0) return;
  put("a", DIGITS, 0600);
  assert_int_equal(lchown(in_tree("link"), 4711, 4711), 0);
  assert_refused(find_file(in_tree("link")), "it is a symbolic link of uid 4711");
}

/* The default file. ------------------------------------------------------------------------------------------------ */

static mode_t mode_of(const char *path) {
  struct stat st;
  assert_int_equal(stat(in_tree(path), &st), 0);
  return st.st_mode & 07777;
}

UNIT_TEST_WITH(test_the_default_file_is_created_once, setup, teardown) {
  char first[KEY_TEXT_MAX + 1], text[300];
  mode_t umask_before = umask(0777);
  snprintf(text, sizeof(text), "%s (will be created)", in_tree("config/rdzv/key"));
  assert_found(find_default(false), "", KEY_SOURCE_HOME, text);
  assert_int_equal(access(in_tree("config"), F_OK), -1);
  umask(0);
  assert_int_equal(find_default(true), 0);
  umask(umask_before);
  assert_non_null(strstr(origin.text, "config/rdzv/key (created)"));
  assert_int_equal(mode_of("config"), 0700);
  assert_int_equal(mode_of("config/rdzv"), 0700);
  assert_int_equal(mode_of("config/rdzv/key"), 0600);
  snprintf(first, sizeof(first), "%s", found);
  snprintf(text, sizeof(text), "%s", in_tree("config/rdzv/key"));
  for (int i = 0; i < 2; i++) {
    assert_found(find_default(i), first, KEY_SOURCE_HOME, text);
    assert_int_equal(find_file(in_tree("config/rdzv/key")), 0);
    assert_string_equal(found, first);
  }
}

UNIT_TEST_WITH(test_places_of_the_default_file, setup, teardown) {
  char text[300];
  unsetenv("XDG_CONFIG_HOME");
  setenv("HOME", tree.root, 1);
  assert_found(find_default(false), "", KEY_SOURCE_HOME, "~/.config/rdzv/key (will be created)");
  assert_int_equal(find_default(true), 0);
  assert_string_equal(origin.text, "~/.config/rdzv/key (created)");
  assert_int_equal(mode_of(".config/rdzv/key"), 0600);
  setenv("XDG_CONFIG_HOME", "relative", 1); /* is ignored */
  assert_int_equal(find_default(true), 0);
  assert_string_equal(origin.text, "~/.config/rdzv/key");
  assert_int_equal(mkdir(in_tree("state"), 0755), 0);
  snprintf(text, sizeof(text), "%s:%s", in_tree("state"), "/nowhere");
  setenv("STATE_DIRECTORY", text, 1);
  assert_int_equal(find_default(true), 0);
  assert_int_equal(origin.kind, KEY_SOURCE_STATE);
  assert_int_equal(mode_of("state/key"), 0600);
}

UNIT_TEST_WITH(test_a_default_file_that_is_not_safe_is_refused, setup, teardown) {
  assert_int_equal(find_default(true), 0);
  assert_int_equal(chmod(in_tree("config/rdzv/key"), 0604), 0);
  assert_refused(find_default(true), "other users have access to it (mode 0604): chmod 600 it");
  assert_non_null(strstr(error.text, "give --key-file FILE"));
  assert_int_equal(rename(in_tree("config/rdzv/key"), in_tree("config/rdzv/old")), 0);
  assert_int_equal(symlink("old", in_tree("config/rdzv/key")), 0);
  assert_refused(find_default(true), "it is a symbolic link");
  assert_int_equal(unlink(in_tree("config/rdzv/key")), 0);
  assert_int_equal(mkfifo(in_tree("config/rdzv/key"), 0600), 0);
  assert_refused(find_default(true), "it is not a regular file");
  assert_int_equal(unlink(in_tree("config/rdzv/key")), 0);
  assert_int_equal(mkdir(in_tree("config/rdzv/key"), 0700), 0);
  assert_refused(find_default(true), "it is not a regular file");
  assert_int_equal(rmdir(in_tree("config/rdzv/key")), 0);
  put_key("config/rdzv/key", "garbage");
  assert_refused(find_default(true), "a key is 64 hex digits");
  put_key("config/rdzv/key", "");
  assert_refused(find_default(true), "it is empty: remove it for a new key");
  assert_int_equal(unlink(in_tree("config/rdzv/key")), 0);
  assert_int_equal(chmod(in_tree("config/rdzv"), 0777), 0);
  assert_refused(find_default(true), "others can write to its folder");
}

UNIT_TEST_WITH(test_a_home_that_cannot_be_written_names_the_remedy, setup, teardown) {
  tree_put(&tree, "", "file");
  setenv("XDG_CONFIG_HOME", in_tree("file"), 1);
  assert_refused(find_default(true), "Not a directory; otherwise give --key-file FILE");
  setenv("XDG_CONFIG_HOME", in_tree("no/such"), 1);
  assert_refused(find_default(true), "no/such: No such file or directory; otherwise give --key-file FILE");
  setenv("XDG_CONFIG_HOME", "/proc", 1);
  assert_refused(find_default(true), "; otherwise give --key-file FILE");
}

static void race(int start, int out) {
  struct key *key = NULL;
  char text[KEY_TEXT_MAX + 1] = "", byte;
  if (read(start, &byte, 1) < 0) _exit(3);
  if (key_find_default(true, &key, &origin, NULL)) _exit(1);
  key_format(key, text);
  _exit(write(out, text, 64) == 64 ? 0 : 2);
}

UNIT_TEST_WITH(test_eight_processes_at_once_agree, setup, teardown) {
  for (int round = 0; round < 20; round++) {
    char path[32], text[RACERS * 64];
    int start[2], out[2], status;
    snprintf(path, sizeof(path), "race%d", round);
    setenv("XDG_CONFIG_HOME", in_tree(path), 1);
    assert_int_equal(pipe(start) | pipe(out), 0);
    for (int i = 0; i < RACERS; i++)
      if (fork() == 0) {
        close(start[1]);
        race(start[0], out[1]);
      }
    close(start[0]);
    close(start[1]); /* go */
    for (int i = 0; i < RACERS; i++) {
      assert_true(wait(&status) > 0);
      assert_int_equal(status, 0);
    }
    assert_int_equal(read(out[0], text, sizeof(text)), RACERS * 64);
    for (int i = 1; i < RACERS; i++) assert_memory_equal(text, text + 64 * i, 64);
    close(out[0]);
    close(out[1]);
    struct stat st;
    snprintf(path, sizeof(path), "race%d/rdzv/key", round);
    assert_int_equal(stat(in_tree(path), &st), 0);
    assert_int_equal(st.st_nlink, 1); /* no file was left beside it */
  }
}

int main(int argc, char **argv) {
  if (strcmp(argv[0], "look") == 0) return look();
  return unit_run(NULL, NULL);
}
