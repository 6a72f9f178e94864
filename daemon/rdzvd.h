/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_RDZVD_H
#define DAEMON_RDZVD_H

/* rdzvd as a function. The program calls it, and so does an agent's copy of itself, which needs no exec. */

/* Returns the exit code. Once per process. argv and the environment stay as they are while it runs. */
int rdzvd_main(int argc, char **argv);

#endif
