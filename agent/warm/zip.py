#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes template.py as the bytes of a zip file in C: an interpreter that has the file in its path runs it as sitecustomize.

usage: zip.py OUT.c template.py"""

import io
import pathlib
import sys
import zipfile

data = io.BytesIO()
with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as z:
    z.writestr(zipfile.ZipInfo("sitecustomize.py", (1980, 1, 1, 0, 0, 0)), pathlib.Path(sys.argv[2]).read_bytes())
rows = [data.getvalue()[i:i + 24] for i in range(0, len(data.getvalue()), 24)]
numbers = "\n".join(" ".join(f"{b}," for b in row) for row in rows)
pathlib.Path(sys.argv[1]).write_text(f'#include "agent/warm/warm.h"\n\nconst unsigned char warm_zip[] = {{\n{numbers}\n}};\nconst size_t warm_zip_len = sizeof(warm_zip);\n')
