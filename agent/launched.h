#ifndef AGENT_LAUNCHED_H
#define AGENT_LAUNCHED_H

/* `rdzv-agent --launched`: what --hosts starts on each host. Reads its plan from stdin, runs the agent of this host as a child, starts the hosts behind
 * its own, and relays all of it. Returns the exit code; whoever launched hears more by the reports. */

int launched_run(char *const *env);

#endif
