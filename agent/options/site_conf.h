/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OPTIONS_SITE_CONF_H
#define AGENT_OPTIONS_SITE_CONF_H

/* agent.conf: a site's defaults for all jobs, one "option = value" on a line. */

#include "common/err.h"
#include "common/opts/opts.h"

/* Reads the file that RDZV_AGENT_CONF names (empty: none), else that of this installation, which may be missing. *f
 * must be finished in any case. 0, or a negative errno and a sentence that names the file, and the line if it is to
 * blame. */
int site_conf_read(struct opts_file *f, char *const *env, struct err *e);

#endif
