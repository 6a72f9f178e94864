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
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
  VARIABLES_MAX = 8192,
  POINTERS_AT_ONCE = 256,
  MAPS_LINES_MAX = 65536,
  SYMBOLS_MAX = 1 << 20,
};

/* A file of its maps, mapped here. */
struct image {
  const unsigned char *bytes;
  size_t size;
};

static bool image_open(struct image *image, const char *path) {
  struct stat st;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  *image = (struct image){0};
  if (fd < 0) return false;
  void *map = MAP_FAILED;
  if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (size_t)st.st_size >= sizeof(ElfW(Ehdr)))
    map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (map == MAP_FAILED) return false;
  *image = (struct image){.bytes = map, .size = (size_t)st.st_size};
  return true;
}

/* The table of `n` entries of `each` bytes at `at`, or NULL if it is not all in the file. */
static const void *part(const struct image *image, uint64_t at, uint64_t n, size_t each, size_t align) {
  if (at > image->size || n > (image->size - at) / each || at % align) return NULL;
  return image->bytes + at;
}

/* The address of `environ`, relative to where the file's first byte lies in memory; 0: it defines none. */
static uintptr_t find_environ(const struct image *image) {
  const ElfW(Ehdr) *header = (const void *)image->bytes;
  unsigned char class = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
  if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != class ||
      header->e_shentsize != sizeof(ElfW(Shdr)) || header->e_phentsize != sizeof(ElfW(Phdr)))
    return 0;
  const ElfW(Phdr) *segments = part(image, header->e_phoff, header->e_phnum, sizeof(*segments), _Alignof(ElfW(Phdr)));
  const ElfW(Shdr) *sections = part(image, header->e_shoff, header->e_shnum, sizeof(*sections), _Alignof(ElfW(Shdr)));
  if (!segments || !sections) return 0;
  uintptr_t base = UINTPTR_MAX; /* the address of the first byte that the file was linked for */
  for (size_t i = 0; i < header->e_phnum; i++)
    if (segments[i].p_type == PT_LOAD && segments[i].p_offset == 0) base = segments[i].p_vaddr;
  for (size_t i = 0; base != UINTPTR_MAX && i < header->e_shnum; i++) {
    const ElfW(Shdr) *s = &sections[i];
    if (s->sh_type != SHT_DYNSYM || s->sh_link >= header->e_shnum) continue;
    const ElfW(Shdr) *names = &sections[s->sh_link];
    size_t n = s->sh_size / sizeof(ElfW(Sym));
    const ElfW(Sym) *symbols = part(image, s->sh_offset, n, sizeof(*symbols), _Alignof(ElfW(Sym)));
    const char *text = part(image, names->sh_offset, names->sh_size, 1, 1);
    if (!symbols || !text) continue;
    for (size_t k = 0; k < n && k < SYMBOLS_MAX; k++) {
      uint64_t at = symbols[k].st_name, left = at < names->sh_size ? names->sh_size - at : 0;
      if (symbols[k].st_shndx == SHN_UNDEF || symbols[k].st_value <= base) continue;
      if ((left > strlen("environ") && memcmp(text + at, "environ", sizeof("environ")) == 0) ||
          (left > strlen("__environ") && memcmp(text + at, "__environ", sizeof("__environ")) == 0))
        return symbols[k].st_value - base;
    }
  }
  return 0;
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
  munmap((void *)(uintptr_t)image.bytes, image.size);
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
