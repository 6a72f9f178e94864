#ifndef COMMON_NOTIFY_H
#define COMMON_NOTIFY_H

/* What a program tells the service manager that has started it, as sd_notify(3) documents it: that it is ready, what it does, that it lives, that
 * it goes. Without NOTIFY_SOCKET in the environment every call here does nothing. Never blocks. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
  NOTIFY_STATUS_MAX = 300,  /* bytes of a status; more are cut off */
  NOTIFY_EVERY_MS = 1000,   /* how often notify_beat wants to be called at most */
  NOTIFY_EXTEND_MS = 10000, /* for how long one beat asks for patience */
};

struct notify {
  int fd; /* -1: nobody wants to be told */
  struct sockaddr_un to;
  socklen_t to_len;
  uint64_t watchdog_ms; /* a sign of life is sent that often; 0: none is wanted */
  uint64_t beat_ms;     /* when the next is due */
  bool ready, stopping; /* was said by the caller */
  bool owes_ready, owes_stopping;
  bool complained;
  bool indirect; /* the manager started somebody else, who started us: it is told our pid */
  char status[NOTIFY_STATUS_MAX + 1];
};

/* Takes NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID out of the environment, so that no child speaks for us. Call it first in main, while the
 * process has one thread. An address that cannot be used is one warning, and nobody is told. */
void notify_init(struct notify *n);
void notify_finish(struct notify *n);

/* How often notify_beat is to be called, from the loop whose life it proves; 0: never. */
uint64_t notify_every_ms(const struct notify *n);
/* READY=1, once; again: nothing. status may be NULL. */
void notify_ready(struct notify *n, const char *status);
/* STOPPING=1, once. */
void notify_stopping(struct notify *n, const char *status);
/* WATCHDOG=1 where it is due, STATUS= where it has changed, and what could not be sent before. `busy`: it starts or stops, and is not stuck: the
 * manager is asked for another NOTIFY_EXTEND_MS. */
void notify_beat(struct notify *n, uint64_t now_ms, const char *status, bool busy);

#endif
