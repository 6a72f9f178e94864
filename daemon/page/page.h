/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_PAGE_PAGE_H
#define DAEMON_PAGE_PAGE_H

/* What a browser shows of the jobs. Pure.
 *
 *   page.html, page.css, *.js   the live page: one document without any other resource, which reads /status again and again
 *   embed.py                    makes that document at build time, and the hashes of its style and its script
 *
 * Every text comes from peers: host names, names of jobs, last lines of workers. The script puts them into the document
 * as text alone. The policy below allows nothing else to run or to be loaded, so that a mistake there would still do
 * nothing. */

#include <stddef.h>

extern const unsigned char page_html[];
extern const size_t page_html_len;
extern const char page_etag[];   /* changes with the document */
extern const char page_policy[]; /* Content-Security-Policy */

#endif
