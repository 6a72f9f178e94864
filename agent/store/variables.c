/* SPDX-License-Identifier: Apache-2.0 */
/* /proc/PID/environ shows what a process began with. A script that sets MASTER_PORT changes the C library's `environ`
 * instead, which lies in the memory of its process:
 *
 *   /proc/PID/maps -> the files that may define `environ`: the program itself, which holds a copy if it refers to the
 *   variable, else the C library -> its dynamic symbols -> process_vm_readv: the pointer, the array, the strings
 *
 * A user may read the memory of processes of its own that descend from the reader, mostly; where not, nothing is found. All
 * that is read belongs to somebody else and moves: each length has a limit, and nothing is followed but what was read. */

#include "agent/store/variables.h"

#include <elf.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include "common/mem.h"

enum {
  VARIABLES_MAX = 8192,
  POINTERS_AT_ONCE = 256,
  MAPS_LINES_MAX = 65536,
  PART_MAX = 16 * 1024 * 1024, /* of a program's symbols, or their names */
};

/* A file of its maps. It is read and not mapped: a file server that fails, or a file that is cut meanwhile, is then an
 * error and not a signal. */
struct image {
  int fd;
  uint64_t size;
};

static bool image_open(struct image *image, const char *path) {
  struct stat st;
  *image = (struct image){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (image->fd < 0) return false;
  if (fstat(image->fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
    image->size = (uint64_t)st.st_size;
    return true;
  }
  close(image->fd);
  return false;
}

/* The table of `n` entries of `each` bytes at `at`; heap, with a NUL behind it. NULL: it is too large, or not all in the
 * file. */
static void *part(const struct image *image, uint64_t at, uint64_t n, size_t each) {
  if (n > PART_MAX / each || at > image->size || n > (image->size - at) / each) return NULL;
  size_t size = n * each, have = 0;
  char *bytes = xmalloc(size + 1);
  ssize_t got;
  while (have < size && (got = pread(image->fd, bytes + have, size - have, (off_t)(at + have))) > 0)
    have += (size_t)got;
  bytes[have] = '\0';
  if (have == size) return bytes;
  free(bytes);
  return NULL;
}

/* Among the symbols of one table. */
static uintptr_t find_symbol(const ElfW(Sym) * symbols, size_t n, const char *text, size_t text_size, uintptr_t base) {
  for (size_t k = 0; k < n; k++) {
    const char *name = symbols[k].st_name < text_size ? text + symbols[k].st_name : "";
    if (symbols[k].st_shndx == SHN_UNDEF || symbols[k].st_value <= base) continue;
    if (!strcmp(name, "environ") || !strcmp(name, "__environ")) return symbols[k].st_value - base;
  }
  return 0;
}

/* The address of `environ`, relative to where the file's first byte lies in memory; 0: it defines none. */
static uintptr_t find_environ(const struct image *image) {
  unsigned char class = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
  ElfW(Ehdr) *header = part(image, 0, 1, sizeof(*header));
  ElfW(Phdr) *segments = NULL;
  ElfW(Shdr) *sections = NULL;
  uintptr_t base = UINTPTR_MAX, found = 0; /* base: the address of the first byte that the file was linked for */
  if (header && memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 && header->e_ident[EI_CLASS] == class &&
      header->e_shentsize == sizeof(*sections) && header->e_phentsize == sizeof(*segments)) {
    segments = part(image, header->e_phoff, header->e_phnum, sizeof(*segments));
    sections = part(image, header->e_shoff, header->e_shnum, sizeof(*sections));
  }
  for (size_t i = 0; segments && i < header->e_phnum; i++)
    if (segments[i].p_type == PT_LOAD && segments[i].p_offset == 0) base = segments[i].p_vaddr;
  for (size_t i = 0; sections && base != UINTPTR_MAX && i < header->e_shnum; i++) {
    const ElfW(Shdr) *s = &sections[i];
    if (s->sh_type != SHT_DYNSYM || s->sh_link >= header->e_shnum) continue;
    const ElfW(Shdr) *names = &sections[s->sh_link];
    size_t n = s->sh_size / sizeof(ElfW(Sym));
    ElfW(Sym) *symbols = part(image, s->sh_offset, n, sizeof(*symbols));
    char *text = part(image, names->sh_offset, names->sh_size, 1);
    if (symbols && text) found = find_symbol(symbols, n, text, names->sh_size, base);
    free(symbols);
    free(text);
    break; /* a program has one */
  }
  free(segments);
  free(sections);
  free(header);
  return found;
}

static bool is_c_library(const char *path) {
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  return strncmp(name, "libc.so", 7) == 0 || strncmp(name, "libc-", 5) == 0 || strncmp(name, "ld-musl", 7) == 0 ||
         strncmp(name, "libc.musl", 9) == 0;
}

static uintptr_t environ_in(const char *path) {
  struct image image;
  if (!image_open(&image, path)) return 0;
  uintptr_t at = find_environ(&image);
  close(image.fd);
  return at;
}

/* Where `environ` lies in its memory; 0: not found. */
static uintptr_t locate(pid_t entry) {
  char path[64], target[4096], line[4096 + 128], file[4096 + 64];
  snprintf(path, sizeof(path), "/proc/%d/exe", (int)entry);
  ssize_t n = readlink(path, target, sizeof(target) - 1);
  target[n > 0 ? n : 0] = '\0';
  uintptr_t own = environ_in(path), found = 0;
  snprintf(path, sizeof(path), "/proc/%d/maps", (int)entry);
  FILE *f = fopen(path, "re");
  if (!f) return 0;
  for (int i = 0; !found && i < MAPS_LINES_MAX && fgets(line, sizeof(line), f); i++) {
    uintptr_t begin;
    unsigned long long offset;
    int at = 0;
    line[strcspn(line, "\n")] = '\0';
    if (sscanf(line, "%" SCNxPTR "-%*x %*4s %llx %*s %*s %n", &begin, &offset, &at) != 2 || offset || line[at] != '/')
      continue;
    if (own && strcmp(line + at, target) == 0) found = begin + own;
    if (own || !is_c_library(line + at)) continue;
    snprintf(file, sizeof(file), "/proc/%d/root%s", (int)entry, line + at);
    uintptr_t relative = environ_in(file);
    if (relative) found = begin + relative;
  }
  fclose(f);
  return found;
}

/* As many of its bytes as are there, up to n. */
static size_t copy_from(pid_t pid, uintptr_t at, void *to, size_t n) {
  ssize_t got = process_vm_readv(pid, &(struct iovec){.iov_base = to, .iov_len = n}, 1,
                                 &(struct iovec){.iov_base = (void *)at, .iov_len = n}, 1, 0);
  return got > 0 ? (size_t)got : 0;
}

/* One string, cut; it may end just before memory that is not there. */
static bool put_string(pid_t pid, uintptr_t at, struct buf *out) {
  char text[VARIABLES_VALUE_MAX];
  size_t page = (size_t)sysconf(_SC_PAGESIZE), first = page - at % page;
  if (first > sizeof(text)) first = sizeof(text);
  size_t n = copy_from(pid, at, text, first);
  if (n == first && n < sizeof(text) && !memchr(text, '\0', n)) n += copy_from(pid, at + n, text + n, sizeof(text) - n);
  if (!n) return false;
  buf_append(out, text, strnlen(text, n));
  buf_append(out, "", 1);
  return true;
}

bool variables_read(pid_t pid, pid_t entry, struct buf *out) {
  uintptr_t at = locate(entry), array = 0, v[POINTERS_AT_ONCE];
  if (!at || copy_from(pid, at, &array, sizeof(array)) != sizeof(array) || !array) return false;
  for (size_t n = 0; n < VARIABLES_MAX; n += POINTERS_AT_ONCE, array += sizeof(v)) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), got = copy_from(pid, array, v, sizeof(v));
    size_t here = page - array % page;
    if (!got && here < sizeof(v))
      got = copy_from(pid, array, v, here); /* the array ends in the last page that is there */
    for (size_t i = 0; i < got / sizeof(*v); i++) {
      if (!v[i]) return true;
      if (!put_string(pid, v[i], out)) return false;
    }
    if (got < sizeof(v)) return false;
  }
  return false;
}
