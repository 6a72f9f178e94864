/* SPDX-License-Identifier: Apache-2.0 */
/* Which errors are limits, and which limit each of them means.
 *
 * A machine may be out of processes for a moment, or a program file may still be being written (ETXTBSY, while an image
 * is unpacked). Neither is the user's mistake. A command that is missing or cannot be run (ENOENT, EACCES, ENOEXEC) is
 * one, and so is an environment that is too large (E2BIG): a second try would end the same way. An error that is not
 * listed here counts as such a mistake.
 *
 * The kernel returns EAGAIN for two limits: the processes of a user (RLIMIT_NPROC) and those of a cgroup (pids.max). So
 * the advice names both. */

#include "common/limit.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

static const struct {
  int error;
  const char *advice;
} limits[] = {
    {EAGAIN, "see ulimit -u, and pids.max of the cgroup"},
    {ENOMEM, "see the free memory, ulimit -v, and memory.max of the cgroup"},
    {EMFILE, "see ulimit -n"},
    {ENFILE, "see the sysctl fs.file-max"},
    {ENOBUFS, "see the free memory of the kernel"},
    {ETXTBSY, "another process has the program open for writing"},
};

const char *limit_advice(int error) {
  if (error < 0) error = -error;
  for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
    if (limits[i].error == error) return limits[i].advice;
  return NULL;
}

bool limit_is_transient(int error) {
  return limit_advice(error) != NULL;
}

int limit_explain(struct err *e) {
  const char *advice = limit_advice(e->code);
  if (!advice || strstr(e->text, advice)) return e->code;
  return err_set(e, e->code, "%s; %s", e->text, advice);
}
