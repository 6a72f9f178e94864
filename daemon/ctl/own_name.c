/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ctl/own_name.h"

#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WAIT_MS = 1000, ENTRY_MAX = 4096 };

static void find(uv_work_t *work) {
  struct own_name *n = work->data;
  struct passwd entry, *user = NULL;
  char text[ENTRY_MAX];
  if (n->other && getpwnam_r(n->other, &entry, text, sizeof(text), &user) == 0 && user)
    n->found_other = (int64_t)user->pw_uid;
  user = NULL;
  if (getpwuid_r(geteuid(), &entry, text, sizeof(text), &user) != 0 || !user) return;
  if (strlen(user->pw_name) <= USER_NAME_MAX) snprintf(n->found, sizeof(n->found), "%s", user->pw_name);
}

static void finish(struct own_name *n) {
  if (n->done) return;
  n->done = true;
  uv_timer_stop(&n->timer);
  n->on_done(n->owner);
}

static void on_found(uv_work_t *work, int status) {
  struct own_name *n = work->data;
  if (status == 0 && !n->done) {
    snprintf(n->name, sizeof(n->name), "%s", n->found);
    n->other_uid = n->found_other;
    n->late = false;
  }
  finish(n);
}

static void on_late(uv_timer_t *timer) {
  finish(timer->data);
}

int own_name_find(struct own_name *n, const char *other, uv_loop_t *loop, void (*on_done)(void *owner), void *owner,
                  struct err *e) {
  *n = (struct own_name){
      .other = other, .other_uid = -1, .found_other = -1, .late = true, .on_done = on_done, .owner = owner};
  n->work.data = n->timer.data = n;
  int rc = uv_timer_init(loop, &n->timer);
  if (rc == 0) rc = uv_timer_start(&n->timer, on_late, WAIT_MS, 0);
  if (rc == 0) rc = uv_queue_work(loop, &n->work, find, on_found);
  if (rc == 0) return 0;
  uv_timer_stop(&n->timer);
  return err_sys(e, rc, "the name of this user");
}
