/* SPDX-License-Identifier: Apache-2.0 */
/* Stops and continues everything below the guard.
 *
 * Ctrl-Z must stop data loaders too, in whatever session they are, so the descendants are looked up in /proc. A process
 * may fork while the picture is taken. So pictures are taken until two in a row show only stopped processes: one alone
 * can miss a process whose parent died meanwhile. The kernel may hold a process (state D) which stops later, so that
 * ends after STOP_LOOKS pictures.
 *
 * SIGKILL ends a stopped process like any other. So the guard, the backstop and the agent find nothing changed. */

#include "agent/guard/proctree.h"
#include "agent/guard/wire.h"

#include <signal.h>
#include <string.h>
#include <time.h>

enum { STOP_LOOKS = 20 };

void guard_stop_trees(void) {
  struct proctree t = PROCTREE_INIT;
  for (int i = 0, quiet = 0; i < STOP_LOOKS && quiet < 2; i++) {
    quiet++;
    proctree_descendants(&t, 0, 0);
    for (size_t k = 0; k < t.n; k++) {
      if (strchr("ZXTt", t.v[k].state)) continue;
      proc_signal(&t.v[k], SIGSTOP);
      quiet = 0;
    }
    if (!quiet) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  proctree_finish(&t);
}

void guard_continue_trees(void) {
  struct proctree t = PROCTREE_INIT;
  proctree_descendants(&t, 0, 0);
  for (size_t i = 0; i < t.n; i++) proc_signal(&t.v[i], SIGCONT);
  proctree_finish(&t);
}
