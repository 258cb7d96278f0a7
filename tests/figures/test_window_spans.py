from diffwindow.figures.window_spans import Span, span_figure


def test_a_bar_runs_from_start_to_end_and_roles_are_apart():
    spans = [Span("Enc", 1, 1, -2.0, 1.0), Span("Enc", 2, 1, 0.5, 0.5), Span("Cr", 1, 1, -1.0, 0.0)]
    encoder, cross = span_figure(spans, title="$x$").axes
    assert [label.get_text() for label in encoder.get_yticklabels()] == ["1.1", "2.1"]
    assert [(bar.get_x(), bar.get_width()) for bar in encoder.patches] == [(-2.0, 3.0), (0.5, 0.0)]
    assert cross.get_xlabel() == "keys from the diagonal"
