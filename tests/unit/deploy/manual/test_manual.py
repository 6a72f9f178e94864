# SPDX-License-Identifier: Apache-2.0
"""manual.py: what is special to roff comes out as it went in, what a label says to a completion, and how a place is filled. `test_manual.py MANUAL`. All pages, as
mandoc and groff show them: tests/e2e/test_manual.py. The shells: tests/e2e/test_completions.py."""

import importlib.util
import sys

spec = importlib.util.spec_from_file_location("manual", sys.argv[1])
manual = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode = True
spec.loader.exec_module(manual)


def choices(label):
    """ "now now", "file:FILE", "HOST,": in one line."""
    return " ".join(c.word + c.kind.upper() + ("," if c.many else "") for c in manual.choices(label))


def summary(text):
    return manual.summary(text, 30)


def fill(template):
    places = {"name": lambda words: "x", "none": lambda words: "", "line": lambda words: f"{words}\n"}
    return manual.fill(template, places, {"yes": True, "no": False})


CASES = {
    manual.running_text: [
        ("", ""),
        ("One. Two? (Three.) four", "One.\nTwo?\n(Three.)\nfour\n"),
        ("first\nparagraph\n\n  second", "first paragraph\n.Pp\nsecond\n"),
        (".Sh is 'text' a\\b", "\\%.Sh is \\(aqtext\\(aq \\%a\\eb\n"),
        ("'tis", "\\&\\(aqtis\n"),
        ("0 .. n-1 and ...", "0 .. \\%n\\-1 and ...\n"),
        ("see --hang-timeout, --beta1.", "see \\%\\fB\\-\\-hang\\-timeout\\fR, \\%\\fB\\-\\-beta1\\fR.\n"),
        ("`rdzvctl undrain x` it", "\\fBrdzvctl undrain x\\fR it\n"),
        ("open `for ever", "open \\fBfor ever\\fR\n"),
        ("^ ~", "\\(ha \\(ti\n"),
    ],
    manual.phrase: [
        ("a bug in rdzv", "A bug in rdzv.\n"),
        ("rdzvd: taken", "rdzvd: taken.\n"),
        ("1, if it is not set.", "1, if it is not set.\n"),
        ("`--role`", "\\%\\fB\\-\\-role\\fR.\n"),
        ("rdzv_rank is one", "\\%rdzv_rank is one.\n"),
    ],
    manual.macro_word: [("N|MIN:MAX", "N|MIN:MAX"), ("two words", '"two words"'), ('a"b', '"a\\(dqb"'), ("Ar", "\\&Ar"), ("|", "\\&|"), ("", "\\&")],
    manual.literal: [("a -b\n\n.c 'd'\n  e\\n", "a \\-b\n\n\\&.c \\(aqd\\(aq\n  e\\en\n")],
    manual.man_comment: [("One.\n\n    if (x)\n\n      y;\nTwo.", "One.\n.Bd -literal -offset indent\nif (x)\n\n  y;\n.Ed\n.Pp\nTwo.\n")],
    choices: [
        ("now|next-round", "now next-round"),
        ("N|cpu|gpu|auto", "TEXT cpu gpu auto"),
        ("auto|sdk|output|file:PATH", "auto sdk output file:FILE"),
        ("synthetic:N|FILE", "synthetic:TEXT FILE"),
        ("HOST[:PORT]", "HOST"),
        ("HOST[:N][,...]", "HOST,"),
        ("SIGNAL[,...]", "SIGNAL,"),
        ("HOSTS", "HOST,"),
        ("DIR", "DIR"),
        ("KEY=VALUE,...", "TEXT,"),
        ("N,N[,N...]", "TEXT"),
        ("", ""),
        ("|a||b|", "a b"),
    ],
    summary: [
        ("Say less. Or more.", "Say less"),
        ("Say less", "Say less"),
        ("Ends in .py anyway.", "Ends in .py anyway"),
        ("What is served here: nothing.", "What is served here"),
        ("all: of it", "all: of it"),
        ("A sentence that goes on and on for longer than a line.", "A sentence that goes on..."),
    ],
    fill: [
        ("a @{name} b\n@{line c}\n@{none}\n@{name}\n", "a x b\nc\nx\n"),
        ("@{if yes}\n1\n@{end}\n@{if no}\n2\n@{name}\n@{end}\n3\n", "1\n3\n"),
        ("-S @{if yes}-A @{end}-M\n", "-S -A -M\n"),
    ],
}
count = 0
for function, rows in CASES.items():
    for given, want in rows:
        assert function(given) == want, (function.__name__, given, function(given))
        count += 1
for wrong in ("@{nothing}", "@{if maybe}"):
    try:
        sys.exit(f"{wrong} is filled: {fill(wrong)}")
    except SystemExit as e:
        assert "cannot fill" in str(e.code), e.code
print(f"{count} cases")
