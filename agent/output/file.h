/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OUTPUT_FILE_H
#define AGENT_OUTPUT_FILE_H

/* A file that the relay appends to. For its thread only. */

#include <stdbool.h>
#include <stddef.h>

struct relay_file {
  char *name;  /* owned; NULL: no file, and the calls do nothing */
  int fd;      /* -1: not open */
  bool failed; /* opening or writing failed; everything is dropped from then on */
};

void relay_file_init(struct relay_file *f, const char *name);
void relay_file_finish(struct relay_file *f);
/* 0, or a negative errno, once: then it has failed. Missing folders are made. */
int relay_file_open(struct relay_file *f);
int relay_file_write(struct relay_file *f, const char *data, size_t n);
void relay_file_close(struct relay_file *f);

#endif
