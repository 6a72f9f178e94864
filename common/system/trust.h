/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_TRUST_H
#define COMMON_SYSTEM_TRUST_H

/* Files that decide what runs, and that a program finds without being given their place: the programs and modules
 * beside it, the Python of its environment, agent.conf. Another user may have put such a file there: a copy of
 * rdzv-agent in /tmp/bin looks into /tmp/etc and /tmp/libexec, which everybody may create.
 *
 *   owner      The file, a link that leads to it and the folder of the file belong to root, to this user, or to the owner
 *              of the running program. Whoever owns the program could change the program itself.
 *   mode       Neither the file nor its folder can be written by others. A sticky folder is no exception: others may
 *              not replace a file in it, but may add one, and a hard link has the owner of the file to which it leads.
 *   group      A group that may write counts as others, with three exceptions: root's group; the owner's private group
 *              (of the same name, without other members), since a umask of 002 gives it everything; and the group of a
 *              folder of root, which root has chosen, as Debian has chosen staff for /usr/local. An access control
 *              list may let in more users than the mode shows, so a file that has one has no exception.
 *   links      A link counts if its owner does, since the owner chose where it leads. So does each further link on the
 *              way, if others cannot write to its folder, or its mount is read-only. The file behind them is checked
 *              where it lies. So /etc/alternatives, stow and the mounts of Kubernetes work.
 *   above      Folders further up are not looked at. Somebody who can rename them can exchange the program as well.
 *   name space The kernel shows every owner that a user name space does not map as one number. If the program has that
 *              number, as in a container that shows the host's files, the files beside it may have it too.
 *
 * What a person names (PATH, an option) is the person's choice and not checked. RDZV_AGENT_CONF is checked, because a
 * site sets it for its users. */

#include "common/err.h"

/* The file or folder without links, on the heap: what was checked, and should be opened or executed. NULL: it is not
 * there, or cannot be trusted (-EPERM), and a sentence that names the file, whose it is and what to do. */
char *trust_resolve(const char *path, struct err *e);

#endif
