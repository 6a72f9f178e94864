#ifndef AGENT_LOCAL_DAEMON_H
#define AGENT_LOCAL_DAEMON_H

/* The rdzvd that an agent runs itself, where the endpoint is this machine and nobody listens there, or for
 * --standalone. It is started when it is first wanted, again when it dies while the job lives (same port,
 * same state), and it leaves by itself when no job needs it; local_daemon_leave sees to it that it does. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "common/buf.h"
#include "common/err.h"

struct local_daemon;

struct local_daemon_callbacks {
  /* Answers to local_daemon_want, one each; may come inside the call. */
  void (*on_ready)(void *ctx, uint16_t port);
  /* taken: somebody else has the port by now. fatal: not 0 where trying again cannot help: what the agent
   * exits with. */
  void (*on_failed)(void *ctx, bool taken, int fatal, const struct err *e);
};

struct local_daemon_options {
  uv_loop_t *loop;
  bool loopback; /* 127.0.0.1 only, on a free port; else on `port`, at: */
  const char
      *host; /* a numeric address, or NULL: all of the machine's, because its name may resolve to 127.0.1.1 */
  uint16_t port;
  const char *log_file; /* where its stderr goes, or NULL: through our log, line by line */
  bool verbose;
  void (*on_left)(void *ctx); /* after local_daemon_leave */
  void *ctx;
};

struct local_daemon *local_daemon_create(const struct local_daemon_options *o); /* starts nothing yet */
/* Who asks, and is answered. */
void local_daemon_bind(struct local_daemon *d, const struct local_daemon_callbacks *cb, void *ctx);
void local_daemon_want(struct local_daemon *d);
bool local_daemon_owned(const struct local_daemon *d); /* it runs, or is to be started again in a moment */
pid_t local_daemon_pid(const struct local_daemon *d);  /* 0: none */
/* Not to be started again. It has grace_ms to leave by itself. Then one of --standalone gets SIGTERM, and
 * SIGKILL; any other is left alone, because then other nodes or other jobs still need it: it goes with the
 * last of them. */
void local_daemon_leave(struct local_daemon *d, uint32_t grace_ms);
/* After on_left, or in an emergency (SIGKILL). Memory is free when its handles are closed by the loop. */
void local_daemon_destroy(struct local_daemon *d);

#endif
