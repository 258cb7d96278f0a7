import pytest

from diffwindow.training.config import TrainConfig
from diffwindow.training.optimizer import learning_rate


def rates(updates, **changes):
    config = TrainConfig(max_updates=100, lr=1.0, warmup=10, warmup_from=0.0, **changes)
    return [learning_rate(update, config) for update in updates]


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "constant", "linear", "cosine"])
def test_every_schedule_warms_up_to_the_peak(schedule):
    assert rates([1, 5, 10], schedule=schedule) == pytest.approx([0.1, 0.5, 1.0])


def test_what_comes_after():
    assert rates([40, 90], schedule="inverse_sqrt") == pytest.approx([0.5, 1 / 3])
    assert rates([11, 100], schedule="constant") == [1.0, 1.0]
    assert rates([55, 100], schedule="linear") == pytest.approx([0.5, 0.0])
    assert rates([55, 100], schedule="cosine", final_lr=0.2) == pytest.approx([0.6, 0.2])


def test_the_papers_rates():
    config = TrainConfig(max_updates=200_000)
    assert learning_rate(4000, config) == pytest.approx(7e-4)
    assert learning_rate(16_000, config) == pytest.approx(3.5e-4)
    assert learning_rate(1, config) == pytest.approx(1e-7 + (7e-4 - 1e-7) / 4000)


def test_without_warmup_the_first_update_has_the_full_rate():
    assert learning_rate(1, TrainConfig(max_updates=10, lr=0.5, warmup=0)) == 0.5
