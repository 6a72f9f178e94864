#ifndef DAEMON_CONTROL_SOCKET_H
#define DAEMON_CONTROL_SOCKET_H

/* The unix socket over which rdzvctl reaches a daemon: where it lies, how it is made, how it is found. rdzvd and rdzvctl
 * share these rules.
 *
 *   $RUNTIME_DIRECTORY/rdzvd-PORT.sock    under systemd: /run/rdzvd
 *   $XDG_RUNTIME_DIR/rdzvd-PORT.sock      where that folder is ours and can be written
 *   /run/rdzvd-PORT.sock                  root
 *   /tmp/rdzvd-UID-PORT/control.sock      everybody else; the folder is 0755
 *
 * PORT is that of the daemon's first listener. The socket is 0666: the daemon asks the kernel who it is that connects. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "common/err.h"

enum { CONTROL_PATH_MAX = 108 }; /* sun_path, with its NUL */

/* Where a daemon of this user and port puts its socket; makes the folder in /tmp if that is where. */
int control_socket_place(uint16_t port, char path[CONTROL_PATH_MAX], struct err *e);
/* Binds and listens; a leftover of a daemon that is gone is replaced, a living one's is not (-EADDRINUSE). The descriptor. */
int control_socket_open(const char *path, struct err *e);
/* Removes what daemons of this user left when they were killed, of any port; sockets at other places (--socket) are not
 * looked for. */
void control_socket_sweep(void);
/* Removes the socket, and the folder that control_socket_place made. */
void control_socket_remove(const char *path);

/* 0 if somebody listens there, else negative errno. */
int control_socket_probe(const char *path);
/* It is that of rdzvd.service. */
bool control_socket_is_service(const char *path);
/* The sockets of living daemons of this user and of root; where there are none (for root: as well), those of other users; port 0: of any
 * port. Their number; *paths is to be freed with control_socket_free. */
size_t control_socket_find(uint16_t port, char ***paths);
void control_socket_free(char **paths, size_t n);

/* Who is at the other end of a connected unix socket; of one that we connected: who listens there. */
int control_socket_peer(int fd, pid_t *pid, uid_t *uid, struct err *e);

#endif
