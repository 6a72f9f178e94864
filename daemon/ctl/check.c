/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ctl/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/json.h"
#include "common/mem.h"

enum { TABLE_NAME_MAX = 20, HOSTS_LIMIT = 4096 };

/* One exchange, between hosts a and b. */
struct line {
  size_t a, b;
  double bytes, out_us, in_us, rtt_us; /* bytes 0: it failed */
  const char *is, *text, *over;
};

struct result {
  json_t *json;
  size_t n_hosts, n;
  const char **hosts;
  bool *fault;
  struct line *lines;
  const char *sentence;
  bool complete;
  double took_ms;
};

static void finish(struct result *r) {
  json_decref(r->json);
  free(r->hosts);
  free(r->fault);
  free(r->lines);
}

static double number(const json_t *o, const char *key) {
  return json_number_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key) {
  const char *s = json_string_value(json_object_get(o, key));
  return s ? s : "";
}

static bool read_result(struct result *r, const char *json, size_t len) {
  *r = (struct result){.json = json_loadb(json, len, JSON_DISABLE_EOF_CHECK, NULL)};
  const json_t *hosts = json_object_get(r->json, "hosts"), *pairs = json_object_get(r->json, "pairs");
  bool good = json_is_array(hosts) && json_is_array(pairs) && json_array_size(hosts) <= HOSTS_LIMIT;
  r->n_hosts = good ? json_array_size(hosts) : 0;
  r->n = good ? json_array_size(pairs) : 0;
  r->hosts = xcalloc(r->n_hosts + 1, sizeof *r->hosts);
  r->fault = xcalloc(r->n_hosts + 1, sizeof *r->fault);
  r->lines = xcalloc(r->n + 1, sizeof *r->lines);
  r->sentence = text(r->json, "sentence");
  r->complete = json_is_true(json_object_get(r->json, "complete"));
  r->took_ms = number(r->json, "took_ms");
  for (size_t i = 0; i < r->n_hosts; i++) {
    r->hosts[i] = text(json_array_get(hosts, i), "host");
    r->fault[i] = json_is_true(json_object_get(json_array_get(hosts, i), "fault"));
  }
  for (size_t i = 0; i < r->n && good; i++) {
    const json_t *v = json_array_get(pairs, i);
    double a = number(v, "a"), b = number(v, "b");
    good = a >= 0 && a < (double)r->n_hosts && b >= 0 && b < (double)r->n_hosts;
    if (good)
      r->lines[i] = (struct line){.a = (size_t)a,
                                  .b = (size_t)b,
                                  .bytes = number(v, "bytes"),
                                  .out_us = number(v, "out_us"),
                                  .in_us = number(v, "in_us"),
                                  .rtt_us = number(v, "rtt_us"),
                                  .is = text(v, "is"),
                                  .text = text(v, "text"),
                                  .over = text(v, "over")};
  }
  if (!good) finish(r);
  return good;
}

static double gb_s(double bytes, double us) {
  return bytes / 1e3 / (us > 0 ? us : 1);
}

/* The table. ------------------------------------------------------------------------------------------------------- */

/* As nccl-tests' sendrecv_perf, where the bandwidth of the bus is that of the algorithm. */
static void put_direction(struct buf *out, double bytes, double us) {
  double speed = gb_s(bytes, us);
  buf_printf(out, " %9.0f %8.3f %8.3f", us, speed, speed);
}

static void put_head(struct buf *out, int width, const char *a, const char *b, const char *const w[6]) {
  buf_printf(out, "# %-*s  %-*s %10s %9s %8s %8s %9s %8s %8s %8s  %s\n", width, a, width, b, w[0], w[1], w[2], w[3],
             w[1], w[2], w[3], w[4], w[5]);
}

bool check_put_table(struct buf *out, const char *json, size_t len) {
  struct result r;
  int width = 4;
  if (!read_result(&r, json, len)) return false;
  for (size_t i = 0; i < r.n_hosts; i++)
    if ((int)strlen(r.hosts[i]) > width) width = (int)strlen(r.hosts[i]);
  if (width > TABLE_NAME_MAX) width = TABLE_NAME_MAX;
  buf_printf(out, "# %*s %10s %27s %27s\n", 2 * width + 2, "", "", "from a to b", "from b to a");
  put_head(out, width, "a", "b", (const char *const[]){"size", "time", "algbw", "busbw", "trip", "over"});
  put_head(out, width, "", "", (const char *const[]){"(B)", "(us)", "(GB/s)", "(GB/s)", "(us)", ""});
  for (size_t i = 0; i < r.n; i++) {
    const struct line *l = &r.lines[i];
    buf_printf(out, "  %-*.*s  %-*.*s", width, width, r.hosts[l->a], width, width, r.hosts[l->b]);
    if (l->bytes > 0) {
      buf_printf(out, " %10.0f", l->bytes);
      put_direction(out, l->bytes, l->in_us);
      put_direction(out, l->bytes, l->out_us);
      buf_printf(out, " %8.0f  %-4s", l->rtt_us, l->over);
    } else {
      buf_printf(out, "  %s", l->text);
    }
    if (r.fault[l->a] || r.fault[l->b])
      buf_printf(out, "  <- host %s", r.hosts[r.fault[l->a] ? l->a : l->b]);
    else if (strcmp(l->is, "good") != 0)
      buf_printf(out, "  <- %s", strcmp(l->is, "link") ? "bad" : "the link");
    buf_putc(out, '\n');
  }
  buf_printf(out, "# %s\n# %zu hosts, %zu exchanges in %.1f s%s\n", r.sentence, r.n_hosts, r.n, r.took_ms / 1000,
             r.complete ? "" : "; the time was over before all had met");
  finish(&r);
  return true;
}

/* The heat map. ---------------------------------------------------------------------------------------------------- */

enum { SLOWEST = 8 /* times slower than the best, and more: the darkest */, CELL = 14 };

static void put_xml(struct buf *out, const char *s) {
  for (; *s; s++) {
    if (*s == '<')
      buf_puts(out, "&lt;");
    else if (*s == '&')
      buf_puts(out, "&amp;");
    else
      buf_putc(out, (unsigned char)*s < 0x20 ? ' ' : *s);
  }
}

/* From a light yellow over orange to a dark red, by the logarithm. */
static void put_colour(struct buf *out, double speed, double best) {
  static const int stops[][3] = {{255, 247, 214}, {253, 174, 97}, {165, 0, 38}};
  double x = speed > 0 ? log(best / speed) / log(SLOWEST) : 1;
  x = x < 0 ? 0 : x > 1 ? 2 : 2 * x;
  int k = x >= 1;
  buf_puts(out, "#");
  for (int i = 0; i < 3; i++)
    buf_printf(out, "%02x", (unsigned)(stops[k][i] + (stops[k + 1][i] - stops[k][i]) * (x - k) + 0.5));
}

static void put_cell(struct buf *out, const struct result *r, const struct line *l, bool a_sends, double best) {
  size_t from = a_sends ? l->a : l->b, to = a_sends ? l->b : l->a;
  double speed = gb_s(l->bytes, a_sends ? l->in_us : l->out_us);
  buf_printf(out, "<rect x=\"%zu\" y=\"%zu\" width=\"%d\" height=\"%d\" fill=\"", CELL * to, CELL * from, CELL, CELL);
  if (l->bytes > 0)
    put_colour(out, speed, best);
  else
    buf_puts(out, "#000000");
  buf_puts(out, "\"><title>");
  put_xml(out, r->hosts[from]);
  buf_puts(out, " to ");
  put_xml(out, r->hosts[to]);
  if (l->bytes > 0)
    buf_printf(out, ": %.3f GB/s over %s, round trip %.0f us", speed, l->over, l->rtt_us);
  else
    buf_puts(out, ": "), put_xml(out, l->text);
  buf_puts(out, "</title></rect>\n");
}

/* One for each transport: their speeds are not compared. */
static void find_best(const struct result *r, double best[2]) {
  for (size_t i = 0; i < r->n; i++) {
    const struct line *l = &r->lines[i];
    double *of = &best[!strcmp(l->over, "NCCL")];
    *of = fmax(*of, fmax(gb_s(l->bytes, l->in_us), gb_s(l->bytes, l->out_us)));
  }
}

bool check_put_svg(struct buf *out, const char *json, size_t len) {
  struct result r;
  double best[2] = {0, 0};
  size_t longest = 4;
  if (!read_result(&r, json, len)) return false;
  for (size_t i = 0; i < r.n_hosts; i++)
    if (strlen(r.hosts[i]) > longest) longest = strlen(r.hosts[i]);
  find_best(&r, best);
  size_t left = 12 + 8 * longest, side = CELL * r.n_hosts, width = left + side + 12, height = left + side + 60;
  size_t needs = 24 + 7 * (strlen(r.sentence) + strlen(text(r.json, "job")) + 2);
  if (width < needs || width < 640) width = needs > 640 ? needs : 640;
  buf_printf(out,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%zu\" height=\"%zu\" viewBox=\"0 0 %zu %zu\" "
             "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"%zu\" height=\"%zu\" fill=\"#ffffff\"/>\n"
             "<text x=\"12\" y=\"20\">",
             width, height, width, height, width, height);
  put_xml(out, text(r.json, "job"));
  buf_puts(out, ": ");
  put_xml(out, r.sentence);
  buf_printf(
      out,
      "</text>\n<text x=\"12\" y=\"38\">from each row's host to each column's: the best is light, an eighth of it or "
      "less is dark, black failed</text>\n<g transform=\"translate(%zu %zu)\">\n"
      "<rect width=\"%zu\" height=\"%zu\" fill=\"#eeeeee\"/>\n",
      left, left + 50, side, side);
  for (size_t i = 0; i < r.n; i++)
    for (int a_sends = 0; a_sends < 2; a_sends++)
      put_cell(out, &r, &r.lines[i], a_sends, best[!strcmp(r.lines[i].over, "NCCL")]);
  for (size_t i = 0; i < 2 * r.n_hosts; i++) { /* rows, and columns */
    size_t host = i / 2, at = CELL * host + CELL - 3;
    bool column = i % 2;
    buf_printf(out,
               column ? "<text transform=\"translate(%zu -5) rotate(-60)\"%s>"
                      : "<text x=\"-5\" y=\"%zu\" text-anchor=\"end\"%s>",
               at, r.fault[host] ? " fill=\"#a50026\" font-weight=\"bold\"" : "");
    put_xml(out, r.hosts[host]);
    buf_puts(out, "</text>\n");
  }
  buf_puts(out, "</g>\n</svg>\n");
  finish(&r);
  return true;
}
