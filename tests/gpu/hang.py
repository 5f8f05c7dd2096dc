"""A rank of check.py: a job of four ranks in two pairs, which share one GPU (train.py says how), until step 20.

KIND: missing (rank 2 does not come to the all-reduce of all), pair (rank 3 not to its pair's), order (rank 2 broadcasts
instead), size (rank 2 reduces less). After DUMP_AFTER s each rank dumps PyTorch's flight recorder into DUMPS.
"""
import datetime
import os
import threading
import time

RANK = int(os.environ["RANK"])
os.environ["NCCL_HOSTID"] = f"host-{RANK}"
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch._C import _distributed_c10d  # noqa: E402

KIND, DUMPS, AFTER_S = os.environ["KIND"], os.environ["DUMPS"], float(os.environ["DUMP_AFTER"])


def dump():
    time.sleep(AFTER_S)
    for name, data in (("nccl_trace_rank_", _distributed_c10d._dump_nccl_trace()),
                       ("json_rank_", _distributed_c10d._dump_nccl_trace_json())):
        with open(f"{DUMPS}/{name}{RANK}", "wb") as file:
            file.write(data)


def stay():
    torch.cuda.synchronize()
    time.sleep(3600)


torch.cuda.set_device(0)
dist.init_process_group("nccl", timeout=datetime.timedelta(hours=1), device_id=torch.device("cuda:0"))
pairs = [dist.new_group([first, first + 1], group_desc="TENSOR_PARALLEL") for first in (0, 2)]
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=.01)
for step in range(1000):
    model(torch.ones(64, 64, device="cuda")).sum().backward()
    if step == 20:
        torch.cuda.synchronize()
        threading.Thread(target=dump, daemon=True).start()
    if step == 20 and (KIND, RANK) == ("pair", 3):
        stay()
    values = torch.ones(1 << 16, device="cuda")
    dist.all_reduce(values, group=pairs[RANK // 2])
    if step == 20 and RANK == 2:
        if KIND == "missing":
            stay()
        if KIND == "order":
            dist.broadcast(values, 0)
            stay()
        if KIND == "size":
            dist.all_reduce(values[:1 << 14])
            stay()
    dist.all_reduce(values)
    dist.all_gather_into_tensor(torch.empty(4 << 10, device="cuda"), values[:1 << 10])
    optimizer.step()
    torch.cuda.synchronize()
    time.sleep(.05)
