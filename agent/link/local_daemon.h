/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LINK_LOCAL_DAEMON_H
#define AGENT_LINK_LOCAL_DAEMON_H

/* The rdzvd that an agent runs itself, if the endpoint is this machine and nothing listens there, or for --standalone.
 * It starts when first wanted, or before (local_daemon_start_early), restarts when it dies while the job lives (same port, same state), and exits when no
 * job needs it; local_daemon_leave ensures that.
 *
 * An agent has one rdzvd at most. It listens at the endpoint, or on the port that the agent has reserved so that
 * others know it in advance. Once it has listened, it keeps its port. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "agent/link/daemon_process.h"
#include "common/endpoint.h"
#include "common/err.h"
#include "common/key/source.h"

/* A TCP port that is reserved for an rdzvd of this agent: the other agents know it before that rdzvd runs. */

struct reserved_port {
  int fd; /* bound, not listening, close-on-exec; -1: no port is reserved */
  uint16_t port;
  char text[ENDPOINT_TEXT_MAX]; /* as rdzvd --listen takes it: "[::]:40123" */
};

/* Reserves a free port of the numeric address `addr`, or of all addresses if `addr` is NULL, "" or not one of this
 * machine's. Negative errno and a sentence: the machine refused, and fd is -1. */
int reserve_port(const char *addr, struct reserved_port *out, struct err *e);
/* Gives the port up. The text stays. */
void reserved_port_close(struct reserved_port *s);

struct local_daemon;

struct local_daemon_callbacks {
  /* Answers to local_daemon_want, one each; may be called inside it. */
  void (*on_ready)(void *ctx, uint16_t port);
  /* taken: another program has the port now. fatal: not 0 if another try cannot help: the exit code. */
  void (*on_failed)(void *ctx, bool taken, int fatal, const struct err *e);
};

struct local_daemon_options {
  uv_loop_t *loop;
  bool loopback;    /* host_loopback() only, on a free port; else on `port`, at: */
  const char *host; /* a numeric address; NULL: all addresses, because the name may resolve to 127.0.1.1 */
  uint16_t port;
  /* key, which outlives the daemon, key_source, log_file, verbose and claim; for an early start program and words */
  struct daemon_process_options process;
  struct reserved_port reserved;             /* the reserved port, now the daemon's; fd -1: none */
  void (*on_port)(void *ctx, uint16_t port); /* where it listens now, and will: unless loopback */
  void (*on_left)(void *ctx);                /* after local_daemon_leave */
  struct daemon_process early;               /* now the local daemon's; pid 0: none */
  void *ctx;
};

/* Starts the process without a loop, if it will be wanted: it starts while the caller goes on. *p belongs into `early`
 * of the same options. On an error its pid stays 0, and local_daemon_want tries again, and answers. */
void local_daemon_start_early(const struct local_daemon_options *o, struct daemon_process *p);
struct local_daemon *local_daemon_create(const struct local_daemon_options *o); /* starts nothing */
/* The receiver of answers. */
void local_daemon_bind(struct local_daemon *d, const struct local_daemon_callbacks *cb, void *ctx);
/* standby: on the reserved port, if it does not run. */
void local_daemon_want(struct local_daemon *d, bool standby);
bool local_daemon_is_at_endpoint(const struct local_daemon *d); /* it listens there, or has */
/* Starts it at the endpoint if it has listened there and has exited. A failure goes to the debug log. */
void local_daemon_serve(struct local_daemon *d);
uint16_t local_daemon_standby_port(const struct local_daemon *d); /* for local_daemon_want(standby); 0: none */
/* No daemon may be started by that port: the key that the job uses is not one for a daemon. */
void local_daemon_forbid_standby(struct local_daemon *d);
bool local_daemon_owned(const struct local_daemon *d); /* it runs, or restarts in a moment */
/* With loopback: a connected unix socket to the process that runs, now the caller's; -1: none, or taken before. */
int local_daemon_take_talk(struct local_daemon *d);
pid_t local_daemon_pid(const struct local_daemon *d); /* 0: none */
/* It is not started again, and has a moment to exit by itself, a longer one if the job is done. Then one of --standalone gets SIGTERM, and SIGKILL. Any
 * other keeps running for nodes or jobs that still need it, and exits after the last. */
void local_daemon_leave(struct local_daemon *d, bool done);
/* After on_left, or in an emergency (SIGKILL). Memory is freed when the loop has closed its handles. */
void local_daemon_destroy(struct local_daemon *d);

#endif
