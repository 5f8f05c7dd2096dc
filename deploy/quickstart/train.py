"""An ordinary PyTorch training, data-parallel over gloo. What TaskD needs are the lines between the two markers."""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)

    # --- TaskD
    from taskd.api.taskd_worker_api import init_taskd_worker
    from taskd.api.taskd_worker_api import start_taskd_worker
    import taskd.torch

    init_taskd_worker(rank, 5000)
    start_taskd_worker()
    taskd.torch.enable()
    # ---

    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.randn(2048, 64)
    data = DataLoader(TensorDataset(inputs, inputs[:, :8].sin()), batch_size=32, shuffle=True)
    stop = torch.zeros(1)
    step = 0
    while True:
        for batch, target in data:
            loss = torch.nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 25 == 0:
                print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
                torch.save(model.state_dict(), os.path.join(os.environ["WORK"], f"checkpoint-{rank}.pt"))
            # Everybody stops after the same step.
            stop.fill_(float(os.path.exists(os.environ["STOP_FILE"])))
            dist.all_reduce(stop)
            if stop.item() > 0:
                dist.destroy_process_group()
                return


if __name__ == "__main__":
    main()
