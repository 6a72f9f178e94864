/* SPDX-License-Identifier: Apache-2.0 */
/* The exception line of what programs print when they end. */

#include "agent/failures/exception.h"

#include <string.h>
#include "tests/rig/unit.h"

#define FRAMES "  File \"train.py\", line 3, in <module>\n    main()\n    ^^^^^^\n"
#define HEAD   "Traceback (most recent call last):\n" FRAMES

/* want NULL: there is none. */
static void check(const char *text, const char *want) {
  struct buf out = BUF_INIT;
  assert_int_equal(exception_line(text, &out), want != NULL);
  assert_string_equal(buf_text(&out), want ? want : "");
  buf_finish(&out);
}

UNIT_TEST(test_one) {
  check(HEAD "ValueError: boom\n", "ValueError: boom");
  check(HEAD "ValueError: boom", "ValueError: boom");
  check("step 17\n" HEAD "KeyboardInterrupt\n", "KeyboardInterrupt");
  check(HEAD "torch.distributed.DistBackendError: NCCL error in: a.cpp:77\nLast error:\nsocket\n",
        "torch.distributed.DistBackendError: NCCL error in: a.cpp:77");
  check(HEAD "json.decoder.JSONDecodeError: Expecting value: line 1\n\n",
        "json.decoder.JSONDecodeError: Expecting value: line 1");
  check("  File \"t.py\", line 1\n    def\n       ^\nSyntaxError: invalid syntax\n", "SyntaxError: invalid syntax");
  check("", NULL);
  check("it says: no\nwhat now\n", NULL);
}

UNIT_TEST(test_chained) {
  check(HEAD "KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n" HEAD
             "ValueError: boom\n",
        "ValueError: boom");
  check(HEAD "OSError: x\n\nThe above exception was the direct cause of the following exception:\n\n" HEAD "E: b\n",
        "E: b");
  check(HEAD "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 0 terminated with the following "
             "error:\n" HEAD "ImportError: boom\n\n",
        "ImportError: boom");
}

UNIT_TEST(test_groups) {
  static const char group[] = "  + Exception Group Traceback (most recent call last):\n"
                              "  |   File \"t.py\", line 1, in <module>\n"
                              "  |     raise g\n"
                              "  | ExceptionGroup: many (2 sub-exceptions)\n"
                              "  +-+---------------- 1 ----------------\n"
                              "    | ValueError: a\n"
                              "    +---------------- 2 ----------------\n"
                              "    | Traceback (most recent call last):\n"
                              "    |   File \"t.py\", line 2, in f\n"
                              "    | TypeError: b\n"
                              "    +------------------------------------\n";
  check(group, "ExceptionGroup: many (2 sub-exceptions)");
  struct buf text = BUF_INIT;
  buf_printf(&text, "%s\nDuring handling of the above exception, another exception occurred:\n\n%s", group,
             HEAD "OSError: last\n");
  check(buf_text(&text), "OSError: last");
  buf_finish(&text);
}

UNIT_TEST(test_prefixes) {
  check("[rank3]: Traceback (most recent call last):\n[rank3]:   File \"t.py\", line 1, in f\n[rank3]:     g()\n"
        "[rank3]: ValueError: boom\n",
        "ValueError: boom");
  check(
      "\x1b[1mTraceback (most recent call last):\x1b[0m\n  File \x1b[35m\"t.py\"\x1b[0m, line \x1b[35m1\x1b[0m, in f\n"
      "\x1b[1;35mValueError\x1b[0m: \x1b[35mboom\x1b[0m\n",
      "ValueError: boom");
  check(HEAD "ValueError: a\x1b[31mb\x1b[0m\x07\n", "ValueError: ab\x07"); /* escaped where it is shown */
}

/* Lines of other threads, before, between and behind. */
UNIT_TEST(test_other_lines) {
  check(HEAD "ValueError: boom\n[W1122 socket.cpp:400] closed\nbye: all\n", "ValueError: boom");
  check("Traceback (most recent call last):\n  File \"t.py\", line 1, in f\n[W1122 x.cpp:4] slow\n    g()\n"
        "ValueError: boom\n",
        "ValueError: boom");
  check("Traceback (most recent call last):\n  File \"t.py\", line 1, in f\ndone\n  File \"t.py\", line 2, in g\n"
        "ValueError: boom\n",
        "ValueError: boom");
  check("Exception in thread Thread-1 (f):\n" HEAD "OSError: theirs\n", "OSError: theirs");
  check(HEAD "ValueError: boom\nException ignored in: <function x>\n" HEAD "OSError: theirs\n", "ValueError: boom");
  check("Exception in thread Thread-1 (f):\n" HEAD "OSError: theirs\n" HEAD "ValueError: boom\n", "ValueError: boom");
}

/* Only so many last bytes are kept. */
UNIT_TEST(test_cut) {
  check("n.py\", line 9, in main\n    f()\n  File \"t.py\", line 1, in f\n    g()\nValueError: boom\n",
        "ValueError: boom");
  check("ge of many lines\nand more\nRuntimeError: cut off above\n", "RuntimeError: cut off above");
  check("   g()\nmyjob.NcclError: x\n", "myjob.NcclError: x");
  check("Error: no such option\n", NULL); /* the name alone is anybody's */
  check("Warning: deprecated\n", NULL);
}

UNIT_TEST(test_of_cxx) {
  check("terminate called after throwing an instance of 'std::runtime_error'\n  what():  boom\n",
        "std::runtime_error: boom");
  check("terminate called after throwing an instance of 'int'\n",
        "terminate called after throwing an instance of 'int'");
  check("  what():  boom\n", NULL);
}

UNIT_TEST(test_long_lines) {
  static char text[20000];
  struct buf out = BUF_INIT;
  strcpy(text, HEAD "ValueError: ");
  size_t n = strlen(text);
  while (n < sizeof text - 3) { /* a character of two bytes */
    text[n++] = '\xc3';
    text[n++] = '\xbc';
  }
  assert_true(exception_line(text, &out));
  assert_true(out.len <= EXCEPTION_LINE_MAX + 3);
  assert_string_equal(buf_text(&out) + out.len - 5, "\xc3\xbc...");
  buf_finish(&out);
}

/* An AMD GPU's fault, as ROCm's runtime reports it, with what comes before and behind it. */
UNIT_TEST(test_device_faults) {
#define FAULT "Memory access fault by GPU node-4 (Agent handle: 0x26ff9f00) on address 0x7edbdee00000. Reason: Unknown."
#define QUEUE                                                                                                          \
  ":0:rocdevice.cpp :2726: 1 us: Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION"
  check(FAULT "\nGPU coredump: handler exited with error (status: 1)\nFatal Python error: Aborted\n\n"
              "Thread 0x00007f0 (most recent call first):\n  File \"train.py\", line 3 in main\n\n"
              "Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)\n",
        FAULT);
  check(HEAD "ValueError: caught and shown\n" QUEUE "\n", QUEUE);
  check(HEAD FAULT "\n", FAULT);
  check("it had a Memory access fault by GPU node-4\n", NULL);
}

static void check_last(const char *text, const char *want) {
  struct buf out = BUF_INIT;
  assert_int_equal(last_line(text, &out), want != NULL);
  assert_string_equal(buf_text(&out), want ? want : "");
  buf_finish(&out);
}

UNIT_TEST(test_last_line) {
  check_last("one\ncannot go on\n\n  \n", "cannot go on");
  check_last("[rank0]: gone", "gone");
  check_last(" 10%\r 50%\r 90%\r", "90%");
  check_last("\n \r\n", NULL);
  check_last("", NULL);
}
