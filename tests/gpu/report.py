# SPDX-License-Identifier: Apache-2.0
"""The results of tests/gpu/run, as a block for the guide."""


def cell(v, fmt="{:.3f}"):
    return "" if v is None else fmt.format(v)


def perf_table(rows):
    out = ["| step, ms | rdzv-trainer | PyTorch eager | torch.compile | its best | times eager | times best | of the matrix rate | floor | of the floor's speed |",
           "|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        torch = r["torch_ms"]
        best = f"{cell(torch.get(r['best']))} ({r['best']})" if r["best"] else ""
        out.append(f"| {r['model']} | {cell(r['ours_ms'])} | {cell(torch.get('eager'))} | {cell(torch.get('compile'))} | {best} | {cell(r['times_eager'], '{:.1f}')} | "
                   f"{cell(r['times_best'], '{:.2f}')} | {cell(r['matrix_share'], '{:.0%}')} | {cell(r['floor_ms'])} | {cell(r['floor_share'], '{:.0%}')} |")
    return out


def markdown(facts, results):
    head = ", ".join(f"{k} {v}" for k, v in facts.items() if v and k not in ("date", "command"))
    out = [f"Measured {facts['date']} by `{facts['command']}`: {head}.", ""]
    for name, r in results.items():
        word = "" if r["how"] == "ok" else f"**{r['how']}**: "
        word += f"on {r['device']}: " if r.get("device") and r["device"] != facts["GPU"] else ""
        out.append(f"- {name}: {word}{r['line']}")
    rows = [row for name, r in results.items() if name.startswith("perf-") for row in r["figures"].get("rows", [])]
    if rows:
        out += ["", *perf_table(rows)]
    return "\n".join(out) + "\n"
