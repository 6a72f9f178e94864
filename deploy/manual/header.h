/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DEPLOY_MANUAL_HEADER_H
#define DEPLOY_MANUAL_HEADER_H

/* A manual page from a C header's comments, so that only agent/sdk/rdzv.h describes its functions. */

#include <stdbool.h>
#include "common/buf.h"

/* The functions below append mdoc(7) for the given name. False: the header does not have it. */

/* The comment before the declaration of `name`, as paragraphs; lines that are indented by four or more are code.
 * `rest`: without its heading, which ends with the first full stop, colon or question mark. */
bool header_put_comment(const char *text, const char *name, bool rest, struct buf *out);
/* The same of the comment before the first #include, which describes the header as a whole. */
bool header_put_intro(const char *text, struct buf *out);
/* An item of a list: the declaration of the function `name`, and with `comment` the comment in front of it; then the
 * one behind it, on its line. */
bool header_put_function(const char *text, const char *name, bool comment, struct buf *out);
/* An item of a list: the constant `name` of an enum, its value, its comment. */
bool header_put_constant(const char *text, const char *name, struct buf *out);

#endif
