/* SPDX-License-Identifier: Apache-2.0 */
/* rdzvd: the daemon.
 *
 * rdzvd_main brings things up in the order in which they may fail, and tears them down in reverse: options, ports, state
 * folder, claims, core, control socket, loop. The ports come first: of two daemons that start at once, the one that binds the
 * port stays, and the other must not have touched anything else. The port file, --ready-fd, the start line and the
 * service manager come last, when every listener accepts.
 *
 * An agent that starts its own daemon passes --exit-when-idle and --owner-fd. For such a daemon a port in use is an
 * answer, not an error (exit code 68): another daemon was faster, and the agent connects to that one.
 *
 * The control socket is optional: if its usual place is not available, the daemon logs that and runs without. One
 * that --socket asks for is required. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>
#include "common/claim_place.h"
#include "common/exit_codes.h"
#include "common/key/secret.h"
#include "common/key/source.h"
#include "common/system/file.h"
#include "common/err.h"
#include "common/system/log.h"
#include "common/system/loop.h"
#include "common/mem.h"
#include "common/system/notify.h"
#include "common/opts/opts.h"
#include "common/sinks/event_sinks.h"
#include "daemon/core/core.h"
#include "daemon/rdzvd.h"
#include "daemon/rdzvd_options.h"
#include "daemon/server/claims.h"
#include "daemon/server/control_socket.h"
#include "daemon/server/listener.h"
#include "daemon/server/server.h"
#include "daemon/server/state.h"

enum {
  RESERVED_FDS = 64, /* for listeners, state, the loop's own, and PEERS_CONTROL_MORE */
  SWEEP_AFTER_MS = 1000,
};

struct daemon {
  struct opts_parsed parsed;
  struct rdzvd_options options;
  struct listener listeners[OPT_STRINGS_MAX];
  size_t n_listeners;
  int control_fd;
  uv_timer_t sweep;
  bool has_port_file;
  char control_path[CONTROL_PATH_MAX];
  struct state *state;
  struct claims *claims;
  struct event_sinks *events; /* NULL: none */
  char id[IDENTITY_SIZE];
  struct core *core;
  struct server *server;
  uv_loop_t loop;
  struct notify notify;
  struct notify_timer announce;
  char host[HOST_MAX + 1];
  char page[ENDPOINT_TEXT_MAX + 16];
  struct key_env key_env;
  struct key *key; /* NULL: --insecure */
  struct key_origin key_origin;
};

static int fail(int exit_code, const struct err *e) {
  log_error("%s", e->text);
  return exit_code;
}

static enum opt_source source_of(const struct daemon *d, const char *name) {
  return opts_origin(&d->parsed, name)->source;
}

/* extra: the first word that is no option; NULL: there is none. */
static int check_options(const struct daemon *d, const char *extra, struct err *e) {
  const struct rdzvd_options *o = &d->options;
  if (extra) return err_set(e, -EINVAL, "rdzvd takes only options: \"%.80s\" is not one (see --help)", extra);
  if (o->quiet && o->verbose) return err_set(e, -EINVAL, "--quiet and --verbose exclude each other");
  if (o->listen_fd >= 0 && source_of(d, "listen") == OPT_FROM_ARGV)
    return err_set(e, -EINVAL, "--listen and --listen-fd exclude each other");
  if (o->socket && strlen(o->socket) >= CONTROL_PATH_MAX)
    return err_set(e, -EINVAL, "--socket %.200s: the path of a unix socket has at most %d bytes", o->socket,
                   CONTROL_PATH_MAX - 1);
  struct claim_place place;
  if (o->claim && claim_place_parse(o->claim, &place, e) < 0) return err_wrap(e, "--claim");
  const int64_t fds[] = {o->owner_fd, o->ready_fd, o->agent_fd};
  static const char *const names[] = {"--owner-fd", "--ready-fd", "--agent-fd"};
  for (int i = 0; i < 3; i++) {
    if (fds[i] >= 0 && fcntl((int)fds[i], F_SETFD, FD_CLOEXEC) < 0)
      return err_set(e, -EINVAL, "%s %d: this descriptor is not open", names[i], (int)fds[i]);
  }
  return 0;
}

static void get_summary(void *ctx, struct buf *out, bool *busy) {
  core_summary(((struct daemon *)ctx)->core, out);
}

static void on_stopping(void *ctx, const char *why) {
  char status[NOTIFY_STATUS_MAX];
  snprintf(status, sizeof(status), "stopping: %s", why);
  notify_timer_stopping(&((struct daemon *)ctx)->announce, status);
}

/* Up and down ------------------------------------------------------------------------------------------------------ */

static int open_ports(struct daemon *d, struct err *e) {
  bool in_haste = d->options.exit_when_idle; /* the agent that started us must connect elsewhere */
  bool inherits = d->options.listen_fd >= 0;
  int rc = inherits ? listener_adopt((int)d->options.listen_fd, d->listeners, e)
                    : listeners_open(d->options.listen.v, (size_t)d->options.listen.n, in_haste, d->listeners, e);
  if (rc == -EINVAL) return EXIT_CODE_USAGE;
  if (rc == -EADDRINUSE && d->options.exit_when_idle) return EXIT_CODE_PORT_TAKEN;
  if (rc < 0) return EXIT_CODE_SYSTEM;
  d->n_listeners = inherits ? 1 : (size_t)d->options.listen.n;
  return 0;
}

static void on_sweep(uv_timer_t *timer) {
  control_socket_sweep();
}

static int open_control(struct daemon *d, struct err *e) {
  const char *asked = d->options.socket;
  struct err local = ERR_INIT;
  int rc = 0;
  /* A folder like /tmp may have thousands of names, and an agent waits for its own daemon. So that one sweeps later, if it
   * lives so long. */
  if (d->options.owner_fd < 0) {
    control_socket_sweep();
  } else {
    uv_timer_init(&d->loop, &d->sweep);
    uv_timer_start(&d->sweep, on_sweep, SWEEP_AFTER_MS, 0);
    uv_unref((uv_handle_t *)&d->sweep);
  }
  if (asked)
    snprintf(d->control_path, sizeof(d->control_path), "%s", asked);
  else
    rc = control_socket_place(d->listeners[0].port, d->control_path, &local);
  if (rc == 0) rc = d->control_fd = control_socket_open(d->control_path, &local);
  if (rc >= 0) return 0;
  d->control_fd = -1;
  if (asked) return err_set(e, rc, "--socket: %s", local.text);
  log_warn("no control socket, rdzvctl cannot reach this daemon: %s", local.text);
  return 0;
}

/* Behind the ports: of two daemons that start at once one alone creates a key. A user's key is no daemon's. */
static int find_key(struct daemon *d, struct err *e) {
  const struct rdzvd_options *o = &d->options;
  const struct key_options given = {.file = o->key_file,
                                    .fd = o->key_fd,
                                    .insecure = o->insecure,
                                    .file_from = source_of(d, "key-file"),
                                    .insecure_from = source_of(d, "insecure"),
                                    .prefix = rdzvd_options_spec.env_prefix};
  int rc = key_find_given(&given, &d->key_env, &d->key, &d->key_origin, e);
  if (rc == 0 && d->key_origin.kind == KEY_SOURCE_UNSET) rc = key_find_default(true, &d->key, &d->key_origin, e);
  if (rc == 0 && d->key_origin.kind == KEY_SOURCE_INSECURE) key_say_insecure();
  return rc;
}

static int open_server(struct daemon *d, struct err *e) {
  uint64_t seed;
  if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) seed = uv_hrtime() ^ (uint64_t)getpid();
  struct rlimit limit;
  size_t connections = 1024 - RESERVED_FDS;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    struct rlimit wanted = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &wanted) == 0) limit = wanted;
    connections = limit.rlim_cur > 2 * RESERVED_FDS ? (size_t)limit.rlim_cur - RESERVED_FDS : RESERVED_FDS;
  }
  struct core_config core_config = {.seed = seed,
                                    .max_members =
                                        connections < SERVER_CONNECTIONS_MAX ? connections : SERVER_CONNECTIONS_MAX,
                                    .uid = geteuid(),
                                    .host = d->host,
                                    .key = d->key,
                                    .id = d->id,
                                    .port = (uint16_t)d->listeners[0].port,
                                    .page = d->page,
                                    .owned = d->options.owner_fd >= 0,
                                    .saves = d->state != NULL,
                                    .claims = d->claims != NULL,
                                    .events = d->events != NULL};
  if (gethostname(d->host, sizeof(d->host) - 1) != 0) d->host[0] = '\0';
  /* All addresses of this machine include the one that needs no token. */
  const struct listener *l = &d->listeners[0];
  bool any = !strncmp(l->text, "0.0.0.0:", 8) || !strncmp(l->text, "[::]:", 5);
  if (any)
    snprintf(d->page, sizeof(d->page), "localhost:%d", l->port);
  else
    snprintf(d->page, sizeof(d->page), "%s", l->text);
  d->core = core_create(&core_config);
  struct server_config config = {.core = d->core,
                                 .state = d->state,
                                 .id = d->id,
                                 .claims = d->claims,
                                 .events = d->events,
                                 .key = d->key,
                                 .key_source = d->key_origin.kind,
                                 .exit_when_idle = d->options.exit_when_idle,
                                 .owner_fd = (int)d->options.owner_fd,
                                 .max_connections = connections,
                                 .c10d = d->options.c10d,
                                 .store_bytes = (size_t)d->options.store_memory,
                                 .store_keys = (size_t)d->options.store_keys,
                                 .seed = seed ^ 0x9E3779B97F4A7C15u,
                                 .on_stopping = on_stopping,
                                 .ctx = d};
  int rc = server_create(&d->loop, &config, &d->server, e);
  if (rc < 0) return rc;
  server_load(d->server);
  for (size_t i = 0; i < d->n_listeners && rc == 0; i++) {
    int fd = d->listeners[i].fd;
    d->listeners[i].fd = -1;
    rc = server_listen(d->server, fd, false, e);
  }
  if (rc == 0 && d->control_fd >= 0) rc = server_listen(d->server, d->control_fd, true, e);
  if (rc < 0 || d->options.agent_fd < 0) return rc;
  /* The agent is on this machine, so it is known by the address at which it would connect. */
  struct endpoint here;
  rc = endpoint_parse(d->listeners[0].text, 0, &here, e);
  if (rc == 0) rc = server_adopt(d->server, (int)d->options.agent_fd, here.host, e);
  return rc ? err_wrap(e, "--agent-fd") : 0;
}

static int bring_up(struct daemon *d, struct err *e) {
  int code = open_ports(d, e);
  if (code != 0) return code;
  if (find_key(d, e) < 0) return EXIT_CODE_USAGE;
  if (d->options.state_dir && state_open(d->options.state_dir, &d->state, e) < 0) return EXIT_CODE_SYSTEM;
  bool in_memory = d->state && state_is_in_memory(d->state); /* then no thread is needed */
  if (!in_memory && loop_start_pool(&d->loop, LOOP_POOL_DAEMON, e) < 0) return EXIT_CODE_SYSTEM;
  identity_find(d->state, d->id);
  const struct rdzvd_options *o = &d->options;
  if (o->claim) { /* before any agent comes: a place that cannot be used is an error of the operator */
    int rc = claims_create(&d->loop, o->claim, &d->claims, e);
    if (rc) err_wrap(e, "--claim");
    if (rc) return rc == -EINVAL ? EXIT_CODE_USAGE : EXIT_CODE_SYSTEM;
  }
  d->events = event_sinks_create(&d->loop, &(struct event_sinks_options){.file = o->events,
                                                                         .command = o->on_event,
                                                                         .names = o->on_event_names,
                                                                         .last_ms = SERVER_STOP_MS - 1000});
  if (open_control(d, e) < 0 || open_server(d, e) < 0) return EXIT_CODE_SYSTEM;
  if (o->port_file) {
    struct buf text = BUF_INIT;
    for (size_t i = 0; i < d->n_listeners; i++) buf_printf(&text, "%d\n", d->listeners[i].port);
    int rc = file_replace(o->port_file, text.data, text.len, 0644, false);
    d->has_port_file = rc == 0;
    buf_finish(&text);
    if (rc) return err_sys(e, rc, "cannot write --port-file %s", o->port_file), EXIT_CODE_SYSTEM;
  }
  int fd = (int)d->options.ready_fd;
  if (fd >= 0) {
    char text[16];
    int n = snprintf(text, sizeof(text), "%d\n", d->listeners[0].port);
    if (write(fd, text, (size_t)n) != n) log_warn("--ready-fd %d: %s", fd, strerror(errno));
    close(fd);
  }
  struct buf line = BUF_INIT;
  for (size_t i = 0; i < d->n_listeners; i++) buf_printf(&line, "%s%s", i ? ", " : "", d->listeners[i].text);
  if (d->control_fd >= 0) buf_printf(&line, "; control socket %s", d->control_path);
  if (d->state) buf_printf(&line, "; state in %s", d->options.state_dir);
  if (d->claims) buf_printf(&line, "; claims in %s", d->options.claim);
  buf_printf(&line, "; key: %s", d->key_origin.text);
  log_info("version " RDZV_VERSION " listens on %s", buf_text(&line));
  buf_finish(&line);
  notify_timer_start(&d->announce, &d->loop, &d->notify, get_summary, d);
  notify_timer_ready(&d->announce);
  return EXIT_CODE_OK;
}

static void remove_files(struct daemon *d) {
  if (d->control_fd >= 0) control_socket_remove(d->control_path);
  /* One at the same port on another address, which had the name, may have been killed since. */
  if (d->options.owner_fd < 0 && d->n_listeners) control_socket_sweep();
  if (d->has_port_file) unlink(d->options.port_file);
}

static int run(struct daemon *d) {
  struct err e = ERR_INIT;
  if (loop_open(&d->loop, &e) < 0) return limit_explain(&e), fail(EXIT_CODE_SYSTEM, &e);
  int code = bring_up(d, &e);
  if (code == EXIT_CODE_OK && !server_run(d->server)) {
    log_warn("some work did not finish in time; exiting anyway");
    remove_files(d);
    _exit(EXIT_CODE_OK);
  }
  limit_explain(&e);
  if (code != EXIT_CODE_OK) fail(code, &e);
  /* The daemon removes the folder of its agent, which may be gone long before the last member is served. */
  bool discard = d->server && server_is_unneeded(d->server) && d->options.owner_fd >= 0;
  remove_files(d);
  notify_timer_close(&d->announce);
  if (d->sweep.loop) uv_close((uv_handle_t *)&d->sweep, NULL);
  server_destroy(d->server);
  claims_destroy(d->claims);
  event_sinks_close(d->events);
  uv_run(&d->loop, UV_RUN_NOWAIT); /* their close callbacks */
  event_sinks_destroy(d->events);
  core_destroy(d->core);
  if (discard)
    state_discard(d->state);
  else
    state_close(d->state);
  for (size_t i = 0; i < d->n_listeners; i++)
    if (d->listeners[i].fd >= 0) close(d->listeners[i].fd);
  uv_loop_close(&d->loop);
  secret_free(d->key);
  notify_finish(&d->notify);
  return code;
}

int rdzvd_main(int argc, char **argv) {
  static struct daemon d = {.control_fd = -1,
                            .options = {.owner_fd = -1, .ready_fd = -1, .agent_fd = -1, .key_fd = -1, .listen_fd = -1}};
  struct rdzvd_options *o = &d.options;
  struct err e = ERR_INIT;
  mem_avoid_stalls();
  log_init("rdzvd", LOG_INFO);
  notify_init(&d.notify);
  key_env_take(&d.key_env);
  if (opts_parse(&rdzvd_options_spec, argc, argv, environ, o, &d.parsed, &e) < 0) return fail(EXIT_CODE_USAGE, &e);
  if (o->help) {
    struct winsize size = {.ws_col = 0};
    int width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 60 ? size.ws_col : 100;
    struct buf text = BUF_INIT;
    (opts_wants_short_help(&rdzvd_options_spec, argc, argv) ? opts_help_short : opts_help)(
        &rdzvd_options_spec, width < 110 ? width : 110, &text);
    fputs(buf_text(&text), stdout);
    buf_finish(&text);
    return EXIT_CODE_OK;
  }
  if (o->version) return puts("rdzvd " RDZV_VERSION) < 0 ? EXIT_CODE_SYSTEM : EXIT_CODE_OK;
  if (check_options(&d, d.parsed.rest < argc ? argv[d.parsed.rest] : NULL, &e) < 0) return fail(EXIT_CODE_USAGE, &e);
  log_init("rdzvd", o->quiet ? LOG_WARN : o->verbose ? LOG_DEBUG : LOG_INFO);
  /* The agent that owns this daemon reads its lines from a pipe, and adds its own times. */
  struct stat st;
  bool to_file = fstat(STDERR_FILENO, &st) == 0 && S_ISREG(st.st_mode);
  if (o->owner_fd < 0 || to_file) log_stamp_lines(getenv("JOURNAL_STREAM"));
  signal(SIGPIPE, SIG_IGN);
  return run(&d);
}
