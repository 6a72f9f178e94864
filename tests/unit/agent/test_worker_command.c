/* SPDX-License-Identifier: Apache-2.0 */
/* worker_command: what is wrong with a command, and what to type instead, in a folder of the test. */

#include "agent/worker_command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "agent/options/command_line.h"
#include "common/system/command.h"
#include "tests/rig/tree.h"
#include "tests/rig/unit.h"

enum { WORDS_MAX = 16 };

static struct tree tree;
static struct agent_options o;
static char text[256];
static char *argv[WORDS_MAX], *env[1];

/* "~" stands for an empty word, "%" for a blank in a word. */
static void parse(const char *words) {
  struct err e = ERR_INIT;
  int argc = 0;
  snprintf(text, sizeof(text), "rdzv-agent %s", words);
  for (char *p = strtok(text, " "); p; p = strtok(NULL, " ")) argv[argc++] = strcmp(p, "~") == 0 ? p + 1 : p;
  argv[argc] = NULL;
  for (int i = 1; i < argc; i++)
    for (char *p = argv[i]; (p = strchr(p, '%'));) *p = ' ';
  if (agent_options_parse(&o, argc, argv, env, NULL, &e)) fail_msg("'%s': %s", words, e.text);
  o.python_file = o.command && command_is_python_file(o.words[0], "/nowhere");
}

static void words_are(int code, const char *words, const char *says) {
  struct err e = ERR_INIT;
  parse(words);
  int rc = worker_command_check_words(&o, &e);
  if (rc != code || (says && !strstr(e.text, says))) fail_msg("'%s': %d, %s", words, rc, e.text);
}

UNIT_TEST(test_words) {
  static const char missing[] = "a command is missing: rdzv-agent ... train.py runs a script, rdzv-agent ... -- "
                                "./program a program, and rdzv-agent ... -- --epochs 1 rdzv-trainer with that option";
  static const char *const none[] = {"",       "--nproc 2", "--nproc 2 --", "--", "--rdzv-id job", "--rdzv-id=train.py",
                                     "--quiet"};
  for (int i = 0; i < 7; i++) words_are(-EINVAL, none[i], missing);
  words_are(-EINVAL, "--rdzv_id train.py", "--rdzv_id took train.py as its value; is a variable in front of it unset?");
  words_are(-EINVAL, "--rdzv-id noexec", "--rdzv-id took noexec as its value");
  words_are(-EINVAL, "~ x", "the command is empty");
  words_are(-EINVAL, "-- ~", "the command is empty");
  words_are(0, "--explain", NULL);
  words_are(0, "--explain -m ./pkg/train.py", NULL);
  words_are(0, "-- --epochs 1", NULL);
  words_are(0, "train.py", NULL);
  words_are(0, "-m train", NULL);
  words_are(0, "-m no.py", NULL);
  words_are(-EINVAL, "-m train.py", "write -m train, or train.py without -m");
  words_are(-EINVAL, "-m ./pkg/train.py", "write -m pkg.train, or ./pkg/train.py without -m");
  words_are(-EINVAL, "-m /pkg/train.py", "write /pkg/train.py without -m");
}

static void checked(const char *words, int code, const char *says) {
  struct err e = ERR_INIT;
  char python[] = "PYTHON_EXEC=/bin/sh", *with_python[] = {python, NULL};
  bool hint = false;
  parse(words);
  char **command = command_line_create(&o, with_python, NULL);
  int rc = worker_command_check(&o, command, "/nowhere:bin", &hint, &e);
  free(command);
  if (rc != code || (says && !strstr(e.text, says))) fail_msg("'%s': %d, %s", words, rc, e.text);
  assert_int_equal(hint, says != NULL);
}

UNIT_TEST(test_programs) {
  checked("./good", 0, NULL);
  checked("tool", 0, NULL);
  checked("nothing-like-it", -ENOENT, NULL);
  checked("good", -ENOENT, "good: command not found in PATH; to run the file in this folder write ./good");
  checked("noexec", -ENOENT, "type chmod +x noexec, and write ./noexec");
  checked("binary", -ENOENT, "type chmod +x binary, and write ./binary");
  checked("plain.sh", -ENOENT,
          "has no first line such as #!/bin/sh: write what runs it in front, such as bash plain.sh");
  checked("plain.txt", -ENOENT, "such as python3 plain.txt");
  checked("--no-python train.py", -ENOENT, "without --no-python it runs under Python");
  checked("pkg", -ENOENT, "the folder of that name has no __main__.py, so name a script in it");
  checked("pkg.train", -ENOENT, "to run the module write -m pkg.train");
  checked("nproc_per_node=2 train.py", -ENOENT, "did you mean --nproc_per_node=2?");
  checked("a=2 train.py", -ENOENT,
          "a=2: command not found in PATH; a variable for the workers stands in front of rdzv-agent");
  checked("2=2 train.py", -ENOENT, NULL);
  checked("train.py%--lr%3", -ENOENT,
          "train.py --lr 3: command not found in PATH; it is one word with blanks: remove the quotes");
  checked("god", -ENOENT, "did you mean ./good?");
  checked("./god", -ENOENT, "./god: command not found; did you mean ./good?");
  checked("./noexec", -EACCES, "it is not executable: chmod +x ./noexec");
  checked("./binary", -EACCES, "it is not executable: chmod +x ./binary");
  checked("./plain.sh", -EACCES, "such as bash ./plain.sh");
  checked("./fifo", -EACCES, "./fifo cannot be run: it is a pipe or a device, and not a file"); /* and is not read */
  checked("./pkg", -EACCES, "./pkg is a folder without __main__.py: name a script in it");
  checked("--no-python ./train.py", -EACCES, "chmod +x ./train.py");
}

UNIT_TEST(test_scripts) {
  checked("train.py", 0, NULL);
  checked("app.py", 0, NULL);
  checked("trian.py", -ENOENT, "the script trian.py cannot be read, from the folder ");
  checked("trian.py", -ENOENT, "No such file or directory; did you mean train.py?");
  checked("pkg/tran.py", -ENOENT, "did you mean pkg/train.py?");
  checked("no/such.py", -ENOENT, "No such file or directory");
  checked("folder.py", -EACCES, "the script folder.py is a folder without __main__.py: name a script in it");
  checked("--run-path trainn.py", -ENOENT, "did you mean train.py?");
}

static void allow(const char *path) {
  if (chmod(path, 0755)) fail_msg("%s", path);
}

static int enter(void **state) {
  static const char *const scripts[] = {"good", "bin/tool"};
  tree_init(&tree);
  tree_put(&tree, "#!/bin/sh\n", "good");
  tree_put(&tree, "#!/bin/sh\n", "bin/tool");
  tree_put(&tree, "#!/bin/sh\n", "noexec");
  tree_put(&tree,
           "\x7f"
           "ELF\1\2",
           "binary");
  tree_put(&tree, "echo\n", "plain.sh");
  tree_put(&tree, "echo\n", "plain.txt");
  tree_put(&tree, "", "train.py");
  tree_put(&tree, "", ".train.pi");
  tree_put(&tree, "", "pkg/train.py");
  tree_put(&tree, "", "folder.py/x");
  tree_put(&tree, "", "app.py/__main__.py");
  if (chdir(tree.root)) return -1;
  FILE *binary = fopen("binary", "we");
  assert_non_null(binary);
  assert_int_equal(fwrite("\x7f"
                          "ELF\1\0",
                          1, 6, binary),
                   6);
  fclose(binary);
  for (int i = 0; i < 2; i++) allow(scripts[i]);
  if (mkfifo("fifo", 0600)) return -1;
  return 0;
}

static int leave(void **state) {
  tree_finish(&tree);
  return 0;
}

int main(void) {
  return unit_run(enter, leave);
}
