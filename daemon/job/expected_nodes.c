/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that are missing while a round forms: which, since when and why, and whether they wait here under another job
 * id.
 *
 * A node is expected if a scheduler lists its host (HELLO's expected_hosts, or --expect), or if it was lost or left
 * since the last seal. Both are hosts: a node that does not come has no agent id, and a person looks for a machine. A
 * host knows how many of its nodes are wanted and how many are here. Both change with the members (member.c), so "are
 * all here?" compares two numbers at each of ten thousand joins. If no host is known but all nodes asked for their node
 * ranks, the missing ranks are named.
 *
 * Hosts match by their full names, otherwise without the domain: schedulers list short names, machines often report
 * long ones. The domain distinguishes two listed hosts that differ only in it.
 *
 * A list that differs from the last one replaces it (a requeued job runs on other machines), a few times in a job's
 * life. There is one exception: a list that is not longer, and leaves out a listed host whose nodes are here, is a
 * spare's with a scheduler job of its own. A list that cannot be read is logged, and only the count is used.
 *
 * A node that was started as one of as many as the job expects is expected too, under any host name.
 *
 * A node with another key than the daemon's is refused before it says who it is. Its address alone is known, which the
 * driver compares with those of the listed hosts that are missing. So a listed host may be refused, and if each one that
 * is missing was, and the job has never begun, it does not wait for long: its user finds the reason sooner. Anybody on
 * such a host can cause that, and nobody elsewhere; a node that comes within the minute ends it.
 *
 * The text is made when it is sent: sorted, grouped by reason, compressed, each part bounded. It names refused nodes
 * too: their own message is on another screen than those of the nodes that wait for them. */

#include "daemon/job/internal.h"

#include <stdlib.h>
#include <string.h>
#include "common/ascii.h"
#include "common/hostlist.h"
#include "common/json.h"
#include "common/mem.h"
#include "daemon/goodput/history.h"

enum {
  LISTS_MAX = 64,         /* read in a job's life: each one costs a look at all nodes and hosts */
  TOGETHER_MS = 5000,     /* hosts lost within this time are one group */
  RANKS_LOOKED_AT = 4096, /* in the search for free ones */
  HOPELESS_MS = 60000,    /* from the last refusal to the end of a job that waits for refused nodes alone */
  HERE_SHOWN_MAX = 160,
};

static struct expected_host ambiguous; /* a short name that several hosts have; never looked into */

/* The roster. ------------------------------------------------------------------------------------------------------ */

void job_init_roster(struct job *j) {
  map_init(&j->roster.names, jobs_random(j->jobs));
  map_init(&j->roster.shorts, jobs_random(j->jobs));
}

static void free_host(struct job *j, struct expected_host *h) {
  j->jobs->n_hosts--;
  if (j->account) j->account->n_hosts--;
  free(h->name);
  free(h->text);
  free(h);
}

static void free_hosts(struct job *j, struct roster *r) {
  for (size_t i = 0; i < r->n; i++) free_host(j, r->v[i]);
  map_finish(&r->names);
  map_finish(&r->shorts);
  free(r->v);
}

static void free_refusal(struct refusal *r) {
  free(r->host);
  free(r->text);
  *r = (struct refusal){0};
}

void job_finish_roster(struct job *j) {
  struct roster *r = &j->roster;
  for (size_t i = 0; i < REFUSALS_MAX; i++) free_refusal(&r->refusals[i]);
  free_hosts(j, r);
  free(r->list);
}

/* Host names ignore case. */
static size_t lower_name(const char *name, char out[HOST_MAX + 1]) {
  size_t n = 0;
  for (; name[n] && n < HOST_MAX; n++) out[n] = ascii_lower(name[n]);
  out[n] = '\0';
  return n;
}

static struct expected_host *find_host(const struct roster *r, const char *name) {
  char key[HOST_MAX + 1];
  if (!r->n) return NULL;
  lower_name(name, key);
  struct expected_host *h = map_get(&r->names, key);
  if (!h) h = map_get_n(&r->shorts, key, hostlist_short(key));
  return h == &ambiguous ? NULL : h;
}

static struct expected_host *add_host(struct job *j, const char *name) {
  struct roster *r = &j->roster;
  char key[HOST_MAX + 1];
  struct expected_host *h = xcalloc(1, sizeof *h);
  if (r->n == r->cap) {
    r->cap = r->cap ? 2 * r->cap : 8;
    r->v = xrealloc(r->v, r->cap * sizeof(struct expected_host *));
  }
  r->v[r->n++] = h;
  j->jobs->n_hosts++;
  if (j->account) j->account->n_hosts++;
  h->name = xstrdup(name);
  lower_name(name, key);
  map_put(&r->names, key, h);
  if (map_put_n(&r->shorts, key, hostlist_short(key), h)) map_put_n(&r->shorts, key, hostlist_short(key), &ambiguous);
  return h;
}

static uint32_t shortage(const struct expected_host *h) {
  return h->wanted > h->here ? h->wanted - h->here : 0;
}

/* Nodes that a seal waits for: a drained host will not come. */
static int64_t waited_for(const struct expected_host *h) {
  return h->listed && !h->drained ? (int64_t)shortage(h) : 0;
}

void member_count_at_host(struct member *m, bool here) {
  struct expected_host *h = m->roster.at;
  if (!h) return;
  int64_t *missing = &m->job->roster.listed_missing, before = waited_for(h);
  h->here += here ? 1 : (uint32_t)-1;
  *missing += waited_for(h) - before;
}

static void set_drained(struct roster *r, struct expected_host *h, bool drained) {
  r->listed_missing -= waited_for(h);
  h->drained = drained;
  r->listed_missing += waited_for(h);
}

static bool is_listed(const struct member *m) {
  return m->roster.at && m->roster.at->listed;
}

static void update_expected(struct member *m) {
  bool one_of_as_many = m->roster.told_nodes && m->roster.told_nodes == m->job->expected_nodes;
  member_set_expected(m, is_listed(m) || one_of_as_many);
}

static void set_expected_host(struct member *m, struct expected_host *h) {
  m->roster.at = h;
  if (h && m->next.drained) set_drained(&m->job->roster, h, true);
  if (m->counted.available) member_count_at_host(m, true);
  update_expected(m);
}

void member_find_expected_host(struct member *m) {
  set_expected_host(m, find_host(&m->job->roster, m->host));
}

/* Lists. ----------------------------------------------------------------------------------------------------------- */

/* The new roster: the hosts of the list, and those of the old ones that are missing for another reason. */
static bool rebuild_roster(struct job *j, const struct buf *names, size_t n) {
  struct roster *r = &j->roster, old = *r;
  const char *p = buf_text(names);
  r->v = NULL;
  r->n = r->cap = r->n_unlisted = 0;
  r->listed_wanted = r->listed_missing = r->refused_wanted = 0;
  job_init_roster(j);
  for (size_t i = 0; i < n; i++, p += strlen(p) + 1) {
    char key[HOST_MAX + 1];
    lower_name(p, key);
    struct expected_host *h = map_get(&r->names, key);
    if (!h) h = add_host(j, p);
    h->listed = true;
    h->wanted++;
  }
  uint32_t each = n > 0 && j->expected_nodes > (int64_t)n ? (uint32_t)((size_t)j->expected_nodes / n) : 1;
  for (size_t i = 0; i < r->n; i++) r->listed_wanted += r->v[i]->wanted *= each;
  bool leaves_out = false; /* a listed host whose nodes are here is not in the new list */
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    leaves_out |= m->counted.available && is_listed(m) && !find_host(r, m->host);
  }
  if (r->listed_wanted <= old.listed_wanted && leaves_out) {
    free_hosts(j, r);
    *r = old;
    return false;
  }
  for (size_t i = 0; i < old.n; i++) {
    struct expected_host *was = old.v[i], *h = find_host(r, was->name);
    if (!h && !was->listed) {
      h = add_host(j, was->name);
      h->wanted = was->wanted;
      r->n_unlisted++;
    }
    if (h) {
      h->why = was->why;
      h->at_ms = was->at_ms;
      h->text = was->text;
      was->text = NULL;
    }
  }
  free_hosts(j, &old);
  for (size_t i = 0; i < r->n; i++) {
    r->v[i]->drained = job_drain_of(j, r->v[i]->name) != NULL;
    r->listed_missing += waited_for(r->v[i]);
    if (r->v[i]->listed && r->v[i]->why == ABSENCE_REFUSED) r->refused_wanted += r->v[i]->wanted;
  }
  for (size_t i = 0; i < j->n_members; i++) member_find_expected_host(j->members[i]);
  return true;
}

void job_expect_nodes(struct job *j, int64_t n) {
  j->expected_nodes = n;
  for (size_t i = 0; i < j->n_members; i++) update_expected(j->members[i]);
}

static bool may_list(const struct job *j, size_t n) {
  if (j->account && j->account->n_hosts + n > ACCOUNT_HOSTS_MAX) return false;
  return j->jobs->n_hosts + n <= JOB_HOSTS_MAX;
}

void job_expect_hosts(struct job *j, const char *list) {
  struct roster *r = &j->roster;
  struct buf names = BUF_INIT;
  struct err e = ERR_INIT;
  size_t n;
  if ((r->list && !strcmp(r->list, list)) || r->n_lists == LISTS_MAX) return;
  r->n_lists++;
  bool counts = true;
  if (hostlist_expand(list, &names, &n, &e))
    job_log(j, LOG_WARN, "the list of expected hosts is invalid: %s", e.text);
  else if (!may_list(j, n))
    job_log(j, LOG_WARN,
            "the list of %zu expected hosts is not kept, because all jobs together may list %d, and those of "
            "one user %d: only the number of nodes counts (--expect)",
            n, JOB_HOSTS_MAX, ACCOUNT_HOSTS_MAX);
  else
    counts = rebuild_roster(j, &names, n);
  if (counts) {
    free(r->list);
    r->list = xstrdup(list);
  }
  buf_finish(&names);
}

static int64_t count_expected(const struct job *j) {
  return least(most(j->roster.listed_wanted, j->expected_nodes), NODES_MAX);
}

bool job_all_expected_are_here(const struct job *j, size_t here) {
  bool as_many = j->expected_nodes > 0 && here >= (size_t)j->expected_nodes;
  if (as_many && !job_others_hold_places(j)) return true;
  return j->roster.listed_wanted > 0 && !j->roster.listed_missing;
}

/* If no expected node is here, the list uses other names than the hosts: then nothing is known. */
bool job_others_hold_places(const struct job *j) {
  return j->roster.listed_missing > 0 && j->n_expected_here > 0 && j->n_expected_here < (size_t)j->settings.max_nodes &&
         j->n_available > j->n_expected_here;
}

void job_watch_drains(struct job *j) {
  struct roster *r = &j->roster;
  for (size_t i = 0; i < r->n; i++) set_drained(r, r->v[i], job_drain_of(j, r->v[i]->name) != NULL);
  for (size_t i = 0; i < j->n_members; i++)
    if (j->members[i]->next.drained && j->members[i]->roster.at) set_drained(r, j->members[i]->roster.at, true);
}

/* Absences. -------------------------------------------------------------------------------------------------------- */

void member_note_absence(struct member *m, enum absence why, const char *text, uint64_t at_ms) {
  struct job *j = m->job;
  struct roster *r = &j->roster;
  struct expected_host *h = m->roster.at ? m->roster.at : find_host(r, m->host);
  if (m->next.absence_noted && why == ABSENCE_LEFT) return; /* the first reason is the better one */
  m->next.absence_noted = true;
  if (!h) {
    if (r->n_unlisted > (size_t)j->settings.max_nodes || !may_list(j, 1))
      return; /* do not remember all strangers that come and go */
    h = add_host(j, m->host);
    r->n_unlisted++;
  }
  if (!m->roster.at) {
    if (!h->listed) h->wanted++;
    set_expected_host(m, h);
  }
  h->why = why;
  h->at_ms = at_ms;
  free(h->text);
  h->text = text && text[0] ? xstrdup(text) : NULL;
}

void job_forget_absences(struct job *j) {
  struct roster *r = &j->roster;
  size_t kept = 0;
  for (size_t i = 0; i < REFUSALS_MAX; i++) free_refusal(&r->refusals[i]);
  if (!r->n_unlisted) return;
  for (size_t i = 0; i < j->n_members; i++)
    if (j->members[i]->roster.at && !j->members[i]->roster.at->listed) j->members[i]->roster.at = NULL;
  for (size_t i = 0; i < r->n; i++) {
    struct expected_host *h = r->v[i];
    char key[HOST_MAX + 1];
    if (h->listed) {
      r->v[kept++] = h;
      continue;
    }
    lower_name(h->name, key);
    map_remove(&r->names, key);
    if (map_get_n(&r->shorts, key, hostlist_short(key)) == h) map_remove_n(&r->shorts, key, hostlist_short(key));
    free_host(j, h);
  }
  r->n = kept;
  r->n_unlisted = 0;
}

static void put_refusal(struct job *j, const char *host, const char *text, uint64_t at_ms) {
  struct roster *r = &j->roster;
  size_t at = 0;
  while (at < REFUSALS_MAX - 1 && r->refusals[at].host && strcmp(r->refusals[at].host, host) != 0) at++;
  free_refusal(&r->refusals[at]);
  memmove(&r->refusals[1], &r->refusals[0], at * sizeof r->refusals[0]);
  r->refusals[0] = (struct refusal){xstrdup(host), xstrdup(text), at_ms};
  job_notice_soon(j, j->jobs->now_ms);
}

bool early_refusal_counts(const struct early_refusal *e, uint64_t now_ms) {
  return e->id && now_ms < e->what.at_ms + JOB_END_KEEP_MS;
}

static void free_early_refusal(struct early_refusal *e) {
  free_refusal(&e->what);
  free(e->id);
  e->id = NULL;
}

static bool is_of_job(const struct early_refusal *e, const struct job *j) {
  return e->id && e->uid == j->uid && !strcmp(e->id, j->id);
}

void job_note_refusal(struct job *j, const char *host, const char *text, uint64_t now_ms) {
  struct early_refusal *e = j->jobs->early, *end = e + EARLY_REFUSALS_MAX;
  put_refusal(j, host, text, now_ms);
  job_announce_refusal(j, host, text);
  if (j->n_members || j->round) return;
  while (e != end && !(is_of_job(e, j) && !strcmp(e->what.host, host))) e++;
  if (e == end) e = &j->jobs->early[j->jobs->n_early++ % EARLY_REFUSALS_MAX];
  free_early_refusal(e);
  *e = (struct early_refusal){j->uid, xstrdup(j->id), {xstrdup(host), xstrdup(text), now_ms}};
}

void job_recall_refusals(struct job *j) {
  for (size_t i = 0; i < EARLY_REFUSALS_MAX; i++) {
    const struct early_refusal *e = &j->jobs->early[(j->jobs->n_early + i) % EARLY_REFUSALS_MAX];
    if (is_of_job(e, j) && early_refusal_counts(e, j->jobs->now_ms))
      put_refusal(j, e->what.host, e->what.text, e->what.at_ms);
  }
}

void jobs_finish_refusals(struct jobs *jobs) {
  for (size_t i = 0; i < EARLY_REFUSALS_MAX; i++) free_early_refusal(&jobs->early[i]);
}

void job_forget_refusal(struct job *j, const char *host) {
  for (size_t i = 0; i < REFUSALS_MAX && j->roster.refusals[i].host; i++) {
    struct refusal *r = &j->roster.refusals[i], *last = &j->roster.refusals[REFUSALS_MAX - 1];
    if (strcmp(r->host, host) != 0) continue;
    free_refusal(r);
    memmove(r, r + 1, (size_t)(last - r) * sizeof *r);
    *last = (struct refusal){0};
    return;
  }
}

/* Another key. ----------------------------------------------------------------------------------------------------- */

static bool may_be_turned_away(const struct job *j, const struct expected_host *h) {
  return j->state == JOB_FORMING && h->listed && shortage(h) && h->why != ABSENCE_REFUSED;
}

void job_note_turned_away(struct job *j, const char *host, const char *addr, uint64_t now_ms) {
  static const char why[] =
      "its agent has another key than the daemon: give both the same one, by --key-file or RDZV_KEY, or run munged";
  struct expected_host *h = host[0] ? find_host(&j->roster, host) : NULL;
  if (h && may_be_turned_away(j, h)) {
    free(h->text);
    h->text = xstrdup(why);
    h->why = ABSENCE_REFUSED;
    h->at_ms = now_ms;
    j->roster.refused_wanted += h->wanted;
    job_notice_soon(j, now_ms);
    return;
  }
  bool here = host[0] || j->state != JOB_FORMING || !job_missing_nodes(j);
  for (size_t i = 0; i < j->n_members; i++) here |= !strcmp(j->members[i]->peer_addr, addr);
  if (!here) put_refusal(j, addr, why, now_ms);
}

bool job_next_missing_host(const struct job *j, size_t *at, struct buf *out) {
  while (*at < j->roster.n) {
    const struct expected_host *h = j->roster.v[(*at)++];
    if (!may_be_turned_away(j, h)) continue;
    buf_append(out, h->name, strlen(h->name) + 1);
    return true;
  }
  return false;
}

/* The first two conditions are for the calls behind each event of a large job. */
uint64_t job_hopeless_ms(const struct job *j) {
  const struct roster *r = &j->roster;
  uint64_t last_ms = 0;
  if (!r->refused_wanted || r->listed_missing > r->refused_wanted || j->round || j->state != JOB_FORMING)
    return UINT64_MAX;
  if (r->listed_wanted < j->settings.min_nodes || j->expected_nodes > r->listed_wanted || job_others_hold_places(j))
    return UINT64_MAX;
  for (size_t i = 0; i < r->n; i++) {
    const struct expected_host *h = r->v[i];
    if (!shortage(h) || h->drained) continue;
    if (h->why != ABSENCE_REFUSED) return UINT64_MAX;
    if (h->at_ms > last_ms) last_ms = h->at_ms;
  }
  return last_ms ? last_ms + HOPELESS_MS : UINT64_MAX;
}

/* The text. -------------------------------------------------------------------------------------------------------- */

static int by_reason(const void *pa, const void *pb) {
  const struct expected_host *a = *(struct expected_host *const *)pa, *b = *(struct expected_host *const *)pb;
  if (a->why != b->why) return a->why < b->why ? -1 : 1;
  int c = strcmp(a->text ? a->text : "", b->text ? b->text : "");
  if (c) return c;
  if (a->at_ms != b->at_ms) return a->at_ms < b->at_ms ? -1 : 1;
  return strcmp(a->name, b->name);
}

static bool same_reason(const struct expected_host *a, const struct expected_host *b) {
  if (a->why != b->why || strcmp(a->text ? a->text : "", b->text ? b->text : "") != 0) return false;
  return a->why == ABSENCE_NEVER || b->at_ms - a->at_ms <= TOGETHER_MS;
}

static uint64_t ms_since(uint64_t at_ms, uint64_t now_ms) {
  return now_ms > at_ms ? now_ms - at_ms : 0;
}

/* Compressed, at most `max` bytes, followed by the number of names that did not fit. */
static void put_names(const char *const *names, size_t n, size_t max, struct buf *out) {
  size_t told = hostlist_compress(names, n, max, out);
  if (told < n) buf_printf(out, "%s%zu%s", told ? " and " : "", n - told, told ? " more" : " hosts");
}

/* The hosts that are missing, as groups; drained hosts are another group. */
static void fill_absent(struct missing *k, const struct job *j, uint64_t now_ms) {
  const struct roster *r = &j->roster;
  struct waiting *w = k->w;
  struct expected_host **v = xcalloc(r->n + 1, sizeof(struct expected_host *));
  const char **names = xcalloc(r->n + 1, sizeof *names);
  size_t n = 0, count;
  for (size_t i = 0; i < r->n; i++)
    if (shortage(r->v[i]) && !r->v[i]->drained) v[n++] = r->v[i];
  qsort(v, n, sizeof(struct expected_host *), by_reason);
  for (size_t i = 0; i < n && w->n_absent < ABSENT_MAX - 1; i += count) { /* the last group is for drained hosts */
    struct absent *a = &k->absent[w->n_absent];
    for (count = 0; i + count < n && same_reason(v[i], v[i + count]); count++) names[count] = v[i + count]->name;
    put_names(names, count, HOSTS_SHOWN_MAX, &k->groups[w->n_absent]);
    a->hosts = buf_text(&k->groups[w->n_absent++]);
    a->why = v[i]->why;
    a->ago_ms = a->why == ABSENCE_NEVER ? 0 : (int64_t)ms_since(v[i]->at_ms, now_ms);
    a->text = v[i]->text ? v[i]->text : "";
  }
  free(names);
  free(v);
}

/* Drained hosts: the expected ones, and those whose agents are here and held back. */
static void fill_drained(struct missing *k, const struct job *j) {
  const char **names = xcalloc(j->roster.n + j->n_members + 1, sizeof *names);
  size_t n = 0, at = k->w->n_absent;
  for (size_t i = 0; i < j->roster.n; i++)
    if (j->roster.v[i]->drained && shortage(j->roster.v[i])) names[n++] = j->roster.v[i]->name;
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    bool told = m->roster.at && m->roster.at->drained && shortage(m->roster.at);
    if (m->next.drained && !member_in_round(m) && !told) names[n++] = m->host;
  }
  if (n && at < ABSENT_MAX) {
    const struct drain *d = job_drain_of(j, names[0]);
    put_names(names, n, HOSTS_SHOWN_MAX, &k->groups[at]);
    k->absent[at].hosts = buf_text(&k->groups[at]);
    k->absent[at].why = ABSENCE_DRAINED;
    if (d) buf_printf(&k->drained_by, "by %.*s", REASON_MAX - 3, d->by);
    if (d) k->absent[at].ago_ms = (int64_t)ms_since(d->wall_ms, j->jobs->wall_ms);
    k->absent[at].text = buf_text(&k->drained_by);
    k->w->n_absent++;
  }
  free(names);
}

/* "node rank 1, 3-5": the ranks below max that no node asked for. */
static void fill_ranks(struct missing *k, const struct job *j) {
  int64_t end = least(j->settings.max_nodes, RANKS_LOOKED_AT);
  struct buf *out = &k->groups[0];
  for (int64_t r = 0, last; r < end && out->len < HOSTS_SHOWN_MAX; r = last + 1) {
    last = r;
    if (job_find_wanted(j, r)) continue;
    while (last + 1 < end && !job_find_wanted(j, last + 1)) last++;
    buf_printf(out, "%s%lld", out->len ? ", " : "node rank ", (long long)r);
    if (last > r) buf_printf(out, "-%lld", (long long)last);
  }
  if (!out->len) return;
  k->absent[0].hosts = buf_text(out);
  k->w->n_absent = 1;
}

/* It has had no round, and too few nodes for one. */
static bool waits_for_its_first(const struct job *j) {
  return j->state == JOB_FORMING && !j->round && (int64_t)j->n_available < j->settings.min_nodes;
}

struct job *job_find_twin(const struct job *j) {
  if (j->uid < 0 || !waits_for_its_first(j)) return NULL;
  for (size_t i = 0; i < j->jobs->n_all; i++) {
    struct job *other = j->jobs->all[i];
    if (other != j && other->uid == j->uid && other->n_available && waits_for_its_first(other) &&
        other->settings.min_nodes == j->settings.min_nodes && other->settings.max_nodes == j->settings.max_nodes)
      return other;
  }
  return NULL;
}

/* Nodes of listed hosts that are not here; 0: a round needs none of them. */
static int64_t count_named(const struct job *j) {
  int64_t nodes = 0;
  if ((int64_t)j->n_available >= j->settings.max_nodes && !job_others_hold_places(j)) return 0;
  for (size_t i = 0; i < j->roster.n; i++) nodes += shortage(j->roster.v[i]);
  return nodes;
}

int64_t job_missing_nodes(const struct job *j) {
  int64_t expected = count_expected(j), named = count_named(j);
  int64_t more = (expected ? expected : j->settings.min_nodes) - least((int64_t)j->n_available, NODES_MAX);
  return j->state == JOB_FORMING ? least(most(more, named), NODES_MAX) : 0;
}

void missing_fill(struct missing *k, const struct job *j, struct waiting *w, bool names, uint64_t now_ms) {
  memset(k, 0, sizeof *k);
  k->w = w;
  for (size_t i = 0; i < ABSENT_MAX; i++) k->absent[i].hosts = k->absent[i].text = "";
  w->absent = k->absent;
  w->refusals = k->refusals;
  w->here = least((int64_t)j->n_available, NODES_MAX);
  w->min_nodes = j->settings.min_nodes;
  w->max_nodes = j->settings.max_nodes;
  w->lacks = j->state == JOB_FORMING || j->state == JOB_RECOVERING ? (int64_t)job_lacks(j) : 0;
  w->claims = w->lacks && j->settings.claims;
  if (j->state != JOB_FORMING || !names) return;
  w->text = job_claim_text(j);
  if (job_put_held(j, &k->held)) w->held = buf_text(&k->held);
  uint64_t at_ms = job_seal_deadline(j);
  w->prospect = job_prospect(j, now_ms);
  if (w->prospect == PROSPECT_GIVE_UP) at_ms = j->forming_ms + (uint64_t)j->settings.join_timeout_ms;
  if (w->prospect == PROSPECT_CHECK) at_ms = now_ms; /* the node's agent has the deadline */
  if (w->prospect == PROSPECT_HOPELESS) at_ms = job_hopeless_ms(j);
  w->left_ms = (int64_t)ms_since(now_ms, at_ms);
  w->waited_ms = (int64_t)ms_since(j->forming_ms, now_ms);
  const struct job *twin = job_find_twin(j);
  if (twin) w->twin = twin->id;
  w->expected = count_expected(j);
  bool others = job_others_hold_places(j);
  w->unexpected = others ? least((int64_t)(j->n_available - j->n_expected_here), NODES_MAX) : 0;
  if (w->here < w->max_nodes || others) fill_absent(k, j, now_ms);
  w->missing = job_missing_nodes(j);
  bool all_ask = j->n_available > 0; /* for a node rank */
  for (size_t i = 0; i < j->n_members; i++)
    all_ask &= !j->members[i]->counted.available || j->members[i]->want_rank >= 0;
  if (w->missing > 0 && !count_named(j) && all_ask) fill_ranks(k, j);
  if (!w->n_absent) {
    const char **hosts = xcalloc(j->n_members + 1, sizeof *hosts);
    size_t n = 0;
    for (size_t i = 0; i < j->n_members; i++)
      if (j->members[i]->counted.available) hosts[n++] = j->members[i]->host;
    put_names(hosts, n, HERE_SHOWN_MAX, &k->hosts);
    if (n) k->w->hosts = buf_text(&k->hosts);
    free(hosts);
  }
  fill_drained(k, j);
  for (size_t i = 0; i < REFUSALS_MAX && j->roster.refusals[i].host; i++) {
    const struct refusal *r = &j->roster.refusals[i];
    k->refusals[i] =
        (struct turned_away){.host = r->host, .text = r->text, .ago_ms = (int64_t)ms_since(r->at_ms, now_ms)};
    k->w->n_refusals++;
  }
}

void missing_finish(struct missing *k) {
  buf_finish(&k->hosts);
  buf_finish(&k->drained_by);
  buf_finish(&k->held);
  for (size_t i = 0; i < ABSENT_MAX; i++) buf_finish(&k->groups[i]);
}

void job_missing_text(const struct job *j, bool failed, uint64_t now_ms, struct buf *out) {
  struct missing k;
  struct msg msg;
  msg_init(&msg, MSG_WAITING);
  missing_fill(&k, j, &msg.waiting, true, now_ms);
  if (failed)
    waiting_failed(&msg.waiting, out);
  else
    waiting_sentence(&msg.waiting, 0, UINT64_MAX, out);
  missing_finish(&k);
}

void *job_missing_json(const struct job *j, uint64_t now_ms) {
  struct missing k;
  struct msg msg;
  struct buf sentence = BUF_INIT;
  msg_init(&msg, MSG_WAITING);
  missing_fill(&k, j, &msg.waiting, true, now_ms);
  json_t *v = waiting_to_json(&msg.waiting);
  waiting_sentence(&msg.waiting, 0, UINT64_MAX, &sentence);
  json_object_set_new(v, "sentence", json_text(buf_text(&sentence)));
  buf_finish(&sentence);
  missing_finish(&k);
  return v;
}
