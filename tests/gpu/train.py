"""A rank of check.py: data-parallel training whose ranks share one GPU.

NCCL refuses two ranks on one GPU of one host; with NCCL_HOSTID they are hosts of their own, which talk through sockets.
FAULT on rank 1 from step FAULT_FROM on: kernel (matrix products more), host (20 ms asleep), copy (96 MiB more to the
device), loader (20 ms more for a batch). PROFILE: a folder for traces of PyTorch's profiler. TIMES: a file for the begins
of steps (Unix s), each step waited for on the device.
"""
import json
import os
import time

RANK = int(os.environ["RANK"])
os.environ["NCCL_HOSTID"] = f"host-{RANK}"
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.profiler import ProfilerActivity, profile, schedule  # noqa: E402

FAULT, FAULT_FROM, STEPS = os.environ.get("FAULT", ""), int(os.environ.get("FAULT_FROM", "60")), int(os.environ["STEPS"])
PROFILE, TIMES, WIDTH = os.environ.get("PROFILE"), os.environ.get("TIMES"), int(os.environ.get("WIDTH", "2048"))


class Data(torch.utils.data.Dataset):
    step = 0

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        if is_faulty("loader", Data.step):
            time.sleep(.02)
        return torch.ones(WIDTH)


def is_faulty(fault, step):
    return FAULT == fault and RANK == 1 and step >= FAULT_FROM


def train(profiler):
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda().to(torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    large = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    buffer = torch.empty(32 << 20, dtype=torch.uint8)
    begins = []
    batches = iter(torch.utils.data.DataLoader(Data(), batch_size=None))
    for Data.step in range(STEPS):
        begins.append(time.time())
        batch = next(batches).expand(WIDTH, WIDTH).cuda().to(torch.bfloat16)
        loss = model(batch).float().square().mean()
        if is_faulty("kernel", Data.step):
            for _ in range(40):
                large @ large
        if is_faulty("host", Data.step):
            time.sleep(.02)
        if is_faulty("copy", Data.step):
            for _ in range(3):
                buffer.cuda()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if TIMES:
            torch.cuda.synchronize()
        elif Data.step % 10 == 9:
            loss.item()
        if profiler:
            profiler.step()
    torch.cuda.synchronize()
    if TIMES and RANK == 0:
        with open(TIMES, "w", encoding="ascii") as file:
            json.dump(begins, file)


torch.cuda.set_device(0)
dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
if PROFILE:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule=schedule(wait=2, warmup=3, active=STEPS - 6),
                 on_trace_ready=lambda p: p.export_chrome_trace(f"{PROFILE}/host{RANK}_{os.getpid()}.1.pt.trace.json.gz")) as p:
        train(p)
else:
    train(None)
dist.barrier()
dist.destroy_process_group()
