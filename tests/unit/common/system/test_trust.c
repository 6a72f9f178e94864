/* SPDX-License-Identifier: Apache-2.0 */
/* trust: whose files count, and who may write to them. Most of it needs root, to give files to others. */

#include "common/system/trust.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "common/mem.h"
#include "tests/rig/tree.h"
#include "tests/rig/unit.h"

enum { EVE = 60101, DAEMON = 1 }; /* 1: a user with a private group, on Debian and Fedora; it may be missing */

static struct tree tree;
static struct err why;

static const char *in_tree(const char *name) {
  static char path[PATH_MAX];
  snprintf(path, sizeof(path), "%s/%s", tree.root, name);
  return path;
}

static void put(const char *name, uid_t uid, gid_t gid, mode_t mode) {
  tree_put(&tree, "x", "%s", name);
  assert_int_equal(chmod(in_tree(name), mode), 0);
  if (geteuid() == 0) assert_int_equal(lchown(in_tree(name), uid, gid), 0);
}

static void set_folder(const char *name, uid_t uid, gid_t gid, mode_t mode) {
  assert_int_equal(chmod(in_tree(name), mode), 0);
  if (geteuid() == 0) assert_int_equal(chown(in_tree(name), uid, gid), 0);
}

static void assert_trusted(const char *name, const char *real) {
  why = (struct err)ERR_INIT;
  SCOPED(unit_free) char *found = trust_resolve(in_tree(name), &why);
  if (!found) fail_msg("%s", why.text);
  assert_string_equal(found, in_tree(real));
}

static void assert_refused(const char *name, const char *sentence) {
  why = (struct err)ERR_INIT;
  char *found = trust_resolve(in_tree(name), &why);
  if (found) fail_msg("%s is trusted", name);
  assert_int_equal(why.code, -EPERM);
  if (!strstr(why.text, sentence)) fail_msg("'%s' does not say '%s'", why.text, sentence);
}

static int tear_down(void **state) {
  if (geteuid() == 0) set_folder(".", 0, 0, 0700);
  tree_finish(&tree);
  return 0;
}

static int set_up(void **state) {
  tree_init(&tree);
  return 0;
}

UNIT_TEST_WITH(test_ours, set_up, tear_down) {
  put("a", 0, 0, 0644);
  assert_trusted("a", "a");
  put("f/a", 0, 0, 0755);
  set_folder("f", 0, 0, 0755);
  assert_trusted("f/../f/a", "f/a");
  assert_null(trust_resolve(in_tree("none"), &why));
  assert_int_equal(why.code, -ENOENT);
  assert_null(trust_resolve(in_tree("a/b"), &why));
  assert_int_equal(why.code, -ENOTDIR);
}

UNIT_TEST_WITH(test_every_user_may_write, set_up, tear_down) {
  put("a", 0, 0, 0666);
  assert_refused("a", "/a can be changed by every user, and decides what runs here: chmod o-w ");
  put("f/a", 0, 0, 0644);
  set_folder("f", 0, 0, 0777);
  assert_refused("f/a", "/f can be changed by every user");
  set_folder("f", 0, 0, 01777); /* others may add a file there */
  assert_refused("f/a", "the folder ");
  set_folder("f", 0, 0, 0755);
  assert_trusted("f/a", "f/a");
}

UNIT_TEST_WITH(test_another_users, set_up, tear_down) {
  if (geteuid() != 0) skip();
  put("a", EVE, 0, 0644);
  assert_refused("a", "/a belongs to uid 60101, and would decide what runs here: it must belong to root, to this user "
                      "or to the owner of this program; remove it, or chown it");
  put("f/a", 0, 0, 0644);
  set_folder("f", EVE, 0, 0755);
  assert_refused("f/a", "/f belongs to uid 60101");
}

UNIT_TEST_WITH(test_links, set_up, tear_down) {
  put("f/a", 0, 0, 0644);
  set_folder("f", 0, 0, 0755);
  assert_int_equal(symlink("f/a", in_tree("link")), 0);
  assert_trusted("link", "f/a");
  set_folder("f", 0, 0, 0777);
  assert_refused("link", "/f can be changed by every user");
  set_folder("f", 0, 0, 0755);
  if (geteuid() != 0) return;
  assert_int_equal(lchown(in_tree("link"), EVE, EVE), 0);
  assert_refused("link", "the link ");
}

/* A link leads to another one, as the last name or on the way there. */
UNIT_TEST_WITH(test_links_to_links, set_up, tear_down) {
  static const struct {
    const char *name, *target;
  } links[] = {{"g/two", "../f/a"}, {"one", "g/two"}, {"g/folder", "../f"}, {"through", "g/folder/a"}};
  put("f/a", 0, 0, 0644);
  put("g/b", 0, 0, 0644);
  set_folder("f", 0, 0, 0755);
  for (size_t i = 0; i < sizeof(links) / sizeof(*links); i++) {
    SCOPED(unit_free) char *path = xasprintf("%s/%s", tree.root, links[i].name);
    assert_int_equal(symlink(links[i].target, path), 0);
  }
  for (int i = 0; i < 2; i++) {
    const char *name = i ? "through" : "one";
    set_folder("g", 0, 0, 0755);
    assert_trusted(name, "f/a");
    set_folder("g", 0, 0, 01777);
    assert_refused(name, "/g can be changed by every user");
    if (geteuid() != 0) continue;
    set_folder("g", EVE, 0, 0755);
    assert_refused(name, "/g belongs to uid 60101");
    set_folder("g", 0, 0, 0755);
    assert_int_equal(lchown(in_tree(i ? "g/folder" : "g/two"), EVE, EVE), 0);
    assert_refused(name, i ? "the link " : "/g/two belongs to uid 60101");
  }
  if (geteuid() == 0) assert_refused("g/folder/a", "/g/folder belongs to uid 60101");
}

UNIT_TEST_WITH(test_groups, set_up, tear_down) {
  if (geteuid() != 0) skip();
  put("a", 0, EVE, 0664);
  assert_refused("a", "/a can be changed by group 60101, and decides what runs here: chmod g-w ");
  put("a", 0, EVE, 0666);
  assert_refused("a", "/a can be changed by every user, and decides what runs here: chmod go-w ");
  put("a", 0, 0, 0664); /* root's group */
  assert_trusted("a", "a");
  put("f/a", 0, EVE, 0644);
  set_folder("f", 0, EVE, 02775); /* as /usr/local of group staff */
  assert_trusted("f/a", "f/a");
}

/* Another user of this machine runs it: the child is that user. */
UNIT_TEST_WITH(test_private_groups, set_up, tear_down) {
  if (geteuid() != 0) skip();
  set_folder(".", DAEMON, DAEMON, 0755);
  put("f/a", DAEMON, DAEMON, 0664);
  put("g/a", DAEMON, EVE, 0664);
  put("h/a", DAEMON, DAEMON, 0644);
  set_folder("f", DAEMON, DAEMON, 0775);
  set_folder("g", DAEMON, DAEMON, 0755);
  set_folder("h", DAEMON, EVE, 0775);
  assert_int_equal(seteuid(DAEMON), 0);
  assert_trusted("f/a", "f/a"); /* with a umask of 002 */
  assert_refused("g/a", "g/a can be changed by group 60101");
  assert_refused("h/a", "/h can be changed by group 60101");
  assert_int_equal(seteuid(0), 0);
  assert_refused("f/a", "/f/a belongs to user daemon (uid 1)"); /* root is another user than that */
}

UNIT_TEST_WITH(test_an_access_control_list, set_up, tear_down) {
  static const uint8_t list[] = {2,    0,    0,    0, /* user::rw- user:60101:rw- group::r-- mask::rw- other::r-- */
                                 1,    0,    6,    0,    0xff, 0xff, 0xff, 0xff, 2,    0,    6,    0,   0xc5, 0xea,
                                 0,    0,    4,    0,    4,    0,    0xff, 0xff, 0xff, 0xff, 16,   0,   6,    0,
                                 0xff, 0xff, 0xff, 0xff, 0x20, 0,    4,    0,    0xff, 0xff, 0xff, 0xff};
  put("a", 0, 0, 0644);
  if (setxattr(in_tree("a"), "system.posix_acl_access", list, sizeof(list), 0) != 0) skip();
  assert_refused("a", "/a can be changed by group ");
}
