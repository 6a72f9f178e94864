/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/facts.h"

#include <inttypes.h>
#include <string.h>
#include "proto/xid.h"

#define F(id, name, label, heading, unit, type, compare, slack, fine, odd, part, within)                               \
  {name, label, heading, unit, FACT_##type, FACT_##compare, slack, fine, FACT_##odd, PART_##part, within},
const struct fact_kind fact_kinds[FACT_COUNT] = {FACT_LIST(F)};
#undef F

enum fact_id fact_find(const char *name) {
  int i = 0;
  while (i < FACT_COUNT && strcmp(fact_kinds[i].name, name) != 0) i++;
  return (enum fact_id)i;
}

#define C(name, word) word,
static const char *const classes[FACT_CLASS_COUNT] = {FACT_CLASS_LIST(C)};
#undef C

const char *fact_class_name(enum fact_class c) {
  return c < FACT_CLASS_COUNT ? classes[c] : "?";
}

/* NVML's nvmlDeviceGpuRecoveryAction_t. */
static const char *const recovery_actions[] = {"none", "GPU reset", "node reboot", "drain P2P", "drain and reset"};
enum { RECOVERY_ACTIONS = sizeof recovery_actions / sizeof *recovery_actions };

static bool is_up(const char *state) {
  return !strncmp(state, FACT_PORT_UP, strlen(FACT_PORT_UP));
}

static bool has_fallen(const char *state) {
  return strstr(state, FACT_PORT_FELL) != NULL;
}

enum fact_class fact_judge(enum fact_id id, int64_t value, const char *text) {
  switch (id) {
  case FACT_GPU_ERROR: return text[0] ? FACT_CERTAIN : FACT_FINE;
  case FACT_RECOVERY_ACTION:
  case FACT_REMAP_FAILED: return value > 0 ? FACT_CERTAIN : FACT_FINE;
  case FACT_REMAP_PENDING: return value > 0 ? FACT_HINT : FACT_FINE;
  case FACT_XID: return value <= 0 ? FACT_FINE : xid_class_of(value) == XID_CERTAIN ? FACT_CERTAIN : FACT_HINT;
  case FACT_PORT_STATE: return has_fallen(text) ? FACT_SUSPECT : FACT_FINE;
  default: return FACT_FINE;
  }
}

enum fact_class fact_judge_odd(enum fact_id id, const char *text, const char *usual) {
  /* Where those of the others are down, or are not ready yet. */
  bool is_well = (id == FACT_PORT_STATE && is_up(text)) || (id == FACT_FABRIC && !strcmp(text, "ready"));
  if (id == FACT_PORT_STATE && !is_well && !is_up(usual) && !has_fallen(text)) return FACT_HINT; /* it has no cable */
  return is_well ? FACT_FINE : fact_kinds[id].odd;
}

int64_t fact_amount(enum fact_id id, int64_t value) {
  return id == FACT_MEMLOCK_KIB && value < 0 ? INT64_MAX : value;
}

void fact_put_value(enum fact_id id, int64_t value, const char *text, struct buf *out) {
  const char *unit = fact_kinds[id].unit;
  bool kib = !strcmp(unit, "KiB"), mib = !strcmp(unit, "MiB");
  if (fact_kinds[id].type == FACT_TEXT)
    buf_puts(out, text);
  else if (id == FACT_RECOVERY_ACTION && value >= 0 && value < RECOVERY_ACTIONS)
    buf_puts(out, recovery_actions[value]);
  else if (id == FACT_XID)
    buf_printf(out, "%" PRId64 " (%s)", value, xid_words(value));
  else if (id == FACT_DEVICE_NODE)
    buf_puts(out, value ? "there" : "missing");
  else if (id == FACT_MEMLOCK_KIB && value < 0)
    buf_puts(out, "unlimited");
  else if (id == FACT_CLOCK_SKEW_MS)
    buf_printf(out, "%+.1f s", (double)value / 1000);
  else if ((kib || mib) && value >= 10 * 1024)
    buf_printf(out, "%.4g %s", (double)value / 1024, kib ? "MiB" : "GiB");
  else if (!strcmp(unit, "x"))
    buf_printf(out, "x%" PRId64, value);
  else
    buf_printf(out, "%" PRId64 "%s%s", value, *unit ? " " : "", unit);
}
