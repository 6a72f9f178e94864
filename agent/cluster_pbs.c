/* PBS Professional, OpenPBS and Torque.
 *
 * PBS runs the batch script on the first host, alone, and tells it the others in a file: a line for each process that `mpiprocs` (Torque:
 * ppn) asked for. Its task manager starts programs elsewhere, for pbsdsh and for MPIs built with it; each such task is numbered, and
 * 1 is the script's. The rest of what a task is told differs:
 *
 *     the script          PBS_TASKNUM=1  PBS_NODENUM=0   PBS_NODEFILE
 *     OpenPBS' task       =00000002      =number of its host, no PBS_NODEFILE; but the file lies on each host, below PBS_HOME
 *     Torque's task       =2             =number of its host, PBS_VNODENUM=number of its line, PBS_NUM_NODES, PBS_NUM_PPN; no file
 *
 * pbsdsh starts one task for each line, so that is how many agents there are. From a script the others are reached by ssh, not by pbs_tmrsh:
 * that one carries neither the input nor the output of what it starts, and does not end it either.
 *
 * A job's id has its server behind it, and its index in an array in brackets: "12[3].server". How often the job was started before, and
 * when it ends, PBS tells nobody in the environment (Torque's PBS_WALLTIME is a length without a beginning). */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/cluster_lists.h"
#include "common/ascii.h"
#include "common/hostlist.h"
#include "common/mem.h"

enum { CONF_MAX = 65536, INDEX_MAX = 100000000 };

#define CONF_FILE    "/etc/pbs.conf"
#define HOME_DEFAULT "/var/spool/pbs"

static void set_job(struct row *r, const char *id) {
  char *end;
  row_set_text(r, &r->c->scheduler, "PBS", "PBS_JOBID");
  row_set_job(r, "pbs", id, NULL, "PBS_JOBID");
  if (!ascii_is_digit(*id)) return;
  int64_t job = strtoll(id, &end, 10), index = *end == '[' ? strtoll(end + 1, NULL, 10) : 0;
  if (job < INDEX_MAX && index >= 0 && index < INDEX_MAX) row_set_port(r, job, index, "PBS_JOBID");
}

/* PBS_HOME of the configuration. On the heap. */
static char *find_home(const struct row *r) {
  static const char key[] = "PBS_HOME=";
  char *conf = r->site->read_file ? r->site->read_file(r->site->ctx, CONF_FILE, CONF_MAX, NULL) : NULL;
  char *home = NULL;
  for (const char *p = conf; p && *p && !home; p += strcspn(p, "\n"), p += *p == '\n')
    if (strncmp(p, key, sizeof(key) - 1) == 0)
      home = xstrndup(p + sizeof(key) - 1, strcspn(p + sizeof(key) - 1, " \t\r\n"));
  free(conf);
  return home && *home ? home : (free(home), xstrdup(HOME_DEFAULT));
}

/* The file of the hosts, which PBS names to the script alone. */
static bool find_hosts(struct row *r, const char *id, struct row_hosts *h) {
  if (row_variable(r, "PBS_NODEFILE")) return list_from_file(r, "PBS_NODEFILE", LIST_LINES, h);
  if (strchr(id, '/')) return false;
  char *home = find_home(r), *path = xasprintf("%s/aux/%s", home, id);
  bool found = list_from_path(r, path, LIST_LINES, h);
  free(home);
  free(path);
  return found;
}

/* "gpu1-gpu0" of PBS_GPUFILE, a line for each GPU of each host: those of this one. */
static void find_gpus(struct row *r) {
  char *text = row_file(r, "PBS_GPUFILE");
  size_t len = hostlist_short(r->site->host);
  int64_t n = 0, lines = 0;
  for (const char *p = text; p && *p; p += strcspn(p, "\n"), p += *p == '\n') {
    char name[HOST_MAX + 1];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(p, "\r\n"), p);
    char *gpu = strstr(name, "-gpu");
    for (char *next = gpu; next; next = strstr(next + 1, "-gpu")) gpu = next;
    lines += *name != '\0';
    if (!gpu) continue;
    *gpu = '\0';
    n += hostlist_short(name) == len && strncasecmp(name, r->site->host, len) == 0;
  }
  if (lines) row_set_number(r, &r->c->gpus, n, "PBS_GPUFILE");
  free(text);
}

/* By pbsdsh: one of as many as the file has lines. */
static void read_task(struct row *r, const struct row_hosts *h, bool known) {
  int64_t nodes, each, here = known ? row_hosts_find(h, r->site->host) : -1;
  row_set_number(r, &r->c->start, CLUSTER_STARTED, "PBS_TASKNUM PBS_NODENUM");
  row_set_text(r, &r->c->launcher, "pbsdsh", "PBS_TASKNUM PBS_NODENUM");
  if (known)
    row_set_number(r, &r->c->agents, list_slots(h), "PBS_NODEFILE PBS_JOBID");
  else if (row_number(r, "PBS_NUM_NODES", 1, NODES_MAX, &nodes) &&
           row_number(r, "PBS_NUM_PPN", 1, CLUSTER_SLOTS_MAX, &each) && nodes * each <= NODES_MAX)
    row_set_number(r, &r->c->agents, nodes * each, "PBS_NUM_NODES PBS_NUM_PPN");
  else
    row_warn(r,
             "PBS has started this agent (%s), but does not say here how many there are (PBS_NODEFILE is "
             "not set): tell it with --nnodes",
             r->c->start.source);
  if (!row_take_number(r, &r->c->index, "PBS_VNODENUM", 0, NODES_MAX - 1))
    row_take_number(r, &r->c->index, "PBS_NODENUM", 0, NODES_MAX - 1);
  if (here >= 0) row_set_number(r, &r->c->local_agents, h->v[here].slots, "PBS_NODEFILE PBS_JOBID");
}

void cluster_read_pbs(struct row *r) {
  const char *id = row_variable(r, "PBS_JOBID"), *task = row_variable(r, "PBS_TASKNUM"),
             *node = row_variable(r, "PBS_NODENUM");
  struct row_hosts h = {0};
  if (!id) return;
  set_job(r, id);
  bool known = find_hosts(r, id, &h), launched = r->c->start.is_set;
  bool script = (!task || strcmp(task, "1") == 0) && (!node || strcmp(node, "0") == 0);
  if (!script && !launched) read_task(r, &h, known);
  if (script && row_variable(r, "PBS_ENVIRONMENT"))
    row_set_number(r, &r->c->start, CLUSTER_ALONE, "PBS_ENVIRONMENT");
  find_gpus(r);
  row_set_hosts(r, &h, row_variable(r, "PBS_NODEFILE") ? "PBS_NODEFILE" : "PBS_JOBID");
}
