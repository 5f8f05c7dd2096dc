"""An ordinary PyTorch training, data-parallel over gloo. What TaskD needs are the lines between the two markers.

There is no accelerator here, so a step also waits as long as one would compute: it is done DEVICE_S after it was given
all of its work, while the host waits. (Not sooner: what the host loses before would be made up for there, unseen.) What
can go wrong with a rank is in trouble.py.
"""
import os
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from trouble import Trouble

DEVICE_S = 0.15


class Samples(Dataset):
    """Batches of a made-up function."""

    def __init__(self, trouble):
        self.trouble = trouble
        self.inputs = torch.randn(64, 32, 64)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        self.trouble.storage()
        return self.inputs[i], self.inputs[i, :, :8].sin()


def average(gradients, wants_to_stop):
    """Sets the gradients to their mean over all ranks, in one all-reduce; True if any rank wants to stop.

    DistributedDataParallel would do it, too.
    """
    flat = torch.cat([gradient.view(-1) for gradient in gradients] + [torch.tensor([float(wants_to_stop)])])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start:start + gradient.numel()].view_as(gradient))
        start += gradient.numel()
    return flat[-1].item() > 0


def main():
    # --- TaskD: marks from here on, once they are switched on. Where the wheel is installed not even this is needed.
    import taskd.torch

    taskd.torch.enable()
    # ---

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(rank)
    trouble = Trouble(rank)
    data = DataLoader(Samples(trouble), batch_size=None, shuffle=True)
    step = 0
    while True:
        for batch, target in data:
            loss = torch.nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            time.sleep(DEVICE_S)
            trouble.compute()
            # Everybody stops after the same step.
            stop = average([p.grad for p in model.parameters()], os.path.exists(os.environ["STOP_FILE"]))
            optimizer.step()
            if step % 10 == 0:
                print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
            if step % 40 == 20:
                torch.save(model.state_dict(), os.path.join(os.environ["WORK"], f"checkpoint-{rank}.pt"))
            if stop:
                dist.destroy_process_group()
                return
            step += 1
            trouble.look(step)


if __name__ == "__main__":
    main()
