/* SPDX-License-Identifier: Apache-2.0 */
/* A worker in C beside one in Python (beside_c.py): they tell each other things through the round's store, both ways.
 * Prints "C: ok". */

#include <rdzv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MS = 20000, BIG = 8 * 1024 * 1024 };

static struct rdzv *r;

static void ok(int rc, const char *what) {
  if (rc == 0) return;
  printf("C: %s: %d: %s\n", what, rc, rdzv_error(r));
  exit(1);
}
#define OK(call) ok(call, #call)

static void check(int right, const char *what) {
  if (right) return;
  printf("C: wrong: %s\n", what);
  exit(1);
}
#define CHECK(expr) check(expr, #expr)

static char *get(const char *key, size_t *size) {
  char *value;
  OK(rdzv_store_get(r, key, &value, size, MS));
  return value;
}

static void tell(void) {
  char *big = malloc(BIG);
  for (size_t i = 0; i < BIG; i++) big[i] = (char)(i % 251);
  OK(rdzv_store_set(r, "c/text", "from C", 6, MS));
  OK(rdzv_store_set(r, "c/bytes", "\0\xff\n", 3, MS));
  OK(rdzv_store_set(r, "c/empty", "", 0, MS));
  OK(rdzv_store_set(r, "c/big", big, BIG, MS));
  OK(rdzv_store_append(r, "c/parts", "one,", 4, MS));
  OK(rdzv_store_append(r, "c/parts", "two", 3, MS));
  OK(rdzv_store_multi_set(r, (const char *const[]){"c/m1", "c/m2"}, 2, (const void *const[]){"1", "22"},
                          (const size_t[]){1, 2}, MS));
  OK(rdzv_store_queue_push(r, "c/queue", "first", 5, MS));
  OK(rdzv_store_queue_push(r, "c/queue", "second", 6, MS));
  OK(rdzv_store_add(r, "both", 40, NULL, MS));
  free(big);
}

static void hear(void) {
  static const char *const keys[] = {"py/text", "py/bytes", "py/empty"};
  char *values[3], *value;
  size_t sizes[3], size;
  int64_t n;
  OK(rdzv_store_multi_get(r, keys, 3, values, sizes, MS));
  CHECK(strcmp(values[0], "from Python") == 0);
  CHECK(sizes[1] == 3 && memcmp(values[1], "\0\xff\n", 3) == 0);
  CHECK(sizes[2] == 0);
  for (int i = 0; i < 3; i++) free(values[i]);
  value = get("py/big", &size);
  CHECK(size == BIG);
  for (size_t i = 0; i < BIG; i++) CHECK(value[i] == (char)(i % 241));
  free(value);
  OK(rdzv_store_queue_pop(r, "py/queue", &value, &size, MS));
  CHECK(strcmp(value, "only") == 0);
  free(value);
  OK(rdzv_store_barrier(r, "added", 2, MS));
  OK(rdzv_store_add(r, "both", 0, &n, MS));
  CHECK(n == 42);
  OK(rdzv_store_compare_set(r, "py/cas", "old", 3, "new", 3, &value, &size, MS));
  CHECK(strcmp(value, "new") == 0);
  free(value);
}

int main(void) {
  char *value;
  if (rdzv_init(&r, MS)) return printf("C: %s\n", rdzv_error(NULL)), 1;
  int64_t n;
  OK(rdzv_store_num_keys(r, &n, MS)); /* connects, for which 30 ms may be too few */
  CHECK(rdzv_store_get(r, "never", &value, NULL, 30) == -110 && strstr(rdzv_error(r), "did not come within 30 ms"));
  tell();
  hear();
  OK(rdzv_store_barrier(r, "end", 2, MS));
  rdzv_finish(r);
  puts("C: ok");
}
