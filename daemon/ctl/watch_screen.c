/* SPDX-License-Identifier: Apache-2.0 */
/* The page of rdzvctl --watch.
 *
 * On a terminal it uses the alternate screen, so that the former contents come back afterwards. A page is written over
 * the last one, line by line, each cleared to its end, and the rest below is cleared: nothing flickers, and one
 * write(2) holds the whole page. Lines are cut at the window's width and pages at its height, where the last line
 * counts what is left. The size is asked for each time, so a resized window needs nothing more. Continuation bytes of a
 * character do not count as columns.
 *
 * Without a terminal, blocks are appended: a time, the text and an empty line, or one JSON object per line for a log
 * or for jq. */

#include "daemon/ctl/watch_screen.h"

#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>
#include "common/json.h"
#include "common/system/file.h"

#define OPEN_SCREEN  "\x1b[?1049h\x1b[?25l"
#define CLOSE_SCREEN "\x1b[?25h\x1b[?1049l"

enum { WIDTH_MIN = 20, HEIGHT_MIN = 3, WIDTH_DEFAULT = 80, HEIGHT_DEFAULT = 24 };

void ctl_screen_init(struct ctl_screen *s, int fd, bool json) {
  *s = (struct ctl_screen){.fd = fd, .json = json, .terminal = !json && isatty(fd)};
}

void ctl_screen_close(struct ctl_screen *s) {
  if (!s->open) return;
  s->open = false;
  file_write_all(s->fd, CLOSE_SCREEN, strlen(CLOSE_SCREEN));
}

void ctl_screen_put_printable(struct buf *out, const char *text, size_t len, bool json) {
  if (json) {
    json_put_printable(out, text, len);
    return;
  }
  for (const char *end = text + len, *stop; text < end; text = stop + 1) {
    stop = memchr(text, '\n', (size_t)(end - text));
    size_t n = (size_t)((stop ? stop : end) - text);
    buf_put_plain(out, text, n, n);
    if (!stop) return;
    buf_putc(out, '\n');
  }
}

void ctl_screen_put_marked(struct buf *out, const char *text, size_t len) {
  struct buf shown = BUF_INIT;
  ctl_screen_put_printable(&shown, text, len, false);
  bool red = false;
  for (size_t i = 0; i < shown.len; i++) {
    const char *p = shown.data + i;
    bool ends = *p == '\n' || (*p == ' ' && i + 1 < shown.len && p[1] == ' ');
    bool begins = i == 0 || p[-1] == '\n' || (i > 1 && p[-1] == ' ' && p[-2] == ' ');
    if (red && ends) buf_puts(out, "\x1b[0m");
    if (!red && *p == '!' && begins) buf_puts(out, "\x1b[31m");
    red = (red && !ends) || (*p == '!' && begins);
    buf_putc(out, *p);
  }
  if (red) buf_puts(out, "\x1b[0m");
  buf_finish(&shown);
}

/* Appends a line without its newline, cut at the width, and clears its end on the screen. */
static void put_line(struct buf *out, const char *line, size_t len, size_t width) {
  size_t columns = 0, n = 0;
  while (n < len && (columns < width || ((unsigned char)line[n] & 0xC0) == 0x80)) {
    if (((unsigned char)line[n] & 0xC0) != 0x80) columns++;
    n++;
  }
  buf_append(out, line, n);
  buf_puts(out, "\x1b[K\r\n");
}

static void put_page(struct buf *out, const char *text, size_t len, size_t width, size_t height) {
  size_t lines = 0, shown = 0;
  for (size_t i = 0; i < len; i++) lines += text[i] == '\n';
  bool more = lines > height;
  for (const char *end; len > 0 && shown < (more ? height - 1 : height); shown++) {
    end = memchr(text, '\n', len);
    size_t n = end ? (size_t)(end - text) : len;
    put_line(out, text, n, width);
    n += end ? 1 : 0;
    text += n;
    len -= n;
  }
  if (more) buf_printf(out, "... %zu more lines\x1b[K", lines - shown);
}

size_t ctl_screen_width(const struct ctl_screen *s) {
  struct winsize size = {0};
  if (!s->terminal) return 0;
  ioctl(s->fd, TIOCGWINSZ, &size);
  return size.ws_col >= WIDTH_MIN ? size.ws_col : WIDTH_DEFAULT;
}

bool ctl_screen_show(struct ctl_screen *s, const char *head, const char *text, size_t len) {
  char clock[16];
  struct tm tm;
  time_t now = time(NULL);
  strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&now, &tm));
  struct buf line = BUF_INIT, page = BUF_INIT;
  ctl_screen_put_printable(&page, text, len, s->json);
  struct buf out = BUF_INIT;
  if (s->terminal) {
    struct winsize size = {0};
    ioctl(s->fd, TIOCGWINSZ, &size);
    size_t width = ctl_screen_width(s), height = size.ws_row >= HEIGHT_MIN ? size.ws_row : HEIGHT_DEFAULT;
    buf_puts(&out, s->open ? "\x1b[H" : OPEN_SCREEN "\x1b[H");
    s->open = true;
    buf_printf(&line, "%s  ", clock);
    buf_put_plain(&line, head, strlen(head), strlen(head));
    put_line(&out, buf_text(&line), line.len, width);
    put_page(&out, buf_text(&page), page.len, width, height - 2);
    buf_puts(&out, "\x1b[J");
  } else {
    if (!s->json) buf_printf(&out, "%s%s\n", s->begun ? "\n" : "", clock);
    buf_append(&out, page.data, page.len);
    s->begun = true;
  }
  bool ok = file_write_all(s->fd, out.data, out.len) == 0;
  buf_finish(&line);
  buf_finish(&page);
  buf_finish(&out);
  return ok;
}
