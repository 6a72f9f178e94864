/* SPDX-License-Identifier: Apache-2.0 */
/* device-lists ROOT: for each line of stdin, an environment whose variables are separated by tabs, what
 * agent/devices/devices.c says of the machine under ROOT: a line of JSON. tests/unit/test_device_lists.py compares it with a
 * model. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/devices/devices.h"
#include "common/json.h"

enum { VARIABLES_MAX = 16 };

int main(int argc, char **argv) {
  static char line[8192];
  if (argc != 3) return 2;
  while (fgets(line, sizeof(line), stdin)) {
    char *env[VARIABLES_MAX + 1] = {NULL};
    int n = 0;
    line[strcspn(line, "\n")] = '\0';
    for (char *at = strtok(line, "\t"); at && n < VARIABLES_MAX; at = strtok(NULL, "\t")) env[n++] = at;
    struct buf said = BUF_INIT, out = BUF_INIT;
    struct devices *d = devices_find(argv[1], env, NULL, (enum gpu_vendor)atoi(argv[2]), &said);
    json_t *o = json_object(), *list = json_array();
    for (int i = 0; i < d->n; i++) {
      const struct device *v = &d->v[i];
      json_array_append_new(list, json_pack("{sisssssssisb}", "index", v->index, "uuid", v->uuid, "pci", v->pci,
                                            "entry", v->entry, "part", v->part, "known", v->known));
    }
    json_object_set_new(o, "vendor", json_integer(d->vendor));
    json_object_set_new(o, "from", d->from ? json_string(d->from) : json_null());
    json_object_set_new(o, "unordered", json_boolean(d->unordered));
    json_object_set_new(o, "said", json_string(buf_text(&said)));
    json_object_set_new(o, "devices", list);
    json_print(&out, o);
    puts(buf_text(&out));
    json_decref(o);
    free(d);
    buf_finish(&said);
    buf_finish(&out);
  }
  return 0;
}
