"""The lines of an evaluation, as `evaluate` prints them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diffwindow.cli.errors import shorten
from diffwindow.cli.library import tasks_metrics

# groups of examples: the length of a text, the distance from subject to verb, the label
GROUPS = {"by_length": "length", "by_distance": "distance", "by_label": "label"}
# a wider confusion matrix does not fit a terminal
MOST_LABELS = 10


def format_report(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a report."""
    model = f"{report['attention']}, {report['parameters']:,} parameters"
    examples = f"split {report['split']}" if report["split"] else ", ".join(report["corpus"])
    rule = report.get("window_rule", "soft")
    windows = "" if rule == "soft" else f", window rule {rule}"
    yield f"{report['run']}: {model}, {examples}{windows}"
    yield from format_metrics(report["metrics"])
    if "against" in report:
        other = report["against"]
        yield f"{other['run']}: {other['attention']}"
        yield from format_metrics(other["metrics"])
        yield "difference, first minus second; ratio, first over second"
        for name, values in other["comparison"].items():
            text = _format_ratio(**values) if "ratio" in values else _format_difference(name, **values)
            yield f"  {name:20} {text}"
        if not other["comparison"]:
            yield "  none: the two runs read other words, or know others; prepare both corpora alike"


def format_metrics(metrics: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of metrics by name."""
    for name, value in metrics.items():
        if name == "by_attractors":
            for count, group in value.items():
                known = "unknown number of" if count == "-1" else count
                noun = "attractor" if count == "1" else "attractors"
                yield f"  {f'with {known} {noun}':20} {_format_accuracy(group)}"
        elif name in GROUPS:
            for key, group in value.items():
                yield f"  {f'{GROUPS[name]} {shorten(key, 60)}':20} {_format_accuracy(group)}"
        elif name == "macro_f1":
            yield f"  {name:20} {100 * value:6.2f} %"
        elif name == "confusion":
            yield from _format_confusion(**value)
        elif name == "target_language":
            yield f"  target language {value}: no BLEU on Moses tokens; name it with --target-lang"
        elif name == "windows":
            for fit in value:
                yield f"  {'layer ' + str(fit['layer']):20} {_format_window(fit)}"
        elif isinstance(value, dict) and "low" in value:
            yield f"  {name:20} {_format_accuracy(value)}"
        elif isinstance(value, dict):
            yield f"  {name:20} {value['value']:.2f}{_format_signature(value)}"
        else:
            yield f"  {name:20} {value:,}" if isinstance(value, int) else f"  {name:20} {value:.4f}"


def _format_accuracy(group: dict[str, Any]) -> str:
    interval = f"{100 * group['low']:.2f}-{100 * group['high']:.2f}"
    counts = f"{group['correct']:,} of {group['total']:,}"
    text = f"(95 % interval {interval}; {counts})"
    if "f1" not in group:
        return f"{100 * group['value']:6.2f} % {text}"
    # the accuracy of a label is its recall
    precision, f1 = (f"{100 * group[name]:.2f}" for name in ("precision", "f1"))
    return f"{100 * group['value']:6.2f} % recall {text}, precision {precision} %, F1 {f1} %"


def _format_confusion(labels: list[str], counts: list[list[int]]) -> Iterator[str]:
    if len(labels) > MOST_LABELS:
        yield f"  confusion of {len(labels)} labels: see --json, or draw it with --confusion"
        return
    names = [shorten(label, 16) for label in labels]
    cells = [[f"{count:,}" for count in row] for row in counts]
    width = max(len(cell) for row in (names, *cells) for cell in row) + 2
    yield f"  {'right, predicted':20} {''.join(f'{name:>{width}}' for name in names)}"
    for name, row in zip(names, cells, strict=True):
        yield f"  {name:20} {''.join(f'{cell:>{width}}' for cell in row)}"


def _format_window(fit: dict[str, Any]) -> str:
    inside = f"attention inside the gold window {fit['attention_inside']:.3f}"
    if fit["overlap"] is not None:
        inside += f", window overlap {fit['overlap']:.3f}, best head {fit['best_head']:.3f}"
    return f"{inside} (uniform attention {fit['chance']:.3f})"


def format_p(p: float) -> str:
    """Return a p-value as text, with a bound if it is tiny.

    >>> format_p(0.16), format_p(1e-9)
    ('0.160', '<0.001')
    """
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def _format_difference(name: str, difference: float, p: float, **signature: str) -> str:
    metric = tasks_metrics.METRICS.get(name)
    scale = metric.scale if metric else 1.0
    return f"difference {scale * difference:+.2f}, p {format_p(p)}{_format_signature(signature)}"


def _format_ratio(ratio: float, low: float | None = None, high: float | None = None) -> str:
    interval = "" if low is None else f" (95 % interval {low:#.5g}-{high:#.5g})"
    return f"ratio {ratio:#.5g}{interval}"


def _format_signature(value: dict[str, Any]) -> str:
    return f"  [{value['signature']}]" if "signature" in value else ""
