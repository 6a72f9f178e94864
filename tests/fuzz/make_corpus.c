/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the seeds of the fuzz targets: real messages of every type, and the ways to spoil one that a fuzzer is slow to
 * find by itself. The files are committed; run this again when a message changes:
 *
 *   build/tests/fuzz/make_corpus tests/fuzz/corpus
 *
 * The same program makes the same files. Files with other names (what a fuzzer found) are left alone. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "tests/fuzz/make_corpus.h"
#include "tests/rig/random_msg.h"
#include "tests/rig/frame.h"

static const char *root;
static int failures;

void corpus_save(const char *target, const char *name, const struct buf *b) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s/%s", root, target, name);
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(buf_text(b), 1, b->len, f) != b->len || fclose(f) != 0) {
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    failures++;
  }
}

static void save_text(const char *target, const char *name, const char *data, size_t len) {
  struct buf b = {(char *)(uintptr_t)data, len, len};
  corpus_save(target, name, &b);
}

/* A frame of type t around any text. */
static void save_json(const char *name, enum msg_type t, const char *json) {
  struct buf b = BUF_INIT;
  frame_put(&b, &(struct frame){.type = (uint16_t)t, .json = json, .json_len = strlen(json)});
  corpus_save("msg", name, &b);
  buf_finish(&b);
}

static void save_messages(void) {
  char name[64];
  for (int t = 1; t < MSG_COUNT; t++)
    for (uint64_t seed = 1; seed <= 40; seed++) {
      struct random_msg r;
      struct buf b = BUF_INIT;
      random_msg_init(&r, (enum msg_type)t, seed);
      msg_encode(&b, &r.m);
      snprintf(name, sizeof(name), "%02d-%s", t, msg_name((enum msg_type)t));
      bool fit = b.len < 900;
      if (fit) corpus_save("msg", name, &b);
      buf_finish(&b);
      random_msg_finish(&r);
      if (fit) break; /* small seeds only */
    }
}

static void save_spoilt(void) {
  struct buf deep = BUF_INIT;
  for (int i = 0; i < 2100; i++) buf_puts(&deep, "{\"x\":");
  save_json("x-deep", MSG_BYE, buf_text(&deep));
  buf_finish(&deep);
  save_json("x-duplicate", MSG_BYE, "{\"text\":\"a\",\"text\":\"b\"}");
  save_json("x-nul", MSG_BYE, "{\"text\":\"\\u0000\"}");
  save_json("x-overlong", MSG_BYE, "{\"text\":\"\xc0\xaf\"}");
  save_json("x-surrogate", MSG_BYE, "{\"text\":\"\\ud83d\\ude00 \\ud800\"}");
  save_json("x-escapes", MSG_BYE, "{\"text\":\"\\b\\f\\n\\r\\t\\/\\\\\\\"\\u00e9\\u2028\"}");
  save_json("x-array", MSG_BYE, "[]");
  save_json("x-behind", MSG_BYE, "{} {}");
  save_json("x-empty", MSG_HELLO, "");
  save_json("x-list", MSG_HELLO,
            "{\"version\":1,\"agent\":\"a\",\"job\":\"j\",\"host\":\"h\",\"workers\":1,\"reports\":[{},[],1]}");
  save_json("x-numbers", MSG_PROGRESS,
            "{\"incarnation\":\"a\",\"round\":1,\"step\":9223372036854775807,\"loss\":-0.0,\"samples_per_"
            "second\":1e308}");
  save_json("x-bounds", MSG_PROGRESS, "{\"incarnation\":\"a\",\"round\":0}");
  save_json("x-overflow", MSG_PROGRESS, "{\"incarnation\":\"a\",\"round\":9223372036854775808,\"loss\":1e309}");
  save_json("x-word", MSG_END, "{\"incarnation\":\"a\",\"outcome\":\"\\u001b[31m\"}");
  save_json(
      "x-hex", MSG_FORWARD,
      "{\"version\":1,\"job\":\"j\",\"incarnation\":\"a\",\"origin\":\"a\",\"round\":1,\"daemon\":\"0X\",\"host\":\"h\",\"addr\":\"::1\","
      "\"port\":1}");
  save_json("x-port", MSG_MOVED, "{\"host\":\"h\",\"addr\":\"::1\",\"port\":65536}");
  save_json("x-seal", MSG_START, "{\"seal\":{\"nodes\":-1},\"successors\":[{},{},{},{}]}");
  save_json("x-unknown-type", MSG_COUNT, "{}");
}

static void save_frames(void) {
  static const char *const firsts[] = {
      "RDZV\1\0\0\0", "GET / HTTP/1.1\r\n\r\n", "OPTIONS * HTTP/1.1", "SSH-2.0-OpenSSH", "RDZ", "PU"};
  static const size_t lengths[] = {8, 18, 18, 15, 3, 2};
  char name[64];
  for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
    snprintf(name, sizeof(name), "first-%zu", i);
    save_text("frame", name, firsts[i], lengths[i]);
  }
  save_text("frame", "first-c10d", "\x00\xce\xf7\x85\x3c", 5);
  save_text("frame", "first-c10d-old", "\x00\x04\0\0\0\0\0\0\0init", 13);
  struct buf b = BUF_INIT;
  frame_put(&b, &(struct frame){.type = MSG_HEARTBEAT, .id = 7});
  corpus_save("frame", "heartbeat", &b);
  frame_put(&b, &(struct frame){.type = MSG_BYE, .json = "{}", .json_len = 2, .raw = "raw", .raw_len = 3});
  corpus_save("frame", "two", &b);
  b.len -= 1;
  corpus_save("frame", "cut", &b);
  le32_put(b.data, FRAME_MAX_UNIDENTIFIED);
  corpus_save("frame", "longest", &b);
  le32_put(b.data, FRAME_MAX_UNIDENTIFIED + 1);
  corpus_save("frame", "too-long", &b);
  le32_put(b.data, UINT32_MAX);
  corpus_save("frame", "all-ones", &b);
  le32_put(b.data, 1);
  le32_put(b.data + 12, 2);
  corpus_save("frame", "json-longer", &b);
  buf_finish(&b);
}

static void save_requests(void) {
  static const char *const requests[][2] = {
      {"health", "GET /healthz HTTP/1.1\r\nHost: 10.0.0.1:29400\r\nUser-Agent: kube-probe/1.31\r\nAccept: */*\r\n\r\n"},
      {"ready", "HEAD /readyz?verbose=1 HTTP/1.0\n\n"},
      {"absolute", "GET http://node1:29400/readyz HTTP/1.1\r\nhost:x\r\nContent-Length: 0\r\n\r\n"},
      {"status", "GET /status HTTP/1.1\r\nHost: 127.0.0.1:29400\r\nAuthorization: Bearer "
                 "1000:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\r\n\r\n"},
      {"basic", "GET /status HTTP/1.1\r\nHost: node1\r\nAuthorization: Basic YTpi\r\nX-Forwarded-For: ::1\r\n\r\n"},
      {"page", "GET / HTTP/1.1\r\nHost: localhost:1\r\nSec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\n"
               "If-None-Match: W/\"x\", \"0123456789abcdef\"\r\n\r\n"},
      {"post", "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"},
      {"two", "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"chunked", "GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {"folded", "GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n"},
      {"no-host", "GET / HTTP/1.1\r\n\r\n"},
      {"version", "GET / HTTP/2.0\r\n\r\n"},
      {"star", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"half", "GET /healthz HTTP/1.1\r\nHost: x\r\n"},
  };
  for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++)
    save_text("http", requests[i][0], requests[i][1], strlen(requests[i][1]));
}

/* fuzz_channel.c says what the first bytes mean. */
static void save_channel(void) {
  static const char zeros[96];
  static const struct {
    char mode;
    const char *name;
    size_t size;
  } changed[] = {{'O', "opening", 60}, {'A', "answer", 60}, {'T', "resuming", 88}, {'B', "resumed", 56}};
  struct buf b = BUF_INIT;
  for (size_t i = 0; i < sizeof(changed) / sizeof(changed[0]); i++) {
    char name[32];
    snprintf(name, sizeof(name), "%s-valid", changed[i].name);
    save_text("channel", name, &changed[i].mode, 1);
    for (size_t at = 0; at < changed[i].size; at += 11) {
      buf_clear(&b);
      buf_putc(&b, changed[i].mode);
      buf_append(&b, zeros, at);
      buf_putc(&b, '\x80');
      snprintf(name, sizeof(name), "%s-%02zu", changed[i].name, at);
      corpus_save("channel", name, &b);
    }
  }
  save_text("channel", "resuming-short", "tRDZV\1\0\3\0", 9);
  save_text("channel", "sealed-nothing", "s\0\0\xff\xff", 5);
  save_text("channel", "opening-short", "oRDZV\1\0\1\0", 9);
  save_text("channel", "answer-refused", "aRDZV\1\0\1\1", 9);
  save_text("channel", "answer-http", "aHTTP/1.1 400 Bad Request\r\n\r\n", 29);
  save_text("channel", "records-empty", "r\x10\0aaaaaaaaaaaaaaaa", 19);
  save_text("channel", "records-long", "r\xff\xff", 3);
  save_text("channel", "records-none", "r\x11\0aaaaaaaaaaaaaaaaa", 20);
  for (uint64_t seed = 1; b.len <= UINT16_MAX; seed++) { /* more than one record */
    struct random_msg r;
    random_msg_init(&r, MSG_HELLO, seed);
    for (int flip = 0; flip < 2; flip++) {
      buf_clear(&b);
      buf_append(&b, flip ? "s\x10\0\x40\3" : "s\x10\0\xff\xff", 5);
      msg_encode(&b, &r.m);
      corpus_save("channel", flip ? "sealed-flipped" : "sealed", &b);
    }
    random_msg_finish(&r);
  }
  buf_finish(&b);
}

int main(int argc, char **argv) {
  if (argc != 2) return fprintf(stderr, "usage: make_corpus DIRECTORY\n"), 64;
  root = argv[1];
  save_messages();
  save_spoilt();
  save_frames();
  save_requests();
  save_channel();
  corpus_save_c10d();
  return failures ? 1 : 0;
}
