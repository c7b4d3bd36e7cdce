"""The size of the job, from what logs say of it."""

from __future__ import annotations

from tests.logs.scanned import scan
from tests.tables import for_each

from unhang.logs import log_facts, nccl_lines


@for_each(
    ("text", "size"),
    [
        ("world_size=8\n", 8),
        ("{'world_size': 16, 'rank': 3}\n", 16),
        ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4\n", 4),
        ("torch.distributed.DistStoreError: Timed out after 3 seconds waiting for clients. 1/2 clients joined.\n", 2),
        ("n:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 64 cudaDev 0 busId 1 commId 0x2 - Init START\nworld_size=8\n", 64),
        ("hello world\n", None),
        ("world_size=1048576\n", 1048576),
        ("world_size=1048577\n", None),
        ("world_size=30000000\nworld_size=30000000\nWORLD_SIZE=16\n", 16),
        ("world_size=0\n", None),
        (f"world_size={'4' * 5000}\n", None),
        (f"MEMBER: {'4' * 5000}/8 Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/{'8' * 5000}\n", None),
        ("n:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 20000000 cudaDev 0 commId 0x2 - Init START\nworld_size=8\n", 8),
    ],
)
def test_sizes(tmp_path, text, size):
    path = tmp_path / "log"
    path.write_text(text)
    assert log_facts.world_size(scan(path, (*log_facts.SIZES, *nccl_lines.SIGNATURES))) == size
