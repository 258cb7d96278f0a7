"""With the same weights, the plain model gives the logits of other libraries' Transformers."""

import importlib.util
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).parents[2] / "benchmarks" / "peers.py"


@pytest.fixture(scope="module")
def peers():
    spec = importlib.util.spec_from_file_location("peers", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def batch():
    torch.manual_seed(1)
    source, target = torch.randint(4, 100, (3, 9)), torch.randint(4, 100, (3, 6))
    source[1, 5:] = 0
    return source, target


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torch_gives_the_same_logits(peers, batch):
    ours = peers.base(vocab_size=100, layers=1).eval()
    theirs = peers.TorchTranslator(ours).eval()
    assert peers.trainable(theirs) == peers.trainable(ours)
    torch.testing.assert_close(theirs(*batch), ours(*batch), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
def test_marian_gives_the_same_logits(peers, batch):
    pytest.importorskip("transformers")
    source, target = batch
    ours = peers.base(vocab_size=100, layers=1).eval()
    theirs = peers.marian(ours).eval()
    assert peers.trainable(theirs) == peers.trainable(ours)
    logits = theirs(input_ids=source, attention_mask=(source != 0).long(), decoder_input_ids=target).logits
    torch.testing.assert_close(logits, ours(source, target), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("compute_type", ["float32", "int8"])
def test_ctranslate2_scores_the_same(peers, batch, compute_type):
    pytest.importorskip("ctranslate2")
    source, target = batch
    ours = peers.base(vocab_size=100, layers=1).eval()
    theirs = peers.ctranslate2(ours, compute_type)
    texts = [[str(token) for token in row if token] for row in source.tolist()]
    results = theirs.score_batch(texts, [[str(token) for token in row] for row in target.tolist()])
    begun = torch.cat([torch.ones_like(target[:, :1]), target], dim=1)
    labels = torch.cat([target, torch.full_like(target[:, :1], 2)], dim=1)
    expected = ours(source, begun).log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)
    tolerance = 1e-4 if compute_type == "float32" else 0.1
    found = torch.tensor([result.log_probs for result in results])
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
