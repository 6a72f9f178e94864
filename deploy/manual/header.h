#ifndef DEPLOY_MANUAL_HEADER_H
#define DEPLOY_MANUAL_HEADER_H

/* A manual page from a C header's comments: what agent/sdk/rdzv.h says of its functions is said there alone. */

#include <stdbool.h>
#include "common/buf.h"

/* The functions below append mdoc(7) for what is named, and are false where the header does not have it. */

/* The comment in front of the declaration of `name`: paragraphs, and code where its lines are indented by four or more. With
 * `rest` without its first words up to a full stop, colon or question mark, which are its heading. */
bool header_put_comment(const char *text, const char *name, bool rest, struct buf *out);
/* The same of the comment in front of the first #include: what the header as a whole is about. */
bool header_put_intro(const char *text, struct buf *out);
/* An item of a list: the declaration of the function `name`, and with `comment` the comment in front of it; then the one
 * behind it, on its line. */
bool header_put_function(const char *text, const char *name, bool comment, struct buf *out);
/* An item of a list: the constant `name` of an enum, its value, its comment. */
bool header_put_constant(const char *text, const char *name, struct buf *out);

#endif
