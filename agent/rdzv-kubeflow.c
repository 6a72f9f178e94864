/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv-kubeflow: one report of progress to Kubeflow Trainer, for an agent.
 *
 * libcurl and its libraries are large, and a name server may hold whoever asks it: neither belongs into the agent. The
 * body comes on stdin. The exit code 0 means that the server took it; else stdout has a sentence.
 *
 * The token is read from its file each time, because Kubernetes replaces it. The server is asked directly, without a
 * proxy, follows no redirect, and must have a certificate of the given authority. */

#include <curl/curl.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "agent/kubeflow.h"
#include "common/exit_codes.h"
#include "common/system/file.h"

enum { BODY_MAX = 4096, TOKEN_MAX = 16384 };

static size_t on_body(char *data, size_t size, size_t n, void *ctx) {
  struct buf *out = ctx;
  size_t room = KUBEFLOW_ANSWER_MAX - out->len;
  buf_append(out, data, size * n < room ? size * n : room);
  return size * n;
}

/* Adds a header with what the file has, without its newline; a token has no blanks. */
static bool read_token(const char *path, struct buf *header) {
  struct buf token = BUF_INIT;
  buf_puts(header, "Authorization: Bearer ");
  int rc = file_drain(open(path, O_RDONLY | O_CLOEXEC), TOKEN_MAX, &token);
  size_t n = strcspn(buf_text(&token), " \t\r\n");
  bool good = rc == 0 && n && token.len <= TOKEN_MAX && strspn(buf_text(&token) + n, "\r\n") == token.len - n;
  if (rc)
    printf("%s cannot be read: %s\n", path, strerror(-rc));
  else if (!good)
    printf("%s has no token\n", path);
  if (good) buf_append(header, buf_text(&token), n);
  buf_finish(&token);
  return good;
}

static int report(const char *url, const char *ca, const char *token, const struct buf *body) {
  struct buf header = BUF_INIT, answer = BUF_INIT;
  char error[CURL_ERROR_SIZE] = "";
  long status = 0;
  if (!read_token(token, &header)) {
    buf_finish(&header);
    return EXIT_CODE_SYSTEM;
  }
  CURL *easy = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? curl_easy_init() : NULL;
  struct curl_slist *headers =
      curl_slist_append(curl_slist_append(NULL, "Content-Type: application/json"), buf_text(&header));
  if (!easy || !headers) {
    puts("libcurl cannot be started");
    return EXIT_CODE_SYSTEM;
  }
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_PROXY, "");
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_URL, url);
  curl_easy_setopt(easy, CURLOPT_CAINFO, ca);
  curl_easy_setopt(easy, CURLOPT_CAPATH, NULL); /* Debian's libcurl would trust public authorities as well */
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body->data);
  curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)body->len);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &answer);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error);
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)KUBEFLOW_POST_MS - 1000);
  CURLcode rc = curl_easy_perform(easy);
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  if (rc)
    printf("%s: %s\n", url, error[0] ? error : curl_easy_strerror(rc));
  else if (status != 200)
    printf("%s answered %ld: %s\n", url, status, buf_text(&answer));
  curl_easy_cleanup(easy);
  curl_slist_free_all(headers);
  buf_finish(&header);
  buf_finish(&answer);
  return rc || status != 200 ? EXIT_CODE_SYSTEM : EXIT_CODE_OK;
}

int main(int argc, char **argv) {
  struct buf body = BUF_INIT;
  if (argc != 4) {
    fprintf(
        stderr,
        "usage: rdzv-kubeflow URL CA TOKEN_FILE <body\nReports progress to Kubeflow Trainer. rdzv-agent runs it.\n");
    return EXIT_CODE_USAGE;
  }
  if (file_drain(STDIN_FILENO, BODY_MAX, &body) || !body.len || body.len > BODY_MAX) {
    printf("stdin has no report, or one of more than %d bytes\n", BODY_MAX);
    return EXIT_CODE_USAGE;
  }
  int rc = report(argv[1], argv[2], argv[3], &body);
  buf_finish(&body);
  return fflush(stdout) ? EXIT_CODE_SYSTEM : rc;
}
