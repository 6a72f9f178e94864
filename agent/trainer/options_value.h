#ifndef AGENT_TRAINER_OPTIONS_VALUE_H
#define AGENT_TRAINER_OPTIONS_VALUE_H

/* Parsers of the rows of options.c: 0, or -EINVAL and what is wanted. The field is what the row's offset names in struct trainer_opts. */

#include "agent/trainer/run/options.h"

int option_parse_layers(const char *text, void *field, struct err *e);
int option_parse_loss(const char *text, void *field, struct err *e);
int option_parse_device(const char *text, void *field, struct err *e);
int option_parse_precision(const char *text, void *field, struct err *e);
int option_parse_optimizer(const char *text, void *field, struct err *e);
int option_parse_bench(const char *text, void *field, struct err *e);
int option_parse_decay(const char *text, void *field, struct err *e);
int option_parse_resume(const char *text, void *field, struct err *e);
int option_parse_recovery(const char *text, void *field, struct err *e);
int option_parse_cuda_graph(const char *text, void *field, struct err *e);
int option_parse_every(const char *text, void *field, struct err *e);

#endif
