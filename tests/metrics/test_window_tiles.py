import pytest
import torch

from diffwindow.metrics.window_tiles import OutsideCounts, count_outside


def test_a_band_leaves_out_all_but_its_tiles():
    # 130 keys are three tiles; a window of one key per query touches the tiles of the diagonal
    counts = count_outside(torch.eye(130), torch.ones(130, 130, dtype=torch.bool), 1e-3)
    assert counts == (130 * 130, 130 * 129, 9, 6)
    assert counts.tiles_share == pytest.approx(2 / 3)
    assert counts.keys_share == pytest.approx(129 / 130)


def test_what_nobody_sees_does_not_count():
    causal = torch.ones(2, 130, 130, dtype=torch.bool).tril()
    counts = count_outside(torch.full((2, 130, 130), 0.5), causal, 0.1)
    # the six tiles on and below the diagonal, of two heads
    assert counts == (130 * 131, 0, 12, 0)
    assert count_outside(torch.full((2, 130, 130), 0.05), causal, 0.1).tiles_share == 1.0


def test_one_key_keeps_a_tile():
    window = torch.zeros(64, 128)
    window[63, 64] = 0.1
    counts = count_outside(window, torch.ones(64, 128, dtype=torch.bool), 0.1)
    assert (counts.tiles, counts.tiles_outside) == (2, 1)


def test_nothing_has_no_share():
    counts = count_outside(torch.zeros(2, 0, 5), torch.ones(2, 0, 5, dtype=torch.bool), 0.1)
    assert counts == OutsideCounts()
    assert (counts.keys_share, counts.tiles_share) == (0.0, 0.0)
