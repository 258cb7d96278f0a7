"""Each task is learned in seconds, by a margin that a broken model could not reach."""

import numpy as np

from samples.tiny_tasks import of, trained


def test_agreement_is_learned_beyond_any_fixed_answer(agreement_store):
    task = of(agreement_store, attention="Enc(AW)", settings={"num_layers": 2})
    model, losses = trained(task, updates=150, rate=3e-3)
    assert np.mean(losses[-20:]) < 0.7 * np.mean(losses[:20])
    share = task.gold("test").mean()
    assert task.validate(model, "test")["accuracy"] > max(share, 1 - share) + 0.15


def test_reordering_is_learned_beyond_the_frequency_of_words(reorder_store):
    task = of(reorder_store, attention="Enc(AW)-Cr(AW,Seg)-Dec(MW)")
    model, losses = trained(task, updates=100, rate=5e-3)
    assert np.mean(losses[-20:]) < 0.6 * np.mean(losses[:20])
    # the best that a model can do without looking at source or prefix: the entropy of the words
    counts = np.bincount(reorder_store.split("train").stream("target"))
    shares = counts[counts > 0] / counts.sum()
    assert task.validate(model, "test")["nll"] < -(shares * np.log(shares)).sum() - 1.0


def test_text_is_learned_beyond_the_frequency_of_tokens(text_store):
    task = of(text_store, attention="Dec(MW)")
    model, losses = trained(task, updates=100, rate=5e-3)
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])
    counts = np.bincount(text_store.split("train").stream("text"))
    shares = counts[counts > 0] / counts.sum()
    assert task.validate(model, "test")["loss"] < -(shares * np.log(shares)).sum() - 1.0
