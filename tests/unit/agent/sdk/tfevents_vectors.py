#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tfevents_vectors.inc: records as TensorBoard's own writer makes them. It needs `pip install tensorboard`.

usage: tfevents_vectors.py > tfevents_vectors.inc
"""
import io

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


def record(**fields):
    file = io.BytesIO()
    RecordWriter(file).write(Event(wall_time=1.5, **fields).SerializeToString())
    return file.getvalue()


def put(name, data):
    print(f"static const unsigned char {name}[] = {{")
    for at in range(0, len(data), 19):
        print("    " + " ".join(f"0x{b:02x}," for b in data[at:at + 19]))
    print("};")


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */\n/* Written by tfevents_vectors.py. */")
    put("version", record(step=0, file_version="brain.Event:2"))
    put("start", record(step=301, session_log=SessionLog(status=SessionLog.START)))
    put("scalars", record(step=1000000007, summary=Summary(value=[Summary.Value(tag="loss", simple_value=0.25), Summary.Value(tag="train/é", simple_value=-3)])))


if __name__ == "__main__":
    main()
