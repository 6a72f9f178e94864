# SPDX-License-Identifier: Apache-2.0
"""The steps `sanitize` and `sanitize-seam` of tests/gpu/run: short runs of the trainer, and the tests of the seam, under compute-sanitizer.

memcheck finds accesses outside of what was allocated, racecheck races in the memory of a block, synccheck barriers that not all threads reach, initcheck reads
of memory that nothing wrote. Only our kernels are checked, whose names end in _kernel: those of libraries take most of the time, and a tile of theirs may
read behind a matrix and ignore the values.
"""

import os
import re
import shutil

import steps
import work as w
from work import Fail, Skip


def find_tool(work):
    tool = shutil.which("compute-sanitizer") or next((p for p in ("/usr/local/cuda/bin/compute-sanitizer",) if os.path.exists(p)), None)
    if work.device == "cpu":
        raise Skip("this machine has no GPU")
    if not tool:
        raise Skip("compute-sanitizer is not installed")
    return tool


def under(work, tool, check, argv, name):
    """(the summary or None, what it and the program said)"""
    text = work.call([tool, "--tool", check, "--error-exitcode", 99, "--kernel-regex", "kns=_kernel", *argv], name, ok=range(-64, 256))
    log = text + work.file(f"{name}.log").read_text(errors="replace")
    return re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) \w+.*", log), log


def works(work, tool, check):
    """On a program without any of our kernels: then what does not end well is ours."""
    argv = [work.program("device-rates-fake" if work.rehearse else "device-rates"), "--precision", "fp32", "--each", 1, "--repeats", 1, "--copy-bytes", 4096, "16,16,16"]
    summary, log = under(work, tool, check, argv, f"{check}-works")
    return summary and '"products_ms"' in log


def our_kernels(log):
    """Those of ours that an error names: in kernels*.cu each has a name that ends so."""
    return sorted(set(re.findall(r"^=+ +at .*?\b(\w+_kernel)\b", log, re.M)))


def verdict(check, summary, log, ended):
    """What is wrong, or nothing."""
    if not summary:
        return "no summary"
    if int(summary[1]) and (check != "initcheck" or our_kernels(log)):
        return " in ".join([summary[0], *([", ".join(our_kernels(log))] if our_kernels(log) else [])])
    return "" if ended else f"{summary[0]}, and the run did not end well"


def checked(work, tool, check, argv, name, sign_of_end):
    summary, log = under(work, tool, check, argv, name)
    bad = verdict(check, summary, log, re.search(sign_of_end, log, re.M))
    if bad:
        raise Fail(f"{name.replace('-', ', ', 1)}: {bad} ({work.file(name)}.log)")
    return summary[0]


def run_checks(work, tool, checks, precisions, command, sign_of_end):
    runs, without = {}, []
    for check in checks:
        if works(work, tool, check):
            runs.update({f"{check} {precision}": (check, precision) for precision in precisions})
        else:
            without.append(f"{check} does not work here: {w.last_words(work.file(f'{check}-works.log'))}")
    if not runs:
        raise Skip("; ".join(without))
    said, bad = w.each(runs, lambda name, run: checked(work, tool, run[0], command(run[1]), "-".join(run), sign_of_end))
    if bad:
        raise Fail("; ".join(bad + without), said)
    return "; ".join([", ".join(said) + ": clean", *without]), said


def sanitize(work):
    tool = find_tool(work)
    images, _ = steps.make_data(work, steps.MLP)
    options = steps.trainer_options(steps.MLP, images, steps=5)
    return run_checks(work, tool, ("memcheck", "racecheck"), ("fp32", "bf16"), lambda precision: [work.program("rdzv-trainer"), *options, *work.on_device(precision)], "done:")


def sanitize_seam(work):
    tool = find_tool(work)
    checks = ("memcheck",) if work.rehearse else ("memcheck", "initcheck", "synccheck")
    return run_checks(work, tool, checks, ("fp32",) if work.rehearse else ("fp32", "bf16"), lambda precision: steps.seam_command(work, precision), r"^\[  PASSED  \]")


STEPS = {"sanitize": sanitize, "sanitize-seam": sanitize_seam}
