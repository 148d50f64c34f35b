"""The table that comes last."""

from collections.abc import Sequence

from gpu_parts.limits import COFFEE, GRU, limit
from gpu_parts.log import OK

OURS = "keras_coffee.ops"
HEADINGS = "", "result", "ms on the device", "ms called", "of the limit", "× ours"


def table(records: Sequence[dict]) -> str:
    done = [x for x in records if x["status"] == OK]
    ceilings = {key: value for x in done for key, value in x.items() if key.endswith("_per_second")}
    lines = [_line(HEADINGS), _line(["---"] * len(HEADINGS))]
    for x in records:
        cells = [x["name"], result(x)]
        if "called_ms" in x:
            cells += _times(x, ceilings, done)
        lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    """Of a Markdown table, cells that are missing left empty."""
    cells = [x.replace("|", "/").replace("\n", " ") for x in cells]
    return f"| {' | '.join([*cells, *[''] * (len(HEADINGS) - len(cells))])} |"


def result(record: dict) -> str:
    """What a unit found, in words."""
    if record["status"] != OK:
        return f"{record['status']}: {record['error']}"
    match record.get("section"):
        case "versions":
            return ", ".join(f"{name} {x}" for name, x in record["versions"].items())
        case "tests":
            return record["error"]
        case "ceiling":
            ((name, rate),) = ((k, x) for k, x in record.items() if k.endswith("_per_second"))
            return f"{rate / 1e12:.3g} × 10^12 {name.removesuffix('_per_second')} a second"
        case "crossover":
            return "; ".join(f"{mode}: {_winner(*pair)}" for mode, pair in record["ms"].items())
        case "rule":
            return _rule(record)
    return OK


def _winner(sequential: float, parallel: float) -> str:
    name = "parallel" if parallel < sequential else "sequential"
    return f"{name} {max(sequential, parallel) / min(sequential, parallel):.1f}×"


def _rule(x: dict) -> str:
    bounds = f"if T ≥ {x['least_length']} and {x['unit']} ≤ {x['most']}" if x["most"] else "never"
    best, now = (f"{100 * x[key]:.0f} %" for key in ("loss", "loss_now"))
    return f"parallel {bounds}: {best} slower than the best choices; as it is: {now}"


def _times(x: dict, ceilings: dict, done: list[dict]) -> list[str]:
    device, called, share = x["ms"], x["called_ms"], ""
    # A layer does more than its scan, so the limit of the scan is not its own.
    bound = limit(x, ceilings) if x["row"] != "layer" else None
    if bound:
        share = f"{100 * bound[0] / (device or called):.0f} % of {bound[1]}"
    return [f"{device:.4g}" if device else "", f"{called:.4g}", share, _ratio(x, done)]


def _ratio(x: dict, done: list[dict]) -> str:
    """Beside ours, both as called. GRU is compared with COFFEE."""
    same = x["backend"], COFFEE if x["family"] == GRU else x["family"], x["shape"], x["mode"]
    for other in done:
        if other.get("row") == OURS:
            if (other["backend"], other["family"], other["shape"], other["mode"]) == same:
                return f"{x['called_ms'] / other['called_ms']:.2f}"
    return ""
