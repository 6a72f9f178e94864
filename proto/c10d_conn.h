#ifndef PROTO_C10D_CONN_H
#define PROTO_C10D_CONN_H

/* The inside of a c10d_server: its connections, and what they share. For c10d_server.c, c10d_conn.c and c10d_place.c only. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "common/rations.h"
#include "common/buf.h"
#include "common/endpoint.h"
#include "common/log_level.h"
#include "common/map.h"
#include "common/store/store.h"
#include "proto/c10d_server.h"
#include "proto/c10d_session.h"

enum {
  C10D_CHUNK = 64 * 1024, /* read at once: also what one connection may ask for in one turn of the loop */
  C10D_BIG_CHUNK = 1024 * 1024, /* the same inside one large request */
  C10D_KEEP_OUT = 256 * 1024,   /* a shared buffer for replies that grew beyond this is given back */
};

/* All that is known of one peer address; lives as long as it has connections. */
struct c10d_place {
  struct ipaddr addr;
  size_t n_conns;
  size_t n_old;    /* that speak a numbering before 2.2 */
  size_t n_silent; /* that said nothing yet; n_kept of them are over their time */
  size_t n_kept;
  uint64_t silent_since_ms; /* when n_silent last became 1 */
  struct c10d_conn *kept;   /* linked by beside */
};

/* Connections one behind the other. */
struct c10d_line {
  struct c10d_conn *first, *last;
};

/* Connections with a deadline of the same length each, in the order of their deadlines. */
struct c10d_queue {
  struct c10d_conn *first, *last;
  unsigned timeout_ms;
};

/* What a connection's turn is for. */
enum c10d_due {
  C10D_DUE_READ = 1,
  C10D_DUE_WRITE = 2,
  C10D_DUE_OWN = 4,    /* a look at what lies in `in` */
  C10D_DUE_FAILED = 8, /* the socket has an error */
};

enum c10d_conn_state {
  C10D_CONN_OPEN,
  C10D_CONN_ENDING,    /* no requests are taken any more; what waits is written, then lingering */
  C10D_CONN_LINGERING, /* writing was shut down; what comes is dropped until the peer's end */
  C10D_CONN_CLOSED,
};

struct c10d_conn {
  uv_poll_t poll; /* first: the handle is the connection */
  struct c10d_server *server;
  struct c10d_place *place;
  struct c10d_conn *prev, *next;         /* all */
  struct c10d_conn *due_prev, *due_next; /* in queue */
  struct c10d_conn *beside_prev, *beside_next;
  struct c10d_conn *line_prev, *line_next; /* in `line` */
  struct c10d_line *line; /* the server's `line`, `parked` or `wanting`; NULL: it waits for nothing */
  struct c10d_queue *queue;
  uint64_t since_ms; /* since when in queue */
  struct c10d_session session;
  struct buf in;  /* the beginning of a request; with `held` whole ones too */
  struct buf out; /* [out_at, len): replies that wait */
  size_t out_at;
  size_t granted; /* room for the request that lies in `in`, where it is large */
  int fd;
  int events; /* that are polled for */
  uint16_t port;
  uint8_t state; /* enum c10d_conn_state */
  uint8_t due;   /* enum c10d_due: what its next turn is for */
  bool silent;   /* not a byte yet */
  bool kept;     /* silent, and over its time */
  bool known;    /* its first request was whole: it is a client */
  bool old;      /* and one before 2.2 */
  bool held;     /* requests lie in `in` because replies wait */
  bool broken;   /* nothing can be sent any more; what it sent before is still obeyed */
};

struct c10d_listening;

struct c10d_server {
  uv_loop_t *loop;
  struct c10d_server_config config;
  char *name, *allowed;
  struct store *store;
  struct c10d_listening *listening;
  struct c10d_conn *first;
  size_t n_conns;
  struct c10d_line line;    /* who is to have a turn */
  struct c10d_line parked;  /* who is to have one when the server is not crowded any more */
  struct c10d_line wanting; /* who is to have one when there is room for its request */
  uv_check_t check;
  uv_idle_t idle;
  struct map places;
  struct addresses addresses;
  struct c10d_queue silent, stalled, lingering, unclear, filling;
  size_t buffered;     /* in the connections' own buffers */
  size_t buffered_out; /* those of it that are replies */
  size_t granted;      /* what all connections have */
  char *chunk;         /* what is read by whoever has its turn */
  struct buf out;      /* replies of whoever has its turn; empty between turns */
  struct err err;
  uv_timer_t timer;
  uint64_t timer_at; /* UINT64_MAX: not set */
  bool paused;       /* no descriptors: nobody is accepted until resume_at_ms or a connection's end */
  uint64_t resume_at_ms;
  size_t open_handles;
  struct store *forgotten; /* closing: freed by `forgetting` where it is large */
  uv_work_t forgetting;
  bool tell_empty; /* the timer is to call on_empty */
  bool closing;
  void (*on_closed)(void *ctx);
  void *on_closed_ctx;
};

/* c10d_conn.c */
/* Takes fd (connected, not blocking, options set). On an error fd is closed. */
int c10d_conn_create(struct c10d_server *s, int fd, const struct ipaddr *addr, uint16_t port,
                     struct c10d_conn **out, struct err *e);
void c10d_conn_start(struct c10d_conn *c, const char *data, size_t len); /* data: read already */
void c10d_conn_keep(struct c10d_conn *c);                                /* it is silent and may stay so */
void c10d_conn_close(struct c10d_conn *c);
/* Its deadline has passed. */
void c10d_conn_expire(struct c10d_conn *c, uint64_t now_ms);

/* Its turn. */
void c10d_conn_serve(struct c10d_conn *c, unsigned due);

/* c10d_turn.c */
void c10d_turns_init(struct c10d_server *s); /* s->check and s->idle; none of this can fail */
void c10d_turn_put(struct c10d_conn *c, unsigned due);
void c10d_turn_drop(struct c10d_conn *c);
void c10d_turn_park(struct c10d_conn *c); /* until there is room for its reply */
void c10d_room_ask(
    struct c10d_conn *c); /* after its turn: for the rest of its request; it may have to wait */
void c10d_room_release(struct c10d_conn *c);
bool c10d_is_crowded(const struct c10d_server *s);
void c10d_turn_room(struct c10d_server *s); /* buffered_out has shrunk */

/* c10d_place.c */
struct c10d_place *c10d_place_find(const struct c10d_server *s, const struct ipaddr *addr);
void c10d_place_enter(struct c10d_conn *c, const struct ipaddr *addr, uint64_t now_ms); /* as silent */
void c10d_place_spoke(struct c10d_conn *c);
void c10d_place_is_old(struct c10d_conn *c);
void c10d_place_keep(struct c10d_conn *c);
bool c10d_place_may_keep(const struct c10d_place *p);
/* Afterwards it may have to lose a silent one: that is returned, to be closed. */
struct c10d_conn *c10d_place_leave(struct c10d_conn *c);
bool c10d_place_has_companion(const struct c10d_conn *c);

/* c10d_server.c */
uint64_t c10d_now_ms(void);
void c10d_server_say(struct c10d_server *s, const struct ipaddr *addr, uint16_t port, enum log_level level,
                     const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void c10d_server_handle_closed(struct c10d_server *s);
void c10d_server_conn_gone(struct c10d_server *s); /* there may be room again, and another deadline */
void c10d_server_arm(struct c10d_server *s, uint64_t at_ms); /* the timer fires then or before */
void c10d_queue_put(struct c10d_queue *q, struct c10d_conn *c,
                    uint64_t now_ms); /* at its end, from wherever it is */
void c10d_queue_drop(struct c10d_conn *c);

#endif
