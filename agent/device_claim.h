#ifndef AGENT_DEVICE_CLAIM_H
#define AGENT_DEVICE_CLAIM_H

/* Whether two agents on one host give the same device to their workers. */

/* Says that this agent's workers of `job` use the device. A descriptor to be closed when they do no longer; -EADDRINUSE: those
 * of another agent of this job, of the same user, use it already; another negative errno: it cannot be known. */
int device_claim(const char *uuid, const char *job);

#endif
