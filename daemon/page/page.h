/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_PAGE_PAGE_H
#define DAEMON_PAGE_PAGE_H

/* What a browser shows of the jobs. Pure.
 *
 *   page.html, page.css, *.js   the live page: one document without any other resource, which reads /status again and again
 *   embed.py                    makes that document at build time, and the hashes of its style and its script
 *   table.c, table.css          the same facts as a document that needs no script
 *
 * Every text comes from peers: host names, names of jobs, last lines of workers. table.c escapes all of them, and the
 * script puts them into the document as text alone. The policies below allow nothing else to run or to be loaded, so
 * that a mistake there would still do nothing. */

#include <stddef.h>
#include "common/buf.h"

extern const unsigned char page_html[];
extern const size_t page_html_len;
extern const char page_etag[];   /* changes with the document */
extern const char page_policy[]; /* Content-Security-Policy */

/* Of what rdzvctl status --json prints: the document of /table. It holds at most PAGE_TABLE_NODES nodes of a job. */
enum { PAGE_TABLE_NODES = 500, PAGE_TABLE_REFRESH_S = 5 };
void page_put_table(const char *json, size_t len, struct buf *out);
extern const char page_table_policy[];

extern const unsigned char page_table_style[];
extern const size_t page_table_style_len;

#endif
