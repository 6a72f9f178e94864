/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_CONTROL_SOCKET_H
#define DAEMON_SERVER_CONTROL_SOCKET_H

/* The unix socket over which rdzvctl reaches a daemon: where it is, how it is created, how it is found. rdzvd and
 * rdzvctl share these rules.
 *
 *   $RUNTIME_DIRECTORY/rdzvd-PORT.sock    under systemd: /run/rdzvd
 *   $XDG_RUNTIME_DIR/rdzvd-PORT.sock      if that folder is ours and writable
 *   /run/rdzvd-PORT.sock                  root
 *   /tmp/rdzvd-UID-PORT/control.sock      all others; the folder is 0755, or rdzvd-UID-PORT-XXXXXX if its name is taken
 *
 * PORT is that of the daemon's first listener. The socket is 0666: the daemon asks the kernel who connects. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "common/err.h"

enum { CONTROL_PATH_MAX = 108 }; /* sun_path, with its NUL */

/* The path for a daemon of this user and port. Creates the folder if it is in /tmp. */
int control_socket_place(uint16_t port, char path[CONTROL_PATH_MAX], struct err *e);
/* Binds, listens and returns the descriptor. It replaces the leftover of a dead daemon, but not the socket of a
 * living one (-EADDRINUSE). */
int control_socket_open(const char *path, struct err *e);
/* Removes what killed daemons of this user left behind, for any port. It does not look for sockets at other paths
 * (--socket). */
void control_socket_sweep(void);
/* Removes the socket, and the folder that control_socket_place made. */
void control_socket_remove(const char *path);

/* 0 if a process listens there, otherwise negative errno. *uid: its user; (uid_t)-1: it is so busy that the kernel does
 * not tell. */
int control_socket_probe(const char *path, uid_t *uid);
/* rdzvctl trusts a daemon of this user: its own, root, or the user of rdzvd.service (the owner of /run/rdzvd). */
bool control_socket_trusts(uid_t uid);
/* Finds the sockets of living daemons of trusted users, where no other user could have put them; port 0: of any
 * port. Returns their number; free *paths with control_socket_free. If there are none, *foreign is one of another
 * user, for a report; its path is "" if there is none. */
struct control_foreign {
  char path[CONTROL_PATH_MAX];
  uid_t uid;
};
size_t control_socket_find(uint16_t port, char ***paths, struct control_foreign *foreign);
void control_socket_free(char **paths, size_t n);

/* The process and user at the other end of a connected unix socket. If we connected, that is the listener. */
int control_socket_peer(int fd, pid_t *pid, uid_t *uid, struct err *e);

#endif
