/* agent/env.c: the environment of a worker, name by name. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdbool.h>
#include <string.h>
#include "agent/env.h"

static const struct start start = {
    .incarnation = "1",
    .round = 7,
    .node_rank = 3,
    .nodes = 5,
    .rank_base = 11,
    .world_size = 19,
    .restarts_used = 2,
    .head_addr = "10.0.0.1",
    .head_host = "node1",
    .node_addr = "10.0.0.4",
};
static const struct env_job job = {
    .run_id = "try 1", .socket = "@rdzv-agent-1", .workers = 4, .error_file = "/logs/error.json"};

enum { BASE_MAX = 16 };

/* An environ has words that could be written to; those of a test are literals. */
static char **create(const char *const *base, uint32_t local_rank) {
  char *words[BASE_MAX] = {0};
  for (size_t i = 0; base[i]; i++) memcpy(&words[i], &base[i], sizeof(words[i]));
  return env_create(words, &start, &job, local_rank);
}

static int count(char **env, const char *name) {
  int n = 0;
  size_t len = strlen(name);
  for (; *env; env++) n += strncmp(*env, name, len) == 0 && (*env)[len] == '=';
  return n;
}

static const char *value(char **env, const char *name) {
  size_t len = strlen(name);
  for (; *env; env++)
    if (strncmp(*env, name, len) == 0 && (*env)[len] == '=') return *env + len + 1;
  return NULL;
}

static const char *const expected[][2] = {
    {"RANK", "13"},
    {"LOCAL_RANK", "2"},
    {"WORLD_SIZE", "19"},
    {"LOCAL_WORLD_SIZE", "4"},
    {"GROUP_RANK", "3"},
    {"GROUP_WORLD_SIZE", "5"},
    {"NODE_RANK", "3"},
    {"TORCHELASTIC_ERROR_FILE", "/logs/error.json"},
    {"RDZV_ROUND", "7"},
    {"RDZV_RESTART_COUNT", "2"},
    {"RDZV_RUN_ID", "try 1"},
    {"RDZV_HEAD_ADDR", "10.0.0.1"},
    {"RDZV_AGENT_SOCKET", "@rdzv-agent-1"},
};
enum { EXPECTED = sizeof(expected) / sizeof(*expected) };

static void sets_every_name(void **state) {
  const char *base[] = {NULL};
  char **env = create(base, 2);
  size_t n = 0;
  while (env[n]) n++;
  assert_int_equal(n, EXPECTED);
  for (size_t i = 0; i < EXPECTED; i++) assert_string_equal(value(env, expected[i][0]), expected[i][1]);
  env_destroy(env);
}

static void keeps_what_is_not_ours(void **state) {
  const char *base[] = {"PATH=/bin",      "EMPTY=", "RANKS=9", "XRANK=8", "RDZV_TRAINER_STEPS=3",
                        "no-equals-sign", "A=b=c",  NULL};
  char **env = create(base, 0);
  assert_string_equal(value(env, "PATH"), "/bin");
  assert_string_equal(value(env, "EMPTY"), "");
  assert_string_equal(value(env, "RANKS"), "9");
  assert_string_equal(value(env, "XRANK"), "8");
  assert_string_equal(value(env, "RDZV_TRAINER_STEPS"), "3");
  assert_string_equal(value(env, "A"), "b=c");
  assert_string_equal(env[5], "no-equals-sign");
  env_destroy(env);
}

static void replaces_what_is_there(void **state) {
  const char *base[] = {"RANK=0",     "WORLD_SIZE=1", "RANK=5", "RDZV_ROUND=1", "RDZV_AGENT_SOCKET=@old",
                        "HOME=/root", "RANK",         NULL};
  char **env = create(base, 2);
  for (size_t i = 0; i < EXPECTED; i++) {
    assert_int_equal(count(env, expected[i][0]), 1);
    assert_string_equal(value(env, expected[i][0]), expected[i][1]);
  }
  size_t n = 0;
  while (env[n]) n++;
  assert_int_equal(n, EXPECTED + 1);
  assert_string_equal(value(env, "HOME"), "/root");
  env_destroy(env);
}

static void keeps_the_agents_options_to_itself(void **state) {
  const char *base[] = {"RDZV_AGENT_NPROC=2", "RDZV_AGENT_ENDPOINT=node1", "RDZV_AGENT_MAX_RESTARTS=0",
                        "RDZVD_LISTEN=x", NULL};
  char **env = create(base, 0);
  assert_null(value(env, "RDZV_AGENT_NPROC"));
  assert_null(value(env, "RDZV_AGENT_ENDPOINT"));
  assert_null(value(env, "RDZV_AGENT_MAX_RESTARTS"));
  assert_string_equal(value(env, "RDZVD_LISTEN"), "x");
  env_destroy(env);
}

static void borrows_nothing(void **state) {
  char word[] = "NAME=before";
  char *base[] = {word, NULL};
  char **env = env_create(base, &start, &job, 0);
  memcpy(word, "GONE=......", sizeof(word) - 1);
  assert_string_equal(value(env, "NAME"), "before");
  env_destroy(env);
  env_destroy(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sets_every_name),        cmocka_unit_test(keeps_what_is_not_ours),
      cmocka_unit_test(replaces_what_is_there), cmocka_unit_test(keeps_the_agents_options_to_itself),
      cmocka_unit_test(borrows_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
