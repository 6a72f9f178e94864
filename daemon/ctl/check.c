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

static void put_mark(struct buf *out, const struct result *r, const struct line *l) {
  if (r->fault[l->a] || r->fault[l->b])
    buf_printf(out, "  <- host %s", r->hosts[r->fault[l->a] ? l->a : l->b]);
  else if (strcmp(l->is, "good") != 0)
    buf_printf(out, "  <- %s", strcmp(l->is, "link") ? "bad" : "the link");
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
    put_mark(out, &r, l);
    buf_putc(out, '\n');
  }
  buf_printf(out, "# %s\n# %zu hosts, %zu exchanges in %.1f s%s\n", r.sentence, r.n_hosts, r.n, r.took_ms / 1000,
             r.complete ? "" : "; the time was over before all had met");
  finish(&r);
  return true;
}

/* The heat map. ---------------------------------------------------------------------------------------------------- */

enum { SLOWEST = 8 /* times slower than the best, and more: the darkest */, SMALL_FROM = 40, TINY_FROM = 160 };

static void put_xml_n(struct buf *out, const char *s, size_t n) {
  for (; n > 0 && *s; s++, n--) {
    if (*s == '<')
      buf_puts(out, "&lt;");
    else if (*s == '&')
      buf_puts(out, "&amp;");
    else if (*s == '"')
      buf_puts(out, "&quot;");
    else
      buf_putc(out, (unsigned char)*s < 0x20 ? ' ' : *s);
  }
}

static void put_xml(struct buf *out, const char *s) {
  put_xml_n(out, s, strlen(s));
}

/* The sentence in lines of so many characters at most, broken at blanks. Returns how many lines. */
static size_t put_sentence(struct buf *out, const char *s, size_t width) {
  size_t lines = 0;
  while (*s) {
    size_t n = strlen(s);
    if (n > width) {
      n = width;
      while (n > 0 && s[n] != ' ') n--;
      if (!n) n = strcspn(s, " ");
    }
    buf_printf(out, "<text x=\"12\" y=\"%zu\">", 42 + 15 * lines++);
    put_xml_n(out, s, n);
    buf_puts(out, "</text>\n");
    s += n + (s[n] == ' ');
  }
  return lines;
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

struct map_form {
  double left, top, cell;
  bool names;
};

static void put_cell(struct buf *out, const struct result *r, const struct map_form *f, const struct line *l,
                     bool a_sends, double best) {
  size_t from = a_sends ? l->a : l->b, to = a_sends ? l->b : l->a;
  double x = f->left + f->cell * (double)to, y = f->top + f->cell * (double)from;
  double speed = gb_s(l->bytes, a_sends ? l->in_us : l->out_us);
  buf_printf(out, "<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" fill=\"", x, y, f->cell, f->cell);
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
  if (!l->bytes && f->names)
    buf_printf(out, "<path d=\"M%g %gl%g %gm0 %gl%g %g\" stroke=\"#ffffff\" stroke-width=\"1.5\"/>\n",
               x + f->cell * 0.3, y + f->cell * 0.3, f->cell * 0.4, f->cell * 0.4, -f->cell * 0.4, -f->cell * 0.4,
               f->cell * 0.4);
}

static void put_names(struct buf *out, const struct result *r, const struct map_form *f) {
  for (size_t i = 0; i < r->n_hosts; i++) {
    double at = f->cell * ((double)i + 0.5);
    const char *look = r->fault[i] ? " fill=\"#a50026\" font-weight=\"bold\"" : "";
    if (!f->names && !r->fault[i]) continue;
    buf_printf(out, "<text x=\"%g\" y=\"%g\" text-anchor=\"end\"%s>", f->left - 6, f->top + at + 4, look);
    put_xml(out, r->hosts[i]);
    buf_printf(out, "</text>\n<text transform=\"translate(%g %g) rotate(-60)\"%s>", f->left + at + 4, f->top - 6, look);
    put_xml(out, r->hosts[i]);
    buf_puts(out, "</text>\n");
  }
}

static void put_legend(struct buf *out, const struct map_form *f, double y, double best) {
  for (int i = 0; i < 4; i++) {
    double speed = best / (1 << i), x = f->left + i * 110;
    buf_printf(out, "<rect x=\"%g\" y=\"%g\" width=\"14\" height=\"14\" stroke=\"#888888\" fill=\"", x, y);
    put_colour(out, speed, best);
    buf_printf(out, "\"/><text x=\"%g\" y=\"%g\">%s%.3g GB/s</text>\n", x + 20, y + 12, i == 3 ? "&#8804; " : "",
               speed);
  }
  buf_printf(
      out,
      "<rect x=\"%g\" y=\"%g\" width=\"14\" height=\"14\" fill=\"#000000\"/><text x=\"%g\" y=\"%g\">failed</text>\n",
      f->left + 440, y, f->left + 460, y + 12);
}

bool check_put_svg(struct buf *out, const char *json, size_t len) {
  struct result r;
  double best = 0;
  size_t longest = 4;
  if (!read_result(&r, json, len)) return false;
  for (size_t i = 0; i < r.n_hosts; i++)
    if (strlen(r.hosts[i]) > longest) longest = strlen(r.hosts[i]);
  for (size_t i = 0; i < r.n; i++)
    best = fmax(best, fmax(gb_s(r.lines[i].bytes, r.lines[i].in_us), gb_s(r.lines[i].bytes, r.lines[i].out_us)));
  struct map_form f = {.names = r.n_hosts < TINY_FROM,
                       .cell = r.n_hosts < SMALL_FROM  ? 30
                               : r.n_hosts < TINY_FROM ? 15
                                                       : 4};
  f.left = 24 + 7.2 * (double)longest;
  struct buf sentence = BUF_INIT;
  double side = f.cell * (double)r.n_hosts, width = f.left + fmax(side, 520) + 20;
  size_t n_lines = put_sentence(&sentence, r.sentence, (size_t)((width - 24) / 6.8));
  f.top = 50 + 15 * (double)n_lines + 6.4 * (double)longest;
  double height = f.top + side + 60;
  buf_printf(out,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\" "
             "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"%g\" height=\"%g\" fill=\"#ffffff\"/>\n",
             width, height, width, height, width, height);
  buf_puts(out, "<text x=\"12\" y=\"22\" font-size=\"15\">Bandwidth from each row's host to each column's: job ");
  put_xml(out, text(r.json, "job"));
  buf_printf(out, "</text>\n%s<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" fill=\"#eeeeee\"/>\n",
             buf_text(&sentence), f.left, f.top, side, side);
  buf_finish(&sentence);
  for (size_t i = 0; i < r.n; i++) {
    put_cell(out, &r, &f, &r.lines[i], true, best);
    put_cell(out, &r, &f, &r.lines[i], false, best);
  }
  put_names(out, &r, &f);
  if (best > 0) put_legend(out, &f, f.top + side + 22, best);
  buf_puts(out, "</svg>\n");
  finish(&r);
  return true;
}
