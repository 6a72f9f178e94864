# SPDX-License-Identifier: Apache-2.0
"""The results of tests/gpu/run, as a block for the guide."""


def cell(v, fmt="{:.3f}"):
    return "" if v is None else fmt.format(v)


def perf_table(rows):
    out = ["| step, ms | rdzv-trainer | PyTorch eager | torch.compile | its best | times eager | times best | of the matrix rate | floor |",
           "|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        torch = r["torch_ms"]
        best = f"{cell(torch.get(r['best']))} ({r['best']})" if r["best"] else ""
        out.append(f"| {r['model']} | {cell(r['ours_ms'])} | {cell(torch.get('eager'))} | {cell(torch.get('compile'))} | {best} | {cell(r['times_eager'], '{:.1f}')} | "
                   f"{cell(r['times_best'], '{:.2f}')} | {cell(r['matrix_share'], '{:.0%}')} | {cell(r['floor_ms'])} |")
    return out


def markdown(facts, results):
    head = ", ".join(f"{k} {v}" for k, v in facts.items() if v and k not in ("date", "command"))
    out = [f"Measured {facts['date']} by `{facts['command']}`: {head}.", ""]
    for name, r in results.items():
        word = "" if r["how"] == "ok" else f"**{r['how']}**: "
        out.append(f"- {name}: {word}{r['line']}")
    rows = results.get("perf", {}).get("figures", {}).get("rows")
    if rows:
        out += ["", *perf_table(rows)]
    return "\n".join(out) + "\n"
