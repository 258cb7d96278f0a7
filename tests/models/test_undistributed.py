"""Windows are refused by models that several processes share."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.fsdp import FullyShardedDataParallel

from diffwindow import add_windows


@pytest.fixture
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_alone")
@pytest.mark.filterwarnings("ignore")
def test_flat_parameters_get_no_windows() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)
    encoder.layers[1] = FullyShardedDataParallel(encoder.layers[1], device_id=torch.device("cpu"))
    with pytest.raises(ValueError, match="TransformerEncoder is sharded; add or remove windows first"):
        add_windows(encoder, "Enc(AW)")
