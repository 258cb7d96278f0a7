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
