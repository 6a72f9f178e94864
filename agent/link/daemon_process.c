/* SPDX-License-Identifier: Apache-2.0 */
/* Starting rdzvd.
 *
 * A program that has just begun copies itself, and the copy goes on as rdzvd: exec, the dynamic linker and libc's look
 * at the CPU would take longer than rdzvd needs to listen. A process with threads cannot do that, since the copy of a
 * lock that another thread holds is never released. It calls posix_spawn, which suspends it until the child has called
 * exec, and copies no page.
 *
 * The child's descriptors have fixed numbers. Sources are moved above them first, so that no number is overwritten
 * before it is used. */

#include "agent/link/daemon_process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/exit_codes.h"
#include "common/key/secret.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/system/command.h"
#include "common/system/file.h"

/* The child's numbers. */
enum { FD_ERR = 2, FD_READY, FD_OWNER, FD_KEY, FD_LISTEN, FD_TALK, FD_END };
enum { WORDS_MAX = 20, FD_ABOVE = 16 /* no source is below */ };

/* What the child gets, by its number, above FD_ABOVE; -1: nothing. */
struct ends {
  int fd[FD_END];
};

static void close_fd(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

static void close_ours(struct daemon_process *p) {
  close_fd(&p->ready);
  close_fd(&p->owner);
  close_fd(&p->err);
  close_fd(&p->talk);
}

/* Moves *fd up. */
static int lift(int *fd) {
  int high = fcntl(*fd, F_DUPFD_CLOEXEC, FD_ABOVE);
  if (high < 0) return -errno;
  close(*fd);
  *fd = high;
  return 0;
}

static int open_pipe(int *ours, int *theirs, bool they_write) {
  int p[2];
  if (pipe2(p, O_CLOEXEC)) return -errno;
  *ours = p[they_write ? 0 : 1];
  *theirs = p[they_write ? 1 : 0];
  return lift(theirs);
}

static int open_ends(const struct daemon_process_options *o, struct daemon_process *p, struct ends *c, struct err *e) {
  int rc = open_pipe(&p->ready, &c->fd[FD_READY], true);
  if (rc == 0) rc = open_pipe(&p->owner, &c->fd[FD_OWNER], false);
  int *err = &c->fd[FD_ERR], *listen = &c->fd[FD_LISTEN], *key = &c->fd[FD_KEY];
  if (o->log_file) *err = open(o->log_file, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (rc == 0) rc = *err >= 0 ? lift(err) : open_pipe(&p->err, err, true);
  if (rc == 0 && o->listen_fd >= 0 && (*listen = fcntl(o->listen_fd, F_DUPFD_CLOEXEC, FD_ABOVE)) < 0) rc = -errno;
  int pair[2];
  if (rc == 0 && o->talks && (rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) ? -errno : 0) == 0) {
    p->talk = pair[0];
    c->fd[FD_TALK] = pair[1];
    rc = lift(&c->fd[FD_TALK]);
  }
  if (rc) return err_sys(e, rc, "no descriptors for rdzvd");
  if (!o->key) return 0;
  *key = rc = key_pipe(o->key, o->key_source, e);
  if (rc < 0) return rc;
  return (rc = lift(key)) ? err_sys(e, rc, "no descriptors for rdzvd") : 0;
}

/* The words of the command line, which nobody writes to. Returns how many. */
static int put_words(const struct daemon_process_options *o, const char *state_dir, const char *words[WORDS_MAX]) {
  size_t n = 0;
  bool inherits = o->listen_fd >= 0, quiet = !o->verbose && !o->log_file;
  const char *const fixed[] = {"rdzvd",
                               inherits ? "--listen-fd" : "--listen",
                               inherits ? "6" : o->listen,
                               "--exit-when-idle",
                               "--ready-fd",
                               "3",
                               "--owner-fd",
                               "4",
                               "--state-dir",
                               state_dir};
  for (; n < sizeof(fixed) / sizeof(*fixed); n++) words[n] = fixed[n];
  words[n++] = o->key ? "--key-fd" : "--insecure";
  if (o->key) words[n++] = "5";
  if (o->claim) words[n++] = "--claim";
  if (o->claim) words[n++] = o->claim;
  if (o->talks) words[n++] = "--agent-fd";
  if (o->talks) words[n++] = "7";
  if (quiet) words[n++] = "--quiet";
  words[n] = NULL;
  return (int)n;
}

/* 0 or a negative errno. */
static int spawn(const char *program, const char *const words[], const struct ends *c, pid_t *pid) {
  posix_spawn_file_actions_t a;
  posix_spawnattr_t attr;
  sigset_t all, none;
  char *argv[WORDS_MAX];
  memcpy(argv, words, sizeof(argv));
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawn_file_actions_init(&a);
  posix_spawn_file_actions_addopen(&a, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&a, STDOUT_FILENO, "/dev/null", O_RDWR, 0);
  for (int n = FD_ERR; n < FD_END; n++)
    if (c->fd[n] >= 0) posix_spawn_file_actions_adddup2(&a, c->fd[n], n);
  posix_spawnattr_init(&attr);
  posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setsigdefault(&attr, &all);
  posix_spawnattr_setsigmask(&attr, &none);
  int rc = -posix_spawn(pid, program, &a, &attr, argv, environ);
  posix_spawnattr_destroy(&attr);
  posix_spawn_file_actions_destroy(&a);
  return rc;
}

/* The copy's descriptors and signals are those that posix_spawn would have given it. */
static int copy_self(const struct daemon_process_options *o, const char *const words[], int argc, const struct ends *c,
                     pid_t *pid) {
  char *argv[WORDS_MAX] = {NULL};
  pid_t agent = getpid();
  *pid = fork();
  if (*pid < 0) return -errno;
  if (*pid > 0) return 0;
  for (int i = 0; i < argc; i++) argv[i] = xstrdup(words[i]); /* some are words of this process */
  int null = open("/dev/null", O_RDWR);
  secret_lock_again();
  setsid();
  if (dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0) _exit(EXIT_CODE_SYSTEM);
  for (int n = FD_ERR; n < FD_END; n++)
    if (c->fd[n] < 0)
      close(n);
    else if (dup2(c->fd[n], n) < 0)
      _exit(EXIT_CODE_SYSTEM);
  copy_close_from(FD_END);
  copy_reset_signals();
  copy_set_name(o->words, "rdzvd", agent);
  _exit(o->program(argc, argv));
}

int daemon_process_start(const struct daemon_process_options *o, struct daemon_process *p, struct err *e) {
  char *program = o->program ? NULL : command_companion("rdzvd", "../daemon/", getenv("PATH"), e);
  if (!o->program && !program) return err_wrap(e, "rdzvd cannot be started on this machine");
  struct daemon_process new = {.ready = -1, .owner = -1, .err = -1, .talk = -1, .state_dir = p->state_dir};
  struct ends child = {{-1, -1, -1, -1, -1, -1, -1, -1}};
  int rc = open_ends(o, &new, &child, e);
  if (rc == 0 && !new.state_dir && !(new.state_dir = private_dir_create(e))) rc = -EACCES;
  if (rc == 0) {
    const char *words[WORDS_MAX];
    int n = put_words(o, new.state_dir, words);
    rc = o->program ? copy_self(o, words, n, &child, &new.pid) : spawn(program, words, &child, &new.pid);
    if (rc) err_sys(e, rc, "rdzvd (%s) cannot be started", program ? program : "a copy of this process");
  }
  if (rc) limit_explain(e);
  for (int n = FD_ERR; n < FD_END; n++) close_fd(&child.fd[n]);
  free(program);
  p->state_dir = new.state_dir; /* for the next try */
  if (rc)
    close_ours(&new);
  else
    *p = new;
  return rc;
}

void daemon_process_kill(struct daemon_process *p) {
  if (p->pid > 0) {
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    close_ours(p);
  }
  private_dir_remove(p->state_dir);
  *p = DAEMON_PROCESS_NONE;
}

/* The state folder. ------------------------------------------------------------------------------------------------ */

/* Private folders, and their removal.
 *
 * The state of our own rdzvd must survive the daemon, not the machine, so it is in /dev/shm, where an fsync is free.
 *
 * The agent removes the folder when its daemon is gone; a daemon that outlives its agent removes it itself. If both
 * are killed at once, as a scheduler does at the end of a job's time, it stays. So each start looks for old ones. A
 * folder is abandoned if the agent in its name (rdzvd-PID-XXXXXX) is gone and the daemon's lock in it is free; both
 * count, because a dead daemon may be about to restart. It must be a real folder of our user, since anyone can make
 * names in /dev/shm. */

enum { SWEEP_MAX = 64 }; /* folders that one start removes */

void private_dir_remove(char *dir) {
  if (dir) file_remove_folder(dir, 0);
  free(dir);
}

static bool sweep_one(int place_fd, const char *name) {
  int pid, at = 0;
  struct stat st;
  if (sscanf(name, "rdzvd-%d-%n", &pid, &at) != 1 || at == 0 || pid <= 0) return false;
  if (kill(pid, 0) == 0 || errno != ESRCH) return false;
  int fd = openat(place_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return false;
  /* A daemon that uses the folder has locked the file. */
  int lock = openat(fd, "rdzvd.lock", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  bool used = lock < 0 ? errno != ENOENT : flock(lock, LOCK_EX | LOCK_NB) != 0;
  if (lock >= 0) close(lock);
  if (used || fstat(fd, &st) != 0 || st.st_uid != geteuid()) {
    close(fd);
    return false;
  }
  file_empty_folder(fd, 0);
  return unlinkat(place_fd, name, AT_REMOVEDIR) == 0;
}

char *private_dir_create(struct err *e) {
  const char *tmp = getenv("TMPDIR");
  const char *const places[] = {"/dev/shm", tmp && *tmp ? tmp : "/tmp", "/tmp"};
  for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
    char *dir = xasprintf("%s/rdzvd-%d-XXXXXX", places[i], (int)getpid());
    if (mkdtemp(dir)) {
      DIR *place = opendir(places[i]);
      int removed = 0;
      for (struct dirent *f; place && removed < SWEEP_MAX && (f = readdir(place));)
        removed += sweep_one(dirfd(place), f->d_name);
      if (place) closedir(place);
      return dir;
    }
    free(dir);
  }
  err_sys(e, -errno, "no folder for rdzvd's state can be made in /dev/shm or /tmp");
  return NULL;
}
