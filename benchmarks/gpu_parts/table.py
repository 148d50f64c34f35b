"""The table that comes last."""

import itertools

from gpu_parts import problems
from gpu_parts.journal import OK

HEADINGS = ("", "by", "shape, mode", "answer", "ms on the device", "ms called", "of the limit")
HEADINGS = (*HEADINGS, "× ours")
# Rows that are ours, and so what others are compared with, in each part.
OURS = {"torch": ("Triton, sequential", "Triton, parallel"), "jax": ("Pallas",)}


def table(records: list[dict]) -> str:
    ceilings = {
        key: value
        for record in records
        if record.get("section") == "ceiling" and record["status"] == OK
        for key, value in record.items()
        if key.endswith("_per_second")
    }
    by_section = {
        "check": lambda x: check(x),
        "ceiling": ceiling,
        "time": lambda x: time(x, ceilings, records),
        "rule": rule,
    }
    lines = [line(HEADINGS), line(["---"] * len(HEADINGS))]
    for section, cells in by_section.items():
        lines += [line(cells(x)) for x in records if x.get("section") == section]
        if section == "time":
            lines += [line(cells) for cells in crossovers(records)]
    failed = [x for x in records if x.get("section") in ("versions", None) and x["status"] != OK]
    lines += [line([x["name"], "", "", answer(x)]) for x in failed]
    return "\n".join(lines)


def line(cells) -> str:
    """Of a Markdown table, cells that are missing left empty."""
    cells = [str(x).replace("|", "/") for x in cells]
    return f"| {' | '.join(cells + [''] * (len(HEADINGS) - len(cells)))} |"


def answer(record: dict) -> str:
    if record["status"] != OK:
        return f"{record['status']}: {record.get('error', '')}"
    off = record.get("difference")
    return "ok" if off is None else f"ok, {off:.0e}"


def check(record: dict) -> list:
    mode = record["mode"].removeprefix(f"{record['family']}, ")
    where = f"{tuple(record['shape'])}, {mode}"
    return [
        f"check, {record['family']}",
        f"{record['part']}, {record['row']}",
        where,
        answer(record),
    ]


def ceiling(record: dict) -> list:
    if record["status"] != OK:
        return [record["name"], record["part"], "", answer(record)]
    if "bytes_per_second" in record:
        return [record["name"], "copy", f"{record['bytes_per_second'] / 1e12:.3g} TB/s", "ok"]
    rate = record["special_per_second"] / 1e12
    return [record["name"], "sigmoids", f"{rate:.3g} × 10^12 a second", "ok"]


def time(record: dict, ceilings: dict, records: list[dict]) -> list:
    where = f"{tuple(record['shape'])}, {record['mode']}"
    start = [record["family"], f"{record['part']}, {record['row']}", where, answer(record)]
    if record["status"] != OK:
        return start
    device, called, share = record.get("ms"), record["called_ms"], ""
    limit = problems.limit(record, ceilings)
    if limit:
        share = f"{100 * limit[0] / (device or called):.0f} % of {limit[1]}"
    return [
        *start,
        f"{device:.4g}" if device else "",
        f"{called:.4g}",
        share,
        ratio(record, records),
    ]


def ratio(record: dict, records: list[dict]) -> str:
    """Beside the faster one of ours, both as called. GRU is compared with COFFEE."""
    family = record["family"] if record["family"] != "torch.nn.GRU" else problems.COFFEE
    ours = [
        x["called_ms"]
        for x in records
        if x.get("section") == "time"
        and x["status"] == OK
        and x["row"] in OURS[record["part"]]
        and (x["part"], x["family"]) == (record["part"], family)
        and (x["shape"], x["mode"]) == (record["shape"], record["mode"])
    ]
    return f"{record['called_ms'] / min(ours):.2f}" if ours else ""


def crossovers(records: list[dict]):
    """A row for each recurrence and number of pairs, all lengths in it."""
    found = [x for x in records if x.get("section") == "crossover"]

    def key(x):
        return x["family"], x["n"], x["gate_scale"] or 0, x["pairs"]

    for _, group in itertools.groupby(sorted(found, key=key), key):
        group = sorted(group, key=lambda x: x["length"])
        x = group[0]
        gates = "" if x["gate_scale"] is None else f", gate scale {x['gate_scale']:g}"
        where = f"B·D = {x['pairs']}, n = {x['n']}{gates}"
        for mode in (problems.INFERENCE, problems.TRAINING):
            winners = "; ".join(f"T = {x['length']}: {winner(x, mode)}" for x in group)
            yield [f"crossover, {x['family']}", "torch", f"{where}, {mode}", winners]


def winner(record: dict, mode: str) -> str:
    if record["status"] != OK:
        return answer(record)
    sequential, parallel = record["ms"][mode]
    name = "parallel" if parallel < sequential else "sequential"
    return f"{name} {max(sequential, parallel) / min(sequential, parallel):.1f}×"


def rule(record: dict) -> list:
    if record["status"] != OK:
        return [record["name"], record["part"], "", answer(record)]
    bounds = f"if T ≥ {record['least_length']} and {record['unit']} ≤ {record['most']}"
    bounds = bounds if record["most"] else "never"
    text = f"{100 * record['loss']:.0f} % slower than the best choices"
    now = f"as it is in `gpu_kernels.kind`: {100 * record['loss_now']:.0f} %"
    return [f"rule, {record['family']}", "torch", f"parallel {bounds}", f"{text}; {now}"]
