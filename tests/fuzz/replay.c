/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over files: the main() of every replay_* program.
 *
 * libFuzzer brings a main of its own, but only clang has it. With this one any compiler and any sanitizer can go
 * through the corpus, and a file that once crashed a decoder is a regression test from the day it is put there.
 * Arguments are files or folders; at least one file must have been read, so that a misspelt path does not pass for a
 * clean run. */

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path) {
  FILE *f = fopen(path, "rb");
  if (!f) return fprintf(stderr, "%s: %s\n", path, strerror(errno)), -1;
  struct stat st;
  if (fstat(fileno(f), &st) != 0) return fclose(f), -1;
  size_t size = (size_t)st.st_size;
  /* Exactly as large as the input, so that a read behind its end is seen by ASan. */
  uint8_t *data = malloc(size ? size : 1);
  if (!data || fread(data, 1, size, f) != size)
    return fprintf(stderr, "%s: cannot be read\n", path), free(data), fclose(f), -1;
  fclose(f);
  LLVMFuzzerTestOneInput(data, size);
  free(data);
  return 1;
}

static int replay(const char *path) {
  DIR *dir = opendir(path);
  if (!dir) return replay_file(path);
  int files = 0;
  for (struct dirent *entry; files >= 0 && (entry = readdir(dir));) {
    if (entry->d_name[0] == '.') continue;
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
    int n = replay_file(name);
    files = n < 0 ? n : files + n;
  }
  closedir(dir);
  return files;
}

int main(int argc, char **argv) {
  int files = 0;
  for (int i = 1; i < argc; i++) {
    int n = replay(argv[i]);
    if (n < 0) return 1;
    files += n;
  }
  printf("%d files\n", files);
  return files ? 0 : 1;
}
