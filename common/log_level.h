/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_LOG_LEVEL_H
#define COMMON_LOG_LEVEL_H

/* The levels of the log. They have a header of their own because pure modules return lines with a level. */
enum log_level {
  LOG_ERROR, /* something is lost or ends           (always shown) */
  LOG_WARN,  /* a person should look at it          (always shown) */
  LOG_INFO,  /* state changes a person expects      (default; hidden by --quiet) */
  LOG_DEBUG, /* every event, for us                 (--verbose) */
};

#endif
